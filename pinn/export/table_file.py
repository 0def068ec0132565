"""Coefficient tables on disk; floats survive exactly. Go reads them (``export/go``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, parquet

from pinn.errors import PinnError
from pinn.export.table import FORMAT, VERSION
from pinn.specs.files.csv_cells import escaped_table
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
