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

NANOSECOND = 1e-9

#: Event -> name of its moment.
CORE_MOMENTS = {
    "QUEUED": "queued",
    "SCHEDULED": "scheduled",
    "FIRST_TOKEN": "first_token",
    "FINISHED": "finished",
}
API_MOMENTS = {
    "ARRIVED": "arrived",
    "HANDOFF_TO_CORE": "handoff",
    "FIRST_RESPONSE_FROM_CORE": "first_response",
    "DEPARTED": "departed",
    "ABORTED": "aborted",
}
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
        **{f"{name}_s": pa.float64() for name in (*API_MOMENTS.values(), *CORE_MOMENTS.values())},
        **{f"{name}_step": pa.int64() for name in CORE_MOMENTS.values()},
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


def canonical_requests(
    spans: pa.Table, journey: pa.Table, api: pa.Table
) -> tuple[pa.Table, dict[str, ReadReport]]:
    """Join spans and their events to requests.

    Args:
        spans: Raw spans ``llm_core`` and ``llm_request``.
        journey: Raw engine events.
        api: Raw API server events.

    Returns:
        The requests (segments still null), in order of their first moment; and two reports: of the
        spans (duplicates are refused) and of their events (those of refused spans, and repetitions
        of what happens once).
    """
    refused_spans: Counter[str] = Counter()
    refused_events: Counter[str] = Counter()
    kept = _first_copies(spans, refused_spans)
    core = spans.filter(pa.array(kept & _is(spans, "llm_core")))
    front = spans.filter(pa.array(kept & _is(spans, "llm_request")))
    core_row = _row_of_span(core, spans.num_rows)
    front_row = _row_of_span(front, spans.num_rows)
    engine = _engine_columns(journey, core_row, core.num_rows, refused_events)
    server = _api_columns(api, front_row, front.num_rows, refused_events)

    parents = pc.index_in(core["parent_id"], value_set=front["span_id"].combine_chunks())
    parent = pc.fill_null(parents, -1).to_numpy().astype(np.int64)
    childless = np.ones(front.num_rows, dtype=bool)
    childless[parent[parent >= 0]] = False
    # Requests: every engine span with its parent, then the API spans without an engine span.
    core_of = np.concatenate((np.arange(core.num_rows), np.full(childless.sum(), -1)))
    front_of = np.concatenate((parent, np.flatnonzero(childless)))
    table = _assemble(core, front, engine, server, core_of, front_of)
    reports = {
        "request spans": _report("request spans", spans.num_rows, refused_spans),
        "request events": _report(
            "request events", journey.num_rows + api.num_rows, refused_events
        ),
    }
    return table, reports


def _report(source: str, read: int, refused: Counter[str]) -> ReadReport:
    return ReadReport(source, "", "", read, read - refused.total(), dict(refused))


def _is(table: pa.Table, label: str) -> np.ndarray:
    return pc.equal(table["label"], label).to_numpy()


def _first_copies(spans: pa.Table, refused: Counter[str]) -> np.ndarray:
    """Rows that are the first of their span id; rows without an id have no copies."""
    ids = spans["span_id"].combine_chunks()
    codes = pc.dictionary_encode(ids).indices.to_numpy() if len(ids) else np.zeros(0, np.int64)
    kept = np.zeros(len(ids), dtype=bool)
    kept[np.unique(codes, return_index=True)[1]] = True
    kept |= pc.equal(ids, "").to_numpy(zero_copy_only=False)
    if not kept.all():
        refused["span written twice"] = int((~kept).sum())
    return kept


def _row_of_span(part: pa.Table, spans: int) -> np.ndarray:
    """Span number -> row in a part of the spans; -1 for the others."""
    row = np.full(spans, -1, dtype=np.int64)
    row[part["span"].to_numpy()] = np.arange(part.num_rows)
    return row


def _nanoseconds(events: pa.Table) -> np.ndarray:
    """Monotonic time of events; 0 where the seconds are no number."""
    seconds = pc.fill_null(events["monotonic_s"], 0.0).to_numpy()
    seconds = np.where(np.isfinite(seconds) & (np.abs(seconds) < 9e9), seconds, 0.0)
    whole = np.rint(seconds / NANOSECOND).astype(np.int64)
    exact = events["monotonic_ns"]
    return np.where(pc.is_null(exact).to_numpy(), whole, pc.fill_null(exact, 0).to_numpy())


