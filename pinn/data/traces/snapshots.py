"""The canonical table of snapshots: one row per request of a step whose requests were written.

A snapshot precedes its step: ``cached_tokens`` are in the cache, ``new_tokens`` follow now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pinn.specs.files.read_report import ReadReport

NANOSECOND = 1e-9

SNAPSHOT_SCHEMA = pa.schema(
    {
        "server": pa.int32(),
        "segment": pa.int32(),
        "step_id": pa.int64(),
        "wall_s": pa.float64(),
        "request_id": pa.string(),
        "is_prefill": pa.bool_(),
        "new_tokens": pa.int64(),
        "cached_tokens": pa.int64(),
        "prompt_tokens": pa.int64(),
        "output_tokens": pa.int64(),
        "preemptions": pa.int64(),
        "kv_blocks_allocated": pa.int64(),
        "kv_blocks_cached": pa.int64(),
        "effective_prompt_tokens": pa.int64(),
        "extra": pa.string(),
    }
)

_RENAMED = {"new_tokens": "scheduled_tokens", "cached_tokens": "computed_tokens"}


class SnapshotOrder:
    """Which raw snapshots are kept, and the segment of each.

    Attributes:
        rows: Raw row of each kept snapshot, in order of the file.
        segment: Segment of its step.
        report: Counts. Refused are negative counts, phases other than PREFILL and DECODE, a
            request's second snapshot in a step, and snapshots whose step's summary is missing.
    """

    def __init__(self, raw: pa.Table, steps: pd.DataFrame) -> None:
        """Check the raw table.

        Args:
            raw: The raw table.
            steps: Columns ``server``, ``segment``, ``step_id``, ``wall_s`` of the canonical steps.
        """
        refused: Counter[str] = Counter()
        keep = np.ones(raw.num_rows, dtype=bool)

        def refuse(reason: str, bad: np.ndarray) -> None:
            if (keep & bad).any():
                refused[reason] = int((keep & bad).sum())
                np.logical_and(keep, ~bad, out=keep)

        negative = np.zeros(raw.num_rows, dtype=bool)
        for name in ("step_id", "computed_tokens", "scheduled_tokens", "prompt_tokens"):
            values = pc.fill_null(raw[name], 0).to_numpy()
            negative |= (values < 0) | (values >= 2**31)
        refuse("a count is negative or absurd", negative)
        known = pc.is_in(pc.utf8_upper(raw["phase"]), pa.array(["PREFILL", "DECODE"]))
        refuse("unknown phase", ~known.to_numpy())
        row = _step_rows(raw, steps)
        refuse("its step's summary is missing", row < 0)
        refuse("written twice", _repeated(row, raw["request_id"], keep))
        self.rows = np.flatnonzero(keep)
        self.segment = steps["segment"].to_numpy()[row[self.rows]].astype(np.int32)
        self.report = ReadReport("snapshots", "", "", raw.num_rows, len(self.rows), dict(refused))


def canonical_snapshots(
    raw: pa.Table, order: SnapshotOrder, batch_rows: int = 2**17
) -> Iterator[pa.RecordBatch]:
    """The kept snapshots, a batch at a time.

    Args:
        raw: The raw table.
        order: Of its rows.
        batch_rows: Rows per batch.
    """
    for begin in range(0, len(order.rows), batch_rows):
        rows = order.rows[begin : begin + batch_rows]
        low, high = int(rows[0]), int(rows[-1]) + 1
        kept = raw.slice(low, high - low).take(pa.array(rows - low)).combine_chunks()
        wall_ns = kept["wall_ns"].to_numpy()
        columns = {
            "segment": pa.array(order.segment[begin : begin + batch_rows]),
            "wall_s": pa.array(wall_ns * NANOSECOND, mask=wall_ns <= 0),
            "is_prefill": pc.equal(pc.utf8_upper(kept["phase"]), "PREFILL"),
        }
        arrays = []
        for field in SNAPSHOT_SCHEMA:
            column = columns.get(field.name)
            column = kept[_RENAMED.get(field.name, field.name)] if column is None else column
            whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            arrays.append(whole.cast(field.type))
        yield pa.RecordBatch.from_arrays(arrays, schema=SNAPSHOT_SCHEMA)


#: What the level of knowledge of a step needs of its snapshots.
WORKING_COLUMNS = ["segment", "step_id", "is_prefill", "new_tokens"]


def working_snapshots(raw: pa.Table, order: SnapshotOrder) -> pd.DataFrame:
    """The :data:`WORKING_COLUMNS` of all snapshots."""
    schema = pa.schema([SNAPSHOT_SCHEMA.field(name) for name in WORKING_COLUMNS])
    batches = (b.select(WORKING_COLUMNS) for b in canonical_snapshots(raw, order))
    return pa.Table.from_batches(batches, schema=schema).to_pandas()


def _step_rows(raw: pa.Table, steps: pd.DataFrame) -> np.ndarray:
    """Row of each snapshot's step, -1 without one; of several of its number the nearest in time."""
    found = np.full(raw.num_rows, -1, dtype=np.int64)
    if steps.empty or not raw.num_rows:
        return found
    keys = steps["server"].to_numpy(np.int64) * 2**40 + steps["step_id"].to_numpy()
    order = np.argsort(keys, kind="stable")
    wanted = raw["server"].to_numpy() * 2**40 + raw["step_id"].to_numpy()
    low = np.searchsorted(keys[order], wanted)
    high = np.searchsorted(keys[order], wanted, side="right")
    once = high - low == 1
    found[once] = order[low[once]]
    step_wall = np.nan_to_num(steps["wall_s"].to_numpy())
    wall = raw["wall_ns"].to_numpy() * NANOSECOND
    for row in np.flatnonzero(high - low > 1):
        among = order[low[row] : high[row]]
        found[row] = among[np.argmin(np.abs(step_wall[among] - wall[row]))]
    return found


def _repeated(row: np.ndarray, request: pa.ChunkedArray, keep: np.ndarray) -> np.ndarray:
    codes = pc.dictionary_encode(request.combine_chunks()).indices.to_numpy(zero_copy_only=False)
    order = np.lexsort((codes, row))
    order = order[keep[order]]
    repeated = np.zeros(len(row), dtype=bool)
    same = (np.diff(row[order]) == 0) & (np.diff(codes[order]) == 0)
    repeated[order[1:][same]] = True
    return repeated
