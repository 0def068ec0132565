"""Table of request spans: each row has the times and counts of a span's events.

A span and its events are in the same line of a trace file. Each chunk of a file is therefore
converted while it is read, and only rows of requests are kept in memory, not events. Missing values
are -1, NaN or an empty string.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from jaxtyping import Shaped

from pinn.measurements.readers.wire import API_EVENTS
from pinn.measurements.schemas import SCHEMAS
from pinn.units import NANOSECOND

# Build Arrow columns from buffers, because ``pa.array`` imports pandas on its first call.


def numbers(values: Shaped[np.ndarray, " rows"]) -> pa.Array:
    """Return an array of numbers as an Arrow column.

    >>> numbers(np.array([1, 2])).to_pylist()
    [1, 2]
    """
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def strings(texts: Sequence[str]) -> pa.Array:
    """Return strings as an Arrow column.

    >>> strings(["a", "bc", "é"]).to_pylist()
    ['a', 'bc', 'é']
    """
    joined = "".join(texts)
    encoded = joined.encode()
    is_ascii = len(encoded) == len(joined)
    lengths = map(len, texts if is_ascii else [text.encode() for text in texts])
    ends = np.zeros(len(texts) + 1, dtype=np.int32)
    np.cumsum(np.fromiter(lengths, dtype=np.int32, count=len(texts)), out=ends[1:])
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(encoded))


# Rows of the table of requests, one per request span.

#: Upper bound, in seconds, of plausible values of a host's clock.
MAX_SECONDS = 2.0**32

ENGINE, FRONT = "engine", "front"

#: Names of time columns, without unit, by label of an event that occurs once in an engine span.
ENGINE_MOMENTS = {
    label: label.lower() for label in ("QUEUED", "SCHEDULED", "FIRST_TOKEN", "FINISHED")
}
_FRONT = ("arrived", "handoff", "first_response", "departed", "aborted")
FRONT_MOMENTS = dict(zip(API_EVENTS, _FRONT, strict=True))


Batches = Sequence[pa.RecordBatch]
Columns = dict[str, np.ndarray | pa.Array]
Names = Mapping[str, str]


class _Events:
    """Events of request spans with one label, such as QUEUED, in chronological order."""

    def __init__(self, batches: Batches, keep: str | None = None) -> None:
        self._batches = [b for b in batches if keep is None or label_of(b) == keep]
        time_s = np.concatenate([np.zeros(0), *map(_times, self._batches)])
        self._order = np.argsort(time_s, kind="stable")
        self.time_s, self.span = time_s[self._order], self.integers("span")

    def integers(self, name: str) -> np.ndarray:
        """Return a column of the events' integers by name; -1 in batches without this column."""
        parts = [_integers(b, name) for b in self._batches]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])[self._order]

    def texts(self, name: str) -> np.ndarray:
        """Return a column of the events' strings by name; None for a missing string."""
        texts = [text for b in self._batches for text in b.column(name).to_pylist()]
        return np.array(texts, dtype=object)[self._order]

    def where(self, chosen: np.ndarray) -> "_Events":
        """Select events by a mask or by indices."""
        part = object.__new__(_Events)
        part._batches, part._order = self._batches, self._order[chosen]
        part.time_s, part.span = self.time_s[chosen], self.span[chosen]
        return part

    def first(self, spans: int) -> np.ndarray:
        """Return the index of each span's earliest event; -1 if it has none."""
        index = np.full(spans, -1, dtype=np.int64)
        index[self.span[::-1]] = np.arange(len(self.span))[::-1]
        return index


