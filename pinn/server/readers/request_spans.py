"""One row per request span: the moments and counts of its events.

A span's events are always beside it, so this is done stretch by stretch while the file is read, and
memory holds rows of requests, not of events. What is missing is -1, not-a-number or the empty text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pinn.server.readers.columns import numbers, strings
from pinn.server.readers.wire import (
    API_EVENTS,
    API_SPAN,
    CORE_SPAN,
)
from pinn.units import NANOSECOND

#: No host's clock runs for longer than this.
MAX_SECONDS = 2.0**32

ENGINE, FRONT = "engine", "front"

_SPAN_COLUMNS = {
    "server": pa.int64(),
    "span_id": pa.string(),
    "parent_id": pa.string(),
    "request_id": pa.string(),
    "route": pa.string(),
    "model": pa.string(),
    "prompt_tokens": pa.int64(),
    "output_tokens": pa.int64(),
    "max_tokens": pa.int64(),
    "extra": pa.string(),
}

#: Events that happen once in an engine span -> name of their moment.
ENGINE_MOMENTS = {
    "QUEUED": "queued",
    "SCHEDULED": "scheduled",
    "FIRST_TOKEN": "first_token",
    "FINISHED": "finished",
}
FRONT_MOMENTS = dict(
    zip(API_EVENTS, ("arrived", "handoff", "first_response", "departed", "aborted"), strict=True)
)

_LIST = pa.list_(pa.int64())
ENGINE_SCHEMA = pa.schema(
    {
        **_SPAN_COLUMNS,
        "wall_s": pa.float64(),
        **{f"{name}_s": pa.float64() for name in ENGINE_MOMENTS.values()},
        **{f"{name}_step": pa.int64() for name in ENGINE_MOMENTS.values()},
        "prefill_total": pa.int64(),
        "cached_tokens": pa.int64(),
        "decode_done": pa.int64(),
        "decode_max": pa.int64(),
        "preemptions": pa.int64(),
        "status": pa.string(),
        "preempted_steps": _LIST,
        "preempted_outputs": _LIST,
        "resumed_steps": _LIST,
        "resumed_cached": _LIST,
    }
)
FRONT_SCHEMA = pa.schema(
    {**_SPAN_COLUMNS, **{f"{name}_s": pa.float64() for name in FRONT_MOMENTS.values()}}
)


class _Events:
    """Events of one label: their spans, times and columns, in order of time."""

    def __init__(self, batches: Sequence[pa.RecordBatch], keep: str | None = None) -> None:
        self._batches = [b for b in batches if keep is None or _label(b) == keep]
        time = [_times(b) for b in self._batches]
        self.time_s = np.concatenate([np.zeros(0), *time])
        self.span = self.integers("span")
        self._order = np.argsort(self.time_s, kind="stable")
        self.time_s, self.span = self.time_s[self._order], self.span[self._order]

    def integers(self, name: str) -> np.ndarray:
        """A column of whole numbers; -1 where it is missing."""
        parts = [_integers(b, name) for b in self._batches]
        joined = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        return joined[self._order] if hasattr(self, "_order") else joined

    def texts(self, name: str) -> np.ndarray:
        """A column of texts; None where it is missing."""
        texts = [text for b in self._batches for text in b.column(name).to_pylist()]
        return np.array(texts, dtype=object)[self._order]

    def where(self, chosen: np.ndarray) -> _Events:
        """Only the chosen events."""
        part = object.__new__(_Events)
        part._batches, part._order = self._batches, self._order[chosen]
        part.time_s, part.span = self.time_s[chosen], self.span[chosen]
        return part

    def first(self, spans: int) -> np.ndarray:
        """Index of each span's earliest event; -1 without one."""
        index = np.full(spans, -1, dtype=np.int64)
        index[self.span[::-1]] = np.arange(len(self.span))[::-1]
        return index


