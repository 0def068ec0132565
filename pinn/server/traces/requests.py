"""The canonical table of requests: a row each, its moments in seconds, and alpha's targets.

The engine's span (``llm_core``) is joined to the API server's (``llm_request``) by the parent span:
their request ids differ. All moments are on the server host's monotonic clock; a step number tells
in which engine step an event happened.

=========================  ====  =========================================================
column                     unit  meaning
=========================  ====  =========================================================
request_id                       of the engine; of the API server where no engine span is there
server, segment                  as in the steps; segment null where no step of it is there
arrived_s ... departed_s   s     moments, null where the event is missing
queued_step ...                  engine step of the event
prompt_tokens                    length of the prompt
cached_tokens                    of them, served from the prefix cache when first scheduled
output_tokens                    tokens generated
preempted_steps                  step of each preemption; ``preempted_outputs``: tokens made then
resumed_steps                    step of each resumption; ``resumed_cached``: tokens cached then
status                           how it ended
issue                            first thing that is wrong or missing; null for a whole request
arrival_to_queue_s         s     ARRIVED to QUEUED
queue_to_schedule_s        s     QUEUED to first SCHEDULED
schedule_to_first_token_s  s     first SCHEDULED to FIRST_TOKEN
output_token_s             s     FIRST_TOKEN to FINISHED per further token
completion_s               s     FINISHED to DEPARTED
state_*                          the last sampled step before QUEUED: its queue depths, KV usage and
                                 cycle (``state_step_s``, the last good one), ``state_age_s`` ago
=========================  ====  =========================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pinn.common.files import ReadReport
from pinn.server.readers.request_spans import ENGINE_MOMENTS, FRONT_MOMENTS
from pinn.server.traces.steps import Columns, as_batch

TARGETS = {
    "arrival_to_queue_s": ("arrived_s", "queued_s"),
    "queue_to_schedule_s": ("queued_s", "scheduled_s"),
    "schedule_to_first_token_s": ("scheduled_s", "first_token_s"),
    "completion_s": ("finished_s", "departed_s"),
}

STATE_COLUMNS = (
    "state_waiting_depth",
    "state_running_depth",
    "state_kv_usage",
    "state_step_s",
    "state_age_s",
)

_STEPS_LIST = pa.list_(pa.int64())
REQUEST_SCHEMA = pa.schema(
    {
        "request_id": pa.string(),
        "api_request_id": pa.string(),
        "server": pa.int32(),
        "segment": pa.int32(),
        "wall_s": pa.float64(),
        **{
            f"{name}_s": pa.float64()
            for name in (*FRONT_MOMENTS.values(), *ENGINE_MOMENTS.values())
        },
        **{f"{name}_step": pa.int64() for name in ENGINE_MOMENTS.values()},
        "prompt_tokens": pa.int64(),
        "cached_tokens": pa.int64(),
        "output_tokens": pa.int64(),
        "max_tokens": pa.int64(),
        "preemptions": pa.int64(),
        "preempted_steps": _STEPS_LIST,
        "preempted_outputs": _STEPS_LIST,
        "resumed_steps": _STEPS_LIST,
        "resumed_cached": _STEPS_LIST,
        "status": pa.string(),
        "route": pa.string(),
        "model": pa.string(),
        "issue": pa.string(),
        **dict.fromkeys(TARGETS, pa.float64()),
        "output_token_s": pa.float64(),
        **dict.fromkeys(STATE_COLUMNS, pa.float64()),
        "extra": pa.string(),
    }
)


class RequestOrder:
    """Which spans make a request: the engine's with their parents, then lone API spans.

    Attributes:
        engine_row: Row of the engine's span of each request; -1 without one.
        front_row: Row of the API server's span; -1 without one.
        report: Counts of spans; second copies of one are refused.
    """

    def __init__(self, engine: pa.Table, front: pa.Table) -> None:
        """Join by the parent's id, and order by the first moment.

        Args:
            engine: Raw rows of the engine's spans.
            front: Raw rows of the API server's spans.
        """
        refused: Counter[str] = Counter()
        engines, fronts = _first_copies(engine, refused), _first_copies(front, refused)
        ids = front["span_id"].combine_chunks().take(pa.array(fronts))
        parents = engine["parent_id"].combine_chunks().take(pa.array(engines))
        found = pc.fill_null(pc.index_in(parents, value_set=ids), -1).to_numpy()
        if len(fronts):
            found = np.where(found < 0, -1, fronts[found])
        lone = fronts[~np.isin(fronts, found)]
        engine_row = np.concatenate((engines, np.full(len(lone), -1)))
        front_row = np.concatenate((found, lone)).astype(np.int64)
        moments = [
            _at(front, "arrived_s", front_row),
            _at(engine, "queued_s", engine_row),
            _at(engine, "scheduled_s", engine_row),
        ]
        first = np.where(np.isnan(moments[0]), moments[1], moments[0])
        order = np.argsort(np.where(np.isnan(first), moments[2], first), kind="stable")
        self.engine_row, self.front_row = engine_row[order], front_row[order]
        read = engine.num_rows + front.num_rows
        accepted = read - refused.total()
        self.report = ReadReport("request spans", "", "", read, accepted, dict(refused))


#: Rows that are made at a time.
_BATCH_ROWS = 2**16

#: Columns that the engine's events tell better than its spans.
_OF_EVENTS = {
    "prompt_tokens": "prefill_total",
    "output_tokens": "decode_done",
    "max_tokens": "decode_max",
}


def canonical_requests(
    engine: pa.Table,
    front: pa.Table,
    order: RequestOrder,
    filled: pa.Table | None = None,
    schema: pa.Schema = REQUEST_SCHEMA,
) -> Iterator[pa.RecordBatch]:
    """The requests, a batch at a time, so that big files need little memory.

    Args:
        engine: Raw rows of the engine's spans.
        front: Raw rows of the API server's spans.
        order: Of the requests.
        filled: The columns that are not in the spans, segment and state; default: nulls.
        schema: The columns to make: all or some of them.
    """
    for begin in range(0, len(order.engine_row), _BATCH_ROWS):
        part = slice(begin, begin + _BATCH_ROWS)
        given = {} if filled is None else {n: filled[n][part] for n in filled.column_names}
        rows = order.engine_row[part], order.front_row[part]
        yield _assemble(engine, front, *rows, given, schema)


def _first_copies(spans: pa.Table, refused: Counter[str]) -> np.ndarray:
    """Rows whose span id was not seen before; spans without an id have no copies."""
    ids = spans["span_id"].combine_chunks()
    codes = pc.dictionary_encode(ids).indices.to_numpy()
    kept = np.zeros(len(ids), dtype=bool)
    kept[np.unique(codes, return_index=True)[1]] = True
    kept |= pc.equal(ids, "").to_numpy(zero_copy_only=False)
    if not kept.all():
        refused["span written twice"] += int((~kept).sum())
    return np.flatnonzero(kept)


def _at(table: pa.Table, name: str, rows: np.ndarray) -> np.ndarray:
    values = np.append(table[name].to_numpy(), np.nan)
    return values[rows]  # row -1 is the appended one


def _assemble(
    engine: pa.Table,
    front: pa.Table,
    engine_row: np.ndarray,
    front_row: np.ndarray,
    given: Mapping[str, pa.ChunkedArray],
    schema: pa.Schema,
) -> pa.RecordBatch:
    """Requests from pairs of an engine span (or -1) and an API span (or -1)."""
    behind, before = _known_rows(engine, engine_row), _known_rows(front, front_row)

    @cache
    def column(name: str) -> pa.Array:
        """What the engine tells, else what the API server tells, else what is given."""
        names = [_OF_EVENTS[name], name] if name in _OF_EVENTS else [name]
        told = [behind(n) for n in names if n in engine.column_names]
        if name in front.column_names:
            told.append(before(name))
        if told:
            return pc.coalesce(*told)
        return given.get(name, pa.nulls(len(engine_row)))

    made: dict[str, Callable[[], pa.Array]] = {
        "api_request_id": lambda: before("request_id"),
        "issue": lambda: _issues(column, engine_row, front_row),
        "output_token_s": lambda: _output_token_s(column),
        **{name: partial(_elapsed, column, *ends) for name, ends in TARGETS.items()},
    }
    return as_batch(column, made, schema)


def _known_rows(table: pa.Table, rows: np.ndarray) -> Columns:
    """Rows of a table; null for row -1. Only the stretch they lie in is touched."""
    held = rows[rows >= 0]
    low, high = (int(held.min()), int(held.max()) + 1) if len(held) else (0, 0)
    stretch, places = table.slice(low, high - low), pa.array(rows - low, mask=rows < 0)
    return lambda name: _known(stretch[name]).take(places)


def _known(column: pa.ChunkedArray) -> pa.Array:
    """The column with null for -1, not-a-number and the empty text."""
    whole = column.combine_chunks()
    if pa.types.is_integer(whole.type):
        return pc.if_else(pc.less(whole, 0), None, whole)
    if pa.types.is_floating(whole.type):
        return pc.if_else(pc.is_nan(whole), None, whole)
    if pa.types.is_string(whole.type):
        return pc.if_else(pc.equal(whole, ""), None, whole)
    return whole


def _issues(column: Columns, engine_row: np.ndarray, front_row: np.ndarray) -> pa.Array:
    """The first thing that is wrong with each request; null where nothing is."""
    moment = {
        name: column(f"{name}_s").to_numpy(zero_copy_only=False)
        for name in (*ENGINE_MOMENTS.values(), *FRONT_MOMENTS.values())
    }
    order = ("arrived", "queued", "scheduled", "first_token", "finished", "departed")
    disordered = np.zeros(len(engine_row), dtype=bool)
    latest = np.full(len(engine_row), -np.inf)
    for name in order:
        now = np.nan_to_num(moment[name], nan=-np.inf)
        disordered |= np.isfinite(now) & (now < latest)
        latest = np.maximum(latest, now)
    problems = {
        "no engine span": engine_row < 0,
        "no parent span": front_row < 0,
        "aborted": np.isfinite(moment["aborted"]),
        **{f"no {label}": np.isnan(moment[name]) for label, name in ENGINE_MOMENTS.items()},
        "no ARRIVED": np.isnan(moment["arrived"]),
        "no DEPARTED": np.isnan(moment["departed"]),
        "events out of order": disordered,
    }
    issue = np.full(len(engine_row), None, dtype=object)
    for name, found in reversed(problems.items()):
        issue[found] = name
    return pa.array(issue, pa.string())


def _elapsed(column: Columns, begin: str, end: str) -> pa.Array:
    """Seconds between two moments; null where one is missing or the order is wrong."""
    return _not_negative(pc.subtract(column(end), column(begin)))


def _output_token_s(column: Columns) -> pa.Array:
    """Seconds per output token after the first."""
    further = pc.subtract(column("output_tokens"), 1)
    decoding = pc.subtract(column("finished_s"), column("first_token_s"))
    return _not_negative(pc.divide(decoding, pc.if_else(pc.greater(further, 0), further, None)))


def _not_negative(seconds: pa.Array) -> pa.Array:
    return pc.if_else(pc.greater_equal(seconds, 0), seconds, None)
