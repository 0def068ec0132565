"""The canonical table of snapshots: one row per request of a step whose requests were written.

A snapshot precedes its step: ``cached_tokens`` are in the cache, ``new_tokens`` follow now.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pinn.sources.report import ReadReport

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


def canonical_snapshots(raw: pa.Table, steps: pa.Table) -> tuple[pa.Table, ReadReport]:
    """Snapshots of sampled steps, with the segment of their step.

    Args:
        raw: The raw table.
        steps: Columns ``server``, ``segment``, ``step_id`` and ``wall_s`` of the canonical steps.

    Returns:
        The table and the counts. Refused are negative counts, phases other than PREFILL and DECODE,
        a request's second snapshot in a step, and snapshots whose step's summary is missing.
    """
    refused: Counter[str] = Counter()
    keep = np.ones(raw.num_rows, dtype=bool)

    def refuse(reason: str, bad: np.ndarray) -> None:
        if (keep & bad).any():
            refused[reason] = int((keep & bad).sum())
            np.logical_and(keep, ~bad, out=keep)

    phase = pc.utf8_upper(raw["phase"])
    negative = np.zeros(raw.num_rows, dtype=bool)
    for name in ("step_id", "computed_tokens", "scheduled_tokens", "prompt_tokens"):
        values = pc.fill_null(raw[name], 0).to_numpy()
        negative |= (values < 0) | (values >= 2**31)
    refuse("a count is negative or absurd", negative)
    refuse("unknown phase", ~pc.is_in(phase, pa.array(["PREFILL", "DECODE"])).to_numpy())
    row = _step_rows(raw, steps)
    refuse("its step's summary is missing", row < 0)
    refuse("written twice", _repeated(row, raw["request_id"], keep))

    kept = raw.filter(pa.array(keep))
    segment = steps["segment"].to_numpy()[row[keep]]
    wall_ns = kept["wall_ns"].to_numpy()
    columns = {
        "segment": pa.array(segment, pa.int32()),
        "wall_s": pa.array(wall_ns * NANOSECOND, mask=wall_ns <= 0),
        "is_prefill": pc.equal(pc.utf8_upper(kept["phase"]), "PREFILL"),
    }
    arrays = [
        (columns[f.name] if f.name in columns else kept[_RENAMED.get(f.name, f.name)]).cast(f.type)
        for f in SNAPSHOT_SCHEMA
    ]
    table = pa.table(arrays, schema=SNAPSHOT_SCHEMA)
    report = ReadReport("snapshots", "", "", raw.num_rows, table.num_rows, dict(refused))
    return table, report


def _step_rows(raw: pa.Table, steps: pa.Table) -> np.ndarray:
    """Row of each snapshot's step; of several with its number, the nearest in epoch time."""
    if not steps.num_rows or not raw.num_rows:
        return np.full(raw.num_rows, -1, dtype=np.int64)
    server, step = steps["server"].to_numpy(), steps["step_id"].to_numpy()
    wall = np.nan_to_num(steps["wall_s"].to_numpy())
    order = np.lexsort((wall, step, server))
    names = {"server": server[order], "step": step[order], "wall": wall[order]}
    keys = np.stack((names["server"], names["step"]), axis=1)
    starts = np.concatenate(([True], (np.diff(keys, axis=0) != 0).any(axis=1)))
    first = {
        tuple(k): i for k, i in zip(keys[starts].tolist(), np.flatnonzero(starts), strict=True)
    }
    ends = np.append(np.flatnonzero(starts)[1:], len(order))
    end_of = dict(zip(np.flatnonzero(starts).tolist(), ends.tolist(), strict=True))
    found = np.full(raw.num_rows, -1, dtype=np.int64)
    wall_of = raw["wall_ns"].to_numpy() * NANOSECOND
    wanted = zip(raw["server"].to_numpy().tolist(), raw["step_id"].to_numpy().tolist(), strict=True)
    for row, key in enumerate(wanted):
        begin = first.get(key)
        if begin is not None:
            among = names["wall"][begin : end_of[int(begin)]]
            found[row] = order[begin + int(np.argmin(np.abs(among - wall_of[row])))]
    return found


def _repeated(row: np.ndarray, request: pa.ChunkedArray, keep: np.ndarray) -> np.ndarray:
    codes = pc.dictionary_encode(request.combine_chunks()).indices.to_numpy(zero_copy_only=False)
    order = np.lexsort((codes, row))
    order = order[keep[order]]
    repeated = np.zeros(len(row), dtype=bool)
    same = (np.diff(row[order]) == 0) & (np.diff(codes[order]) == 0)
    repeated[order[1:][same]] = True
    return repeated