def engine_rows(
    spans: Sequence[pa.RecordBatch],
    journey: Sequence[pa.RecordBatch],
    count: int,
    refused: Counter[str],
) -> pa.RecordBatch | None:
    """Rows of the engine's spans.

    Args:
        spans: Raw request spans of a stretch of the file, both kinds.
        journey: Raw engine events of it, each batch of one label.
        count: Number of its request spans.
        refused: Counts what happens twice in a span though it happens once.
    """
    part = [b for b in spans if _label(b) == CORE_SPAN]
    if not part:
        return None
    columns: dict[str, np.ndarray | pa.Array] = {}
    at: dict[str, np.ndarray] = {}
    events: dict[str, _Events] = {}
    for label, name in ENGINE_MOMENTS.items():
        of_label = _Events(journey, label)
        if label == "SCHEDULED":
            is_resume = of_label.texts("schedule_kind") == "RESUME"
            resumed, of_label = of_label.where(is_resume), of_label.where(~is_resume)
        events[name] = of_label
        at[name] = of_label.first(count)
        _count_repeated(of_label, at[name], f"journey.{label}", refused)
        columns[f"{name}_s"] = _pick(of_label.time_s, at[name], np.nan)
        columns[f"{name}_step"] = _pick(of_label.integers("step"), at[name], -1)
    wall_ns = events["queued"].integers("wall_ns")
    wall_s = np.where(wall_ns > 0, wall_ns * NANOSECOND, np.nan)
    columns["wall_s"] = _pick(wall_s, at["queued"], np.nan)
    totals = [
        _pick(events[name].integers("prefill_total"), at[name], -1)
        for name in ("queued", "scheduled")
    ]
    columns["prefill_total"] = np.maximum(*totals)
    for column, source, name in (
        ("cached_tokens", "prefill_done", "scheduled"),
        ("decode_done", "decode_done", "finished"),
        ("decode_max", "decode_max", "queued"),
    ):
        columns[column] = _pick(events[name].integers(source), at[name], -1)
    everything = _Events(journey)
    columns["preemptions"] = np.full(count, -1, dtype=np.int64)
    np.maximum.at(columns["preemptions"], everything.span, everything.integers("preemptions"))
    preempted = _Events(journey, "PREEMPTED")
    for column, of_label, source in (
        ("preempted_steps", preempted, "step"),
        ("preempted_outputs", preempted, "decode_done"),
        ("resumed_steps", resumed, "step"),
        ("resumed_cached", resumed, "prefill_done"),
    ):
        columns[column] = _lists(of_label.span, of_label.integers(source), count)
    status = _pick(events["finished"].texts("finish_status"), at["finished"], None)
    return _rows(part, columns, {"status": status}, ENGINE_SCHEMA)


def front_rows(
    spans: Sequence[pa.RecordBatch],
    api: Sequence[pa.RecordBatch],
    count: int,
    refused: Counter[str],
) -> pa.RecordBatch | None:
    """Rows of the API server's spans; the arguments are as in :func:`engine_rows`."""
    part = [b for b in spans if _label(b) == API_SPAN]
    if not part:
        return None
    columns: dict[str, np.ndarray | pa.Array] = {}
    for label, name in FRONT_MOMENTS.items():
        of_label = _Events(api, label)
        at = of_label.first(count)
        _count_repeated(of_label, at, f"api.{label}", refused)
        columns[f"{name}_s"] = _pick(of_label.time_s, at, np.nan)
    return _rows(part, columns, {}, FRONT_SCHEMA)


def _rows(
    spans: list[pa.RecordBatch],
    columns: dict[str, np.ndarray | pa.Array],
    texts: dict[str, np.ndarray],
    schema: pa.Schema,
) -> pa.RecordBatch:
    """Rows of the given spans in the order of the file."""
    table = pa.Table.from_batches(spans).combine_chunks()
    number = np.from_dlpack(table["span"].chunk(0))
    order, rows = numbers(np.argsort(number, kind="stable")), np.sort(number)
    taken = numbers(rows)
    arrays = []
    for field in schema:
        if field.name in columns:
            column = columns[field.name]
            array = numbers(column) if isinstance(column, np.ndarray) else column
            arrays.append(array.take(taken))
        elif field.name in texts:
            arrays.append(strings([text or "" for text in texts[field.name][rows]]))
        else:
            arrays.append(table[field.name].chunk(0).take(order))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _lists(owner: np.ndarray, values: np.ndarray, count: int) -> pa.Array:
    """A list for each owner 0, ..., count - 1: its values in their order."""
    ends = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=count))))
    ordered = values[np.argsort(owner, kind="stable")]
    return pa.ListArray.from_arrays(numbers(ends.astype(np.int32)), numbers(ordered))


def _label(batch: pa.RecordBatch) -> str:
    return batch.column("label")[0].as_py()


def _integers(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """A column; -1 where it is missing, which it is in all rows of a shape or in none."""
    column = batch.column(name)
    if column.null_count:
        return np.full(len(column), -1, dtype=np.int64)
    return np.from_dlpack(column)


def _times(batch: pa.RecordBatch) -> np.ndarray:
    """Monotonic time in seconds; not-a-number where the writer's is none or absurd."""
    if not batch.column("monotonic_ns").null_count:
        nanoseconds: np.ndarray = np.from_dlpack(batch.column("monotonic_ns"))
        return nanoseconds * NANOSECOND
    seconds = np.from_dlpack(batch.column("monotonic_s"))
    return np.where(np.abs(seconds) < MAX_SECONDS, seconds, np.nan)


def _count_repeated(events: _Events, first: np.ndarray, what: str, refused: Counter[str]) -> None:
    repeated = len(events.span) - int((first >= 0).sum())
    if repeated:
        refused[f"{what} twice in a span"] += repeated


def _pick(column: np.ndarray, index: np.ndarray, missing: float | None) -> np.ndarray:
    """Values at an index, ``missing`` where it is negative."""
    picked = np.full(len(index), missing, dtype=column.dtype)
    picked[index >= 0] = column[index[index >= 0]]
    return picked
