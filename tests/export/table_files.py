"""Tables that ``pinn export table`` wrote, read back."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet

from pinn.common.tables import plain_table


def read_table(path: Path) -> pa.Table:
    """The table; its suffix tells the format. Coefficients and costs of a CSV are floats."""
    if path.suffix == ".parquet":
        return parquet.read_table(path)
    if path.suffix == ".json":
        tree = json.loads(path.read_text())
        head = {name: tree[name] for name in ("format", "version")}
        return pa.Table.from_pylist([head | row for row in tree["rows"]])
    names = csv.open_csv(path).schema.names
    numbers = {name: pa.float64() for name in names if "." in name}
    return plain_table(csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=numbers)))
