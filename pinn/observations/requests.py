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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pinn.sources.report import ReadReport
from pinn.sources.traces.request_spans import ENGINE_MOMENTS, FRONT_MOMENTS

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


def canonical_requests(engine: pa.Table, front: pa.Table) -> tuple[pa.Table, ReadReport]:
    """Join the spans of both sides to requests.

    Args:
        engine: Raw rows of the engine's spans.
        front: Raw rows of the API server's spans.

    Returns:
        The requests (segments still null), in order of their first moment; and the counts of spans,
        of which second copies are refused.
    """
    refused: Counter[str] = Counter()
    read = engine.num_rows + front.num_rows
    engine, front = (_first_copies(spans, refused) for spans in (engine, front))
    parents = pc.index_in(engine["parent_id"], value_set=front["span_id"].combine_chunks())
    parent = pc.fill_null(parents, -1).to_numpy().astype(np.int64)
    childless = np.ones(front.num_rows, dtype=bool)
    childless[parent[parent >= 0]] = False
    # Requests: every engine span with its parent, then the API spans without an engine span.
    engine_of = np.concatenate((np.arange(engine.num_rows), np.full(childless.sum(), -1)))
    front_of = np.concatenate((parent, np.flatnonzero(childless)))
    table = _assemble(engine, front, engine_of, front_of)
    accepted = read - refused.total()
    return table, ReadReport("request spans", "", "", read, accepted, dict(refused))


def _first_copies(spans: pa.Table, refused: Counter[str]) -> pa.Table:
    """Spans whose id was not seen before; spans without an id have no copies."""
    ids = spans["span_id"].combine_chunks()
    codes = pc.dictionary_encode(ids).indices.to_numpy()
    kept = np.zeros(len(ids), dtype=bool)
    kept[np.unique(codes, return_index=True)[1]] = True
    kept |= pc.equal(ids, "").to_numpy(zero_copy_only=False)
    if kept.all():
        return spans
    refused["span written twice"] += int((~kept).sum())
    return spans.filter(pa.array(kept))


def _assemble(
    engine: pa.Table, front: pa.Table, engine_of: np.ndarray, front_of: np.ndarray
) -> pa.Table:
    """Requests from pairs of an engine span (or -1) and an API span (or -1)."""
    of_engine = pa.array(engine_of, mask=engine_of < 0)
    of_front = pa.array(front_of, mask=front_of < 0)

    def behind(name: str) -> pa.Array:
        return _known(engine[name]).take(of_engine)

    def before(name: str) -> pa.Array:
        return _known(front[name]).take(of_front)

    values: dict[str, pa.Array] = {}
    for field in REQUEST_SCHEMA:
        if field.name in engine.column_names and field.name in front.column_names:
            values[field.name] = pc.coalesce(behind(field.name), before(field.name))
        elif field.name in engine.column_names:
            values[field.name] = behind(field.name)
        elif field.name in front.column_names:
            values[field.name] = before(field.name)
    values["api_request_id"] = before("request_id")
    values["segment"] = pa.nulls(len(engine_of), pa.int32())
    for name, of_the_engine in (
        ("prompt_tokens", "prefill_total"),
        ("output_tokens", "decode_done"),
        ("max_tokens", "decode_max"),
    ):
        values[name] = pc.coalesce(behind(of_the_engine), values[name])
    values["issue"] = _issues(values, engine_of, front_of)
    values |= _targets(values)
    values |= {name: pa.nulls(len(engine_of), pa.float64()) for name in STATE_COLUMNS}
    table = pa.table({f.name: values[f.name].cast(f.type) for f in REQUEST_SCHEMA})
    first = pc.coalesce(table["arrived_s"], table["queued_s"], table["scheduled_s"])
    return table.take(pc.sort_indices(first))


def _known(column: pa.ChunkedArray) -> pa.Array:
    """The column with null for -1 and not-a-number."""
    whole = column.combine_chunks()
    if pa.types.is_integer(whole.type):
        return pc.if_else(pc.less(whole, 0), None, whole)
    if pa.types.is_floating(whole.type):
        return pc.if_else(pc.is_nan(whole), None, whole)
    return whole


def _issues(values: dict[str, pa.Array], engine_of: np.ndarray, front_of: np.ndarray) -> pa.Array:
    """The first thing that is wrong with each request; null where nothing is."""
    moment = {
        name: values[f"{name}_s"].to_numpy(zero_copy_only=False)
        for name in (*ENGINE_MOMENTS.values(), *FRONT_MOMENTS.values())
    }
    order = ("arrived", "queued", "scheduled", "first_token", "finished", "departed")
    disordered = np.zeros(len(engine_of), dtype=bool)
    latest = np.full(len(engine_of), -np.inf)
    for name in order:
        now = np.nan_to_num(moment[name], nan=-np.inf)
        disordered |= np.isfinite(now) & (now < latest)
        latest = np.maximum(latest, now)
    problems = {
        "no engine span": engine_of < 0,
        "no parent span": front_of < 0,
        "aborted": np.isfinite(moment["aborted"]),
        **{f"no {label}": np.isnan(moment[name]) for label, name in ENGINE_MOMENTS.items()},
        "no ARRIVED": np.isnan(moment["arrived"]),
        "no DEPARTED": np.isnan(moment["departed"]),
        "events out of order": disordered,
    }
    issue = np.full(len(engine_of), None, dtype=object)
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
