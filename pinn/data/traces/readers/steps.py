"""Reads step summaries that are already in a table: a Parquet file with the wire's names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pinn.data.traces.readers.vllm import RAW_SCHEMAS
from pinn.data.traces.readers.wire import STEP_FIELDS, STEPS
from pinn.errors import PinnError
from pinn.specs.files.read_report import ReadReport, file_sha256

#: Column that tells runs in one file apart; each is a server of its own.
RUN_COLUMN = "experiment_id"


def read_steps(path: Path) -> tuple[pa.Table, list[str], ReadReport]:
    """Read a table of step summaries.

    Args:
        path: Parquet with the columns of ``step.BATCH_SUMMARY`` under any of their names, and
            optionally ``experiment_id``.

    Returns:
        The raw table of steps, the names of its servers, and the counts: rows without a value
        that a step needs are refused.

    Raises:
        PinnError: If the file is missing, is no Parquet, or lacks a column that steps need.
    """
    if not path.is_file():
        raise PinnError(f"no step summaries at {path}: give the path of the Parquet file")
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise PinnError(f"{path} is not a readable Parquet file: {error}") from error
    columns, refused = {}, {}
    keep = np.ones(table.num_rows, dtype=bool)
    for field in STEP_FIELDS:
        name = next((n for n in field.names if n in table.column_names), None)
        if name is None and field.required:
            raise PinnError(
                f"{path} lacks the column {field.names[0]!r}; it has "
                f"{', '.join(table.column_names)}"
            )
        wanted = RAW_SCHEMAS[STEPS].field(field.column).type
        try:
            column = pa.nulls(table.num_rows, wanted) if name is None else table[name].cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise PinnError(f"{path}: column {name!r} does not hold numbers: {error}") from error
        columns[field.column] = column
        if field.required:
            missing = keep & pc.is_null(column).to_numpy(zero_copy_only=False)
            if missing.any():
                refused[f"step without {field.names[0]}"] = int(missing.sum())
                keep &= ~missing
    servers, number = _runs(table)
    columns |= {
        "server": pa.array(number),
        "span": pa.array(np.full(table.num_rows, -1)),
        "wall_ns": pa.array(np.zeros(table.num_rows, dtype=np.int64)),
        "label": pa.nulls(table.num_rows, pa.string()),
        "extra": pa.nulls(table.num_rows, pa.string()),
    }
    raw = pa.table({f.name: columns[f.name] for f in RAW_SCHEMAS[STEPS]}).filter(pa.array(keep))
    report = ReadReport(path.name, "", file_sha256(path), table.num_rows, int(keep.sum()), refused)
    return raw, servers, report


def _runs(table: pa.Table) -> tuple[list[str], np.ndarray]:
    if RUN_COLUMN not in table.column_names:
        return ["steps"], np.zeros(table.num_rows, dtype=np.int64)
    encoded = pc.dictionary_encode(table[RUN_COLUMN].cast(pa.string()), null_encoding="encode")
    encoded = encoded.combine_chunks() if encoded.num_chunks != 1 else encoded.chunk(0)
    names = [str(n) for n in encoded.dictionary.to_pylist()]
    return names, encoded.indices.to_numpy().astype(np.int64)