def _owners(events: pa.Table, row_of_span: np.ndarray, refused: Counter[str]) -> np.ndarray:
    span = events["span"].to_numpy()
    owner = row_of_span[span] if len(row_of_span) else np.full(len(span), -1)
    if (owner < 0).any():
        refused["event of a refused or wrong span"] += int((owner < 0).sum())
    return owner


def _firsts(
    owner: np.ndarray, time: np.ndarray, wanted: np.ndarray, count: int, what: str,
    refused: Counter[str],
) -> np.ndarray:  # fmt: skip
    """Per owner the index of its earliest wanted event; -1 without one. Repetitions are counted."""
    rows = np.flatnonzero(wanted & (owner >= 0))
    rows = rows[np.lexsort((time[rows], owner[rows]))]
    owners, first = np.unique(owner[rows], return_index=True)
    found = np.full(count, -1, dtype=np.int64)
    found[owners] = rows[first]
    if len(owners) < len(rows):
        refused[f"{what} written twice in a span"] += len(rows) - len(owners)
    return found


def _engine_columns(
    journey: pa.Table, core_row: np.ndarray, count: int, refused: Counter[str]
) -> dict[str, np.ndarray | pa.Array]:
    owner = _owners(journey, core_row, refused)
    time = _nanoseconds(journey)
    numbers = {
        name: pc.fill_null(journey[name], -1).to_numpy()
        for name in ("step", "prefill_done", "prefill_total", "decode_done", "decode_max",
                     "preemptions", "wall_ns")
    }  # fmt: skip
    is_resume = pc.fill_null(pc.equal(journey["schedule_kind"], "RESUME"), False).to_numpy()
    columns: dict[str, np.ndarray | pa.Array] = {}
    at: dict[str, np.ndarray] = {}
    for label, name in CORE_MOMENTS.items():
        at[name] = _firsts(
            owner, time, _is(journey, label) & ~is_resume, count, f"journey.{label}", refused
        )
        columns[f"{name}_s"] = _pick(time * NANOSECOND, at[name], np.nan)
        columns[f"{name}_step"] = _pick(numbers["step"], at[name], -1)
    columns["wall_s"] = _pick(numbers["wall_ns"] * NANOSECOND, at["queued"], np.nan)
    totals = [_pick(numbers["prefill_total"], at[name], -1) for name in ("queued", "scheduled")]
    columns["engine_prompt_tokens"] = np.maximum(*totals)
    columns["cached_tokens"] = _pick(numbers["prefill_done"], at["scheduled"], -1)
    columns["engine_output_tokens"] = _pick(numbers["decode_done"], at["finished"], -1)
    columns["engine_max_tokens"] = _pick(numbers["decode_max"], at["queued"], -1)
    columns["preemptions"] = _maximum(owner, numbers["preemptions"], count)
    status = (
        journey["finish_status"].take(pa.array(np.maximum(at["finished"], 0)))
        if (journey.num_rows)
        else pa.nulls(count, pa.string())
    )
    columns["status"] = pc.if_else(pa.array(at["finished"] >= 0), status, None)
    preempted = np.flatnonzero(_is(journey, "PREEMPTED") & (owner >= 0))
    columns["preempted_steps"] = _lists(owner, numbers["step"], time, preempted, count)
    columns["preempted_outputs"] = _lists(owner, numbers["decode_done"], time, preempted, count)
    resumed = np.flatnonzero(_is(journey, "SCHEDULED") & is_resume & (owner >= 0))
    columns["resumed_steps"] = _lists(owner, numbers["step"], time, resumed, count)
    columns["resumed_cached"] = _lists(owner, numbers["prefill_done"], time, resumed, count)
    return columns


def _api_columns(
    api: pa.Table, front_row: np.ndarray, count: int, refused: Counter[str]
) -> dict[str, np.ndarray]:
    owner = _owners(api, front_row, refused)
    time = _nanoseconds(api)
    return {
        f"{name}_s": _pick(
            time * NANOSECOND,
            _firsts(owner, time, _is(api, label), count, f"api.{label}", refused),
            np.nan,
        )
        for label, name in API_MOMENTS.items()
    }


