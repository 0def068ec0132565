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
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pinn.common.files import ReadReport
from pinn.server.readers.request_spans import ENGINE_MOMENTS, FRONT_MOMENTS
from pinn.server.traces.steps import as_batch

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


def canonical_requests(
    engine: pa.Table,
    front: pa.Table,
    order: RequestOrder,
    filled: pa.Table | None = None,
    batch_rows: int = 2**16,
) -> Iterator[pa.RecordBatch]:
    """The requests, a batch at a time, so that big files need little memory.

    Args:
        engine: Raw rows of the engine's spans.
        front: Raw rows of the API server's spans.
        order: Of the requests.
        filled: Columns that take the place of those of the same name: segment and state.
        batch_rows: Rows per batch.
    """
    for begin in range(0, len(order.engine_row), batch_rows):
        part = slice(begin, begin + batch_rows)
        batch = _assemble(engine, front, order.engine_row[part], order.front_row[part])
        if filled is not None:
            for name in filled.column_names:
                place = REQUEST_SCHEMA.get_field_index(name)
                column = filled[name][part].combine_chunks().cast(REQUEST_SCHEMA.field(name).type)
                batch = batch.set_column(place, name, column)
        yield batch


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
    engine: pa.Table, front: pa.Table, engine_row: np.ndarray, front_row: np.ndarray
) -> pa.RecordBatch:
    """Requests from pairs of an engine span (or -1) and an API span (or -1)."""
    behind_rows, behind_index = _stretch(engine, engine_row)
    before_rows, before_index = _stretch(front, front_row)

    def behind(name: str) -> pa.Array:
        return _known(behind_rows[name]).take(behind_index)

    def before(name: str) -> pa.Array:
        return _known(before_rows[name]).take(before_index)

    values: dict[str, pa.Array] = {}
    for field in REQUEST_SCHEMA:
        if field.name in engine.column_names and field.name in front.column_names:
            values[field.name] = pc.coalesce(behind(field.name), before(field.name))
        elif field.name in engine.column_names:
            values[field.name] = behind(field.name)
        elif field.name in front.column_names:
            values[field.name] = before(field.name)
    values["api_request_id"] = before("request_id")
    values["segment"] = pa.nulls(len(engine_row), pa.int32())
    for name, of_the_engine in (
        ("prompt_tokens", "prefill_total"),
        ("output_tokens", "decode_done"),
        ("max_tokens", "decode_max"),
    ):
        values[name] = pc.coalesce(behind(of_the_engine), values[name])
    values["issue"] = _issues(values, engine_row, front_row)
    values |= _targets(values)
    values |= {name: pa.nulls(len(engine_row), pa.float64()) for name in STATE_COLUMNS}
    return as_batch(values, REQUEST_SCHEMA)


def _stretch(table: pa.Table, rows: np.ndarray) -> tuple[pa.Table, pa.Array]:
    """The stretch of a table that holds the rows, and their places in it; null for -1."""
    held = rows[rows >= 0]
    low, high = (int(held.min()), int(held.max()) + 1) if len(held) else (0, 0)
    return table.slice(low, high - low), pa.array(rows - low, mask=rows < 0)


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


def _issues(values: dict[str, pa.Array], engine_row: np.ndarray, front_row: np.ndarray) -> pa.Array:
    """The first thing that is wrong with each request; null where nothing is."""
    moment = {
        name: values[f"{name}_s"].to_numpy(zero_copy_only=False)
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


def _targets(values: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """What alpha is fitted to; null where an end is missing or the order is wrong."""
    targets = {}
    for name, (begin, end) in TARGETS.items():
        seconds = pc.subtract(values[end], values[begin])
        targets[name] = pc.if_else(pc.greater_equal(seconds, 0), seconds, None)
    further = pc.subtract(values["output_tokens"], 1)
    decoding = pc.subtract(values["finished_s"], values["first_token_s"])
    per_token = pc.divide(decoding, pc.if_else(pc.greater(further, 0), further, None))
    targets["output_token_s"] = pc.if_else(pc.greater_equal(per_token, 0), per_token, None)
    return targets
