"""Table of the requests in a trace: times in seconds, and the durations that alpha is fitted to.

Alpha are the coefficients of a request's time outside engine steps. The engine's span of a request
(``llm_core``) is joined to the API server's (``llm_request``), its parent span, since their request
ids differ. All times are on the server host's monotonic clock. Step numbers are those of the engine
steps in which events happened.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pinn.common.files import ReadReport
from pinn.measurements.readers.request_spans import ENGINE_MOMENTS, FRONT_MOMENTS
from pinn.measurements.schemas import SCHEMAS
from pinn.measurements.traces.steps import Canonical, Columns

TARGETS = {
    "arrival_to_queue_s": ("arrived_s", "queued_s"),
    "queue_to_schedule_s": ("queued_s", "scheduled_s"),
    "schedule_to_first_token_s": ("scheduled_s", "first_token_s"),
    "completion_s": ("finished_s", "departed_s"),
}

STATE_COLUMNS = tuple(
    f"state_{name}" for name in ("waiting_depth", "running_depth", "kv_usage", "step_s", "age_s")
)

_MOMENTS = (*FRONT_MOMENTS.values(), *ENGINE_MOMENTS.values())

#: Columns of a span's events with more precise values than the span's own column, by column of the
#: span.
_OF_EVENTS = {"prompt_tokens": "prefill_total", "output_tokens": "decode_done",
              "max_tokens": "decode_max"}  # fmt: skip


def canonical_requests(
    engine: pa.Table, front: pa.Table, release: Callable[[], None] = lambda: None
) -> Canonical:
    """Return the table of requests by time: engine spans with their parents, and API spans alone.

    Repeated spans are rejected. The columns ``segment`` and ``state_*``, which spans do not have,
    are initially null.

    Args:
        engine: Raw rows of the engine's spans.
        front: Raw rows of the API server's spans.
        release: Function that frees the memory of raw rows that were read.
    """
    refused: Counter[str] = Counter()
    engines, fronts = _first_copies(engine, refused), _first_copies(front, refused)
    ids = front["span_id"].combine_chunks().take(pa.array(fronts))
    parents = engine["parent_id"].combine_chunks().take(pa.array(engines))
    found = pc.fill_null(pc.index_in(parents, value_set=ids), -1).to_numpy()
    if len(fronts):
        found = np.where(found < 0, -1, fronts[found])
    lone = fronts[~np.isin(fronts, found)]
    behind, before = np.append(engines, np.full(len(lone), -1)), np.append(found, lone)
    rows = np.column_stack((behind, before.astype(np.int64)))
    first = np.full(len(rows), np.nan)
    moments = ((front, "arrived_s", 1), (engine, "queued_s", 0), (engine, "scheduled_s", 0))
    for table, name, side in moments:
        # Row -1 represents a missing span; it selects the appended NaN.
        values = np.append(table[name].to_numpy(), np.nan)
        first = np.where(np.isnan(first), values[rows[:, side]], first)
    rows = rows[np.argsort(first, kind="stable")]
    read = engine.num_rows + front.num_rows
    report = ReadReport("request spans", "", "", read, read - refused.total(), dict(+refused))
    given = {"engine_row": rows[:, 0], "front_row": rows[:, 1]}
    raw = partial(_columns, engine, front)
    return Canonical(SCHEMAS["requests"], rows, raw, _MADE, given, report, release)


def _first_copies(spans: pa.Table, refused: Counter[str]) -> np.ndarray:
    """Return the indices of the rows to keep: the first of each span id, and all without an id."""
    ids = spans["span_id"].combine_chunks()
    repeated = pd.Series(pc.dictionary_encode(ids).indices.to_numpy()).duplicated().to_numpy()
    copies = repeated & pc.not_equal(ids, "").to_numpy(zero_copy_only=False)
    refused["span written twice"] += int(copies.sum())
    return np.flatnonzero(~copies)


def _columns(engine: pa.Table, front: pa.Table, rows: np.ndarray) -> Columns:
    """Return a function that looks up a column in the engine's rows, else in the API server's."""
    behind, before = _known_rows(engine, rows[:, 0]), _known_rows(front, rows[:, 1])

    def column(name: str) -> pa.Array:
        if name == "api_request_id":
            return before("request_id")
        names = (_OF_EVENTS[name], name) if name in _OF_EVENTS else (name,)
        told = [behind(n) for n in names if n in engine.column_names]
        if name in front.column_names:
            told.append(before(name))
        return pc.coalesce(*told) if told else pa.nulls(len(rows))

    return column


def _known_rows(table: pa.Table, rows: np.ndarray) -> Columns:
    """Return a function that returns a column by name for given rows; null for row -1.

    Only the memory pages of these rows are read.
    """
    held = rows[rows >= 0]
    low, high = (int(held.min()), int(held.max()) + 1) if len(held) else (0, 0)
    stretch, places = table.slice(low, high - low), pa.array(rows - low, mask=rows < 0)
    return lambda name: _known(stretch[name]).take(places)


def _known(column: pa.ChunkedArray) -> pa.Array:
    """Replace -1, NaN and empty strings in a column with null."""
    whole = column.combine_chunks()
    if pa.types.is_list(whole.type):
        return whole
    if pa.types.is_integer(whole.type):
        missing = pc.less(whole, 0)
    else:
        missing = pc.is_nan(whole) if pa.types.is_floating(whole.type) else pc.equal(whole, "")
    return pc.if_else(missing, None, whole)


def _issues(column: Columns) -> pa.Array:
    """Return the first problem with each request's events, as a string; null if there is none."""

    def values(name: str) -> np.ndarray:
        return column(name).to_numpy(zero_copy_only=False)

    moment = {name: values(f"{name}_s") for name in _MOMENTS}
    disordered = np.zeros(len(moment["queued"]), dtype=bool)
    latest = np.full(len(disordered), -np.inf)
    for name in ("arrived", "queued", "scheduled", "first_token", "finished", "departed"):
        now = np.nan_to_num(moment[name], nan=-np.inf)
        disordered |= np.isfinite(now) & (now < latest)
        latest = np.maximum(latest, now)
    problems = {
        "no engine span": values("engine_row") < 0,
        "no parent span": values("front_row") < 0,
        "aborted": np.isfinite(moment["aborted"]),
        **{f"no {label}": np.isnan(moment[name]) for label, name in ENGINE_MOMENTS.items()},
        "no ARRIVED": np.isnan(moment["arrived"]),
        "no DEPARTED": np.isnan(moment["departed"]),
        "events out of order": disordered,
    }
    issue = np.full(len(disordered), None, dtype=object)
    for name, found in reversed(problems.items()):
        issue[found] = name
    return pa.array(issue, pa.string())


def _elapsed(begin: str, end: str, column: Columns) -> pa.Array:
    """Return each request's time between two events in seconds; null if missing or out of order."""
    return _not_negative(pc.subtract(column(end), column(begin)))


def _output_token_s(column: Columns) -> pa.Array:
    """Return each request's mean time per output token after the first, in seconds."""
    further = pc.subtract(column("output_tokens"), 1)
    decoding = pc.subtract(column("finished_s"), column("first_token_s"))
    return _not_negative(pc.divide(decoding, pc.if_else(pc.greater(further, 0), further, None)))


def _not_negative(seconds: pa.Array) -> pa.Array:
    return pc.if_else(pc.greater_equal(seconds, 0), seconds, None)


_MADE: dict[str, Callable[[Columns], pa.Array]] = {
    "issue": _issues,
    "output_token_s": _output_token_s,
    **{name: partial(_elapsed, *ends) for name, ends in TARGETS.items()},
}