def _assemble(
    core: pa.Table,
    front: pa.Table,
    engine: dict[str, np.ndarray | pa.Array],
    server: dict[str, np.ndarray],
    core_of: np.ndarray,
    front_of: np.ndarray,
) -> pa.Table:
    """Requests from pairs of an engine span (or -1) and an API span (or -1)."""
    in_core, in_front = pa.array(core_of, mask=core_of < 0), pa.array(front_of, mask=front_of < 0)
    values: dict[str, pa.Array] = {}
    for name, column in (engine | server).items():
        index = in_front if name in server else in_core
        array = column if not isinstance(column, np.ndarray) else _nullable(column)
        values[name] = array.take(index)
    for name in ("route", "model"):
        values[name] = front[name].take(in_front)
    values["request_id"] = pc.coalesce(
        core["request_id"].take(in_core), front["request_id"].take(in_front)
    )
    values["api_request_id"] = front["request_id"].take(in_front)
    values["server"] = pc.coalesce(core["server"].take(in_core), front["server"].take(in_front))
    values["segment"] = pa.nulls(len(core_of), pa.int32())
    for name in ("prompt_tokens", "output_tokens", "max_tokens"):
        values[name] = pc.coalesce(
            values.pop(f"engine_{name}"), front[name].take(in_front), core[name].take(in_core)
        )
    values["extra"] = pc.coalesce(core["extra"].take(in_core), front["extra"].take(in_front))
    values["issue"] = _issues(values, core_of, front_of)
    values |= _targets(values)
    values |= {name: pa.nulls(len(core_of), pa.float64()) for name in STATE_COLUMNS}
    table = pa.table(
        {f.name: pa.chunked_array([_whole(values[f.name])]).cast(f.type) for f in REQUEST_SCHEMA}
    )
    first = pc.coalesce(table["arrived_s"], table["queued_s"], table["scheduled_s"])
    return table.take(pc.sort_indices(first))


def _issues(values: dict[str, pa.Array], core_of: np.ndarray, front_of: np.ndarray) -> pa.Array:
    """The first thing that is wrong with each request; null where nothing is."""
    moment = {
        name: _whole(values[f"{name}_s"]).to_numpy(zero_copy_only=False)
        for name in (*CORE_MOMENTS.values(), *API_MOMENTS.values())
    }
    order = ("arrived", "queued", "scheduled", "first_token", "finished", "departed")
    disordered = np.zeros(len(core_of), dtype=bool)
    latest = np.full(len(core_of), -np.inf)
    for name in order:
        now = np.nan_to_num(moment[name], nan=-np.inf)
        disordered |= np.isfinite(now) & (now < latest)
        latest = np.maximum(latest, now)
    problems = {
        "no engine span": core_of < 0,
        "no parent span": front_of < 0,
        "aborted": np.isfinite(moment["aborted"]),
        **{f"no {label}": np.isnan(moment[name]) for label, name in CORE_MOMENTS.items()},
        "no ARRIVED": np.isnan(moment["arrived"]),
        "no DEPARTED": np.isnan(moment["departed"]),
        "events out of order": disordered,
    }
    issue = np.full(len(core_of), None, dtype=object)
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


def _pick(values: np.ndarray, index: np.ndarray, missing: float) -> np.ndarray:
    if not len(values):
        return np.full(len(index), missing, dtype=values.dtype)
    return np.where(index >= 0, values[index], missing).astype(values.dtype)


def _nullable(column: np.ndarray) -> pa.Array:
    """-1 and not-a-number become null."""
    missing = np.isnan(column) if column.dtype.kind == "f" else column < 0
    return pa.array(column, mask=missing)


def _maximum(owner: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    highest = np.full(count, -1, dtype=np.int64)
    np.maximum.at(highest, owner[owner >= 0], values[owner >= 0])
    return highest


def _lists(
    owner: np.ndarray, values: np.ndarray, time: np.ndarray, rows: np.ndarray, count: int
) -> pa.Array:
    """Per owner the values of its rows in order of time."""
    rows = rows[np.lexsort((time[rows], owner[rows]))]
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner[rows], minlength=count))))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values[rows]))


def _whole(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
