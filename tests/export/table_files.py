"""Readers of tables that ``pinn export table`` wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet


def read_table(path: Path) -> pa.Table:
    """Read a table in its suffix's format; coefficients and costs of a CSV become floats."""
    if path.suffix == ".parquet":
        return parquet.read_table(path)
    if path.suffix == ".json":
        tree = json.loads(path.read_text())
        head = {name: tree[name] for name in ("format", "version")}
        return pa.Table.from_pylist([head | row for row in tree["rows"]])
    names = csv.open_csv(path).schema.names
    numbers = {name: pa.float64() for name in names if "." in name}
    return _plain(csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=numbers)))


def _plain(table: pa.Table) -> pa.Table:
    """Return text cells without the apostrophe that keeps spreadsheets from reading a formula."""
    for i, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            cells = [cell and cell.removeprefix("'") for cell in table.column(i).to_pylist()]
            table = table.set_column(i, field, pa.array(cells, field.type))
    return table
