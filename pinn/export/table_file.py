"""Coefficient tables on disk, written and read back; floats survive exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from pinn.errors import PinnError
from pinn.export.table import FORMAT, OPTIONAL_PARTS, VERSION, alpha_columns, beta_columns
from pinn.specs.documents import read_json
from pinn.specs.files.csv_cells import escaped_table, plain_table
from pinn.specs.files.write import replace_atomically

FORMATS = ("json", "csv", "parquet")

_PROVENANCE = b"pinn.provenance"


def write_table_file(
    table: pa.Table, provenance: dict[str, Any], path: Path, file_format: str
) -> None:
    """Write a table; the file appears whole or not at all.

    Args:
        table: Of ``export_table``.
        provenance: Kept whole in JSON and Parquet; CSV has only the table's own columns.
        path: Of the file.
        file_format: One of ``FORMATS``.

    Raises:
        PinnError: If the format is unknown.
    """
    writers = {"json": _write_json, "csv": _write_csv, "parquet": _write_parquet}
    if file_format not in writers:
        raise PinnError(f"unknown table format {file_format!r}: use one of {', '.join(FORMATS)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_atomically(path, lambda target: writers[file_format](table, provenance, target))


def table_json(table: pa.Table, provenance: dict[str, Any]) -> str:
    """A table as a JSON document: format, version, provenance and flat rows, one a line."""
    head = {"format": FORMAT, "version": VERSION, "provenance": provenance}
    rows = table.drop_columns(["format", "version"]).to_pylist()
    lines = ",\n".join(json.dumps(row) for row in rows)
    return json.dumps(head)[:-1] + f', "rows": [\n{lines}\n]}}\n'


def _write_json(table: pa.Table, provenance: dict[str, Any], path: Path) -> None:
    path.write_text(table_json(table, provenance))


def _write_csv(table: pa.Table, provenance: dict[str, Any], path: Path) -> None:  # noqa: ARG001
    csv.write_csv(escaped_table(table), path)


def _write_parquet(table: pa.Table, provenance: dict[str, Any], path: Path) -> None:
    metadata = {_PROVENANCE: json.dumps(provenance).encode()}
    parquet.write_table(table.replace_schema_metadata(metadata), path)


def read_table_file(path: Path) -> pa.Table:
    """Read a table that ``write_table_file`` wrote; its suffix tells the format.

    Returns:
        A table with at least the columns ``format``, ``version``, beta and alpha.

    Raises:
        PinnError: If the file cannot be read, is of another version or registry, or holds a
            coefficient or cost that is negative, infinite or NaN; with the row and the name.
    """
    readers = {".json": _read_json, ".csv": _read_csv, ".parquet": parquet.read_table}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise PinnError(f"{path}: cannot tell the table's format: name it {', '.join(readers)}")
    try:
        table = reader(path)
        _check_version(table, path)
        _check_values(table, path)
    except PinnError:
        raise
    except (OSError, ValueError, KeyError, TypeError, OverflowError, pa.ArrowException) as error:
        raise PinnError(f"{path} is no readable table ({' '.join(str(error).split())})") from error
    return table


def _read_json(path: Path) -> pa.Table:
    tree = read_json(path)
    rows = tree.get("rows") if isinstance(tree, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("expected a JSON object with a list of rows")
    for number, row in enumerate(rows, 1):
        for name, value in row.items():
            if "." not in name or (value is None and name.startswith(OPTIONAL_PARTS)):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise PinnError(_not_a_coefficient(path, number, name, value))
    head = {"format": tree.get("format"), "version": tree.get("version")}
    return pa.Table.from_pylist([head | row for row in rows])


def _read_csv(path: Path) -> pa.Table:
    names = csv.open_csv(path).schema.names
    numbers = {name: pa.float64() for name in names if "." in name}
    table = csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=numbers))
    return plain_table(table)


def _check_version(table: pa.Table, path: Path) -> None:
    if not {"format", "version"} <= set(table.column_names) or not len(table):
        raise PinnError(f"{path} is no coefficient table: write one with 'pinn export table'")
    kinds, versions = (set(table[name].to_pylist()) for name in ("format", "version"))
    if kinds != {FORMAT}:
        raise PinnError(f"{path} has the format {kinds}, expected {FORMAT!r}: export it again")
    if versions != {VERSION}:
        found = ", ".join(map(str, sorted(versions, key=str)))
        raise PinnError(
            f"{path} has table version {found}, this program reads {VERSION}: export it again, or "
            "use the pinn release that wrote it"
        )
    wanted = {*beta_columns(), *alpha_columns()}
    found_names = {n for n in table.column_names if n.startswith(("beta.", "alpha."))}
    odd = sorted(wanted ^ found_names)
    if odd:
        raise PinnError(
            f"{path} and this program's coefficients differ in {', '.join(odd)}: export it again"
        )


def _check_values(table: pa.Table, path: Path) -> None:
    costs = [name for name in table.column_names if name.startswith("cost.")]
    for name in (*beta_columns(), *alpha_columns(), *costs):
        values = np.array(table[name].to_pylist(), np.float64)
        bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if len(bad):
            raise PinnError(_not_a_coefficient(path, int(bad[0]) + 1, name, float(values[bad[0]])))


def _not_a_coefficient(path: Path, row: int, name: str, value: object) -> str:
    return (
        f"{path}, row {row}: {name} must be finite and not negative, got {value!r}: export it again"
    )