def engine_rows(
    spans: Batches, journey: Batches, count: int, refused: Counter[str]
) -> pa.RecordBatch:
    """Return one row of event times and counts for each span of the engine.

    Args:
        spans: Raw spans of a chunk of the file.
        journey: Raw engine events of the chunk; all events of a record batch have one label.
        count: Number of request spans in the chunk, of the engine and the API server together.
        refused: Counter of events that repeat in a span but should occur only once.
    """
    events = {label: _Events(journey, label) for label in (*ENGINE_MOMENTS, "PREEMPTED")}
    scheduled, preempted = events["SCHEDULED"], events["PREEMPTED"]
    is_resume = scheduled.texts("schedule_kind") == "RESUME"
    resumed, events["SCHEDULED"] = scheduled.where(is_resume), scheduled.where(~is_resume)
    columns, at = _moments("journey", ENGINE_MOMENTS, events, count, refused)
    wall_ns = events["QUEUED"].integers("wall_ns")
    wall_s = np.where(wall_ns > 0, wall_ns * NANOSECOND, np.nan)
    columns["wall_s"] = _pick(wall_s, at["QUEUED"], np.nan)
    totals = {label: events[label].integers("prefill_total") for label in ("QUEUED", "SCHEDULED")}
    columns["prefill_total"] = np.maximum(*(_pick(t, at[label], -1) for label, t in totals.items()))
    for column, source, label in (
        *((f"{name}_step", "step", label) for label, name in ENGINE_MOMENTS.items()),
        ("cached_tokens", "prefill_done", "SCHEDULED"),
        ("decode_done", "decode_done", "FINISHED"),
        ("decode_max", "decode_max", "QUEUED"),
    ):
        columns[column] = _pick(events[label].integers(source), at[label], -1)
    everything = _Events(journey)
    preemptions = np.full(count, -1, dtype=np.int64)
    np.maximum.at(preemptions, everything.span, everything.integers("preemptions"))
    columns["preemptions"] = preemptions
    for column, of_label, source in (
        ("preempted_steps", preempted, "step"),
        ("preempted_outputs", preempted, "decode_done"),
        ("resumed_steps", resumed, "step"),
        ("resumed_cached", resumed, "prefill_done"),
    ):
        columns[column] = _lists(of_label.span, of_label.integers(source), count)
    status = _pick(events["FINISHED"].texts("finish_status"), at["FINISHED"], None)
    columns["status"] = strings([text or "" for text in status])
    return _rows(spans, columns, SCHEMAS[ENGINE])


def front_rows(spans: Batches, api: Batches, count: int, refused: Counter[str]) -> pa.RecordBatch:
    """Return one row for each span of the API server; arguments are as in :func:`engine_rows`."""
    events = {label: _Events(api, label) for label in FRONT_MOMENTS}
    columns, _ = _moments("api", FRONT_MOMENTS, events, count, refused)
    return _rows(spans, columns, SCHEMAS[FRONT])


def _moments(
    scope: str, names: Names, events: Mapping[str, _Events], count: int, refused: Counter[str]
) -> tuple[Columns, dict[str, np.ndarray]]:
    """Return the time of each span's first event of every label, and the index of this event.

    Times are columns in seconds, NaN without an event; indices are arrays by label. Repeated
    events are counted in ``refused``.
    """
    columns: Columns = {}
    at = {label: events[label].first(count) for label in names}
    for label, name in names.items():
        repeated = len(events[label].span) - int((at[label] >= 0).sum())
        if repeated:
            refused[f"{scope}.{label} twice in a span"] += repeated
        columns[f"{name}_s"] = _pick(events[label].time_s, at[label], np.nan)
    return columns, at


def _rows(spans: Batches, columns: Columns, schema: pa.Schema) -> pa.RecordBatch:
    """Return one row for each span, in the order of the file, from columns for all spans."""
    table = pa.Table.from_batches(spans).combine_chunks()
    number = np.from_dlpack(table["span"].chunk(0))
    order, rows = numbers(np.argsort(number, kind="stable")), numbers(np.sort(number))
    arrays = []
    for field in schema:
        column = columns.get(field.name)
        if column is None:
            arrays.append(table[field.name].chunk(0).take(order))
        else:
            whole = numbers(column) if isinstance(column, np.ndarray) else column
            arrays.append(whole.take(rows))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _lists(owner: np.ndarray, values: np.ndarray, count: int) -> pa.Array:
    """Return an Arrow column with the list of values for each owner from 0 to ``count`` - 1."""
    ends = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=count))))
    ordered = values[np.argsort(owner, kind="stable")]
    return pa.ListArray.from_arrays(numbers(ends.astype(np.int32)), numbers(ordered))


def label_of(batch: pa.RecordBatch) -> str:
    """Return the event or span label that all rows of a record batch have."""
    return batch.column("label")[0].as_py()


def _integers(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """Return an integer column of a record batch; all -1 if the batch lacks it."""
    column = batch.column(name)
    if column.null_count:
        return np.full(len(column), -1, dtype=np.int64)
    return np.from_dlpack(column)


def _times(batch: pa.RecordBatch) -> np.ndarray:
    """Return events' monotonic times in seconds; NaN for missing or impossible times."""
    if not batch.column("monotonic_ns").null_count:
        nanoseconds: np.ndarray = np.from_dlpack(batch.column("monotonic_ns"))
        return nanoseconds * NANOSECOND
    seconds = np.from_dlpack(batch.column("monotonic_s"))
    return np.where(np.abs(seconds) < MAX_SECONDS, seconds, np.nan)


def _pick(column: np.ndarray, index: np.ndarray, missing: float | None) -> np.ndarray:
    """Return a column's values at given indices; ``missing`` for negative indices."""
    picked = np.full(len(index), missing, dtype=column.dtype)
    picked[index >= 0] = column[index[index >= 0]]
    return picked
