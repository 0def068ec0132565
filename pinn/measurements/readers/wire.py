"""Names on the wire of an instrumented vLLM (0.15.1): events, their attributes, their columns.

Older writings use other spellings; each is an alias: underscores for dots
(``prefill_done_tokens``), ``gen_ai.request_id``, and event names without their scope
(``ARRIVED`` for ``api.ARRIVED``).
"""

from dataclasses import dataclass

STEPS, SNAPSHOTS, JOURNEY, API, SPANS = "steps", "snapshots", "journey", "api", "spans"


@dataclass(frozen=True)
class Field:
    """An attribute of an event or span and the raw column it fills.

    Attributes:
        column: Name of the raw column; the unit, where there is one, is in the name.
        kind: Type of its value: int, float or str.
        names: Spellings on the wire, the current one first; of two present ones the earlier wins.
        required: Whether an event without it is refused.
    """

    column: str
    kind: type
    names: tuple[str, ...]
    required: bool = False


@dataclass(frozen=True)
class EventKind:
    """An event of the wire: the raw table its rows go to and the columns they fill."""

    table: str
    label: str
    fields: tuple[Field, ...]


def _field(column: str, kind: type, name: str, *more: str, required: bool = False) -> Field:
    spellings = (name, *more)
    aliases = tuple(s.replace(".", "_") for s in spellings)
    return Field(column, kind, tuple(dict.fromkeys((*spellings, *aliases))), required)


STEP_FIELDS = (
    _field("step_id", int, "step.id", required=True),
    _field("start_ns", int, "step.ts_start_ns", required=True),
    _field("duration_us", int, "step.duration_us"),
    _field("running_depth", int, "queue.running_depth"),
    _field("waiting_depth", int, "queue.waiting_depth"),
    _field("prefill_requests", int, "batch.num_prefill_reqs", required=True),
    _field("decode_requests", int, "batch.num_decode_reqs", required=True),
    _field("prefill_tokens", int, "batch.prefill_tokens", required=True),
    _field("decode_tokens", int, "batch.decode_tokens", required=True),
    _field("finished", int, "batch.num_finished"),
    _field("preempted", int, "batch.num_preempted"),
    _field("kv_blocks_total", int, "kv.blocks_total_gpu"),
    _field("kv_blocks_free", int, "kv.blocks_free_gpu"),
    _field("kv_usage", float, "kv.usage_gpu_ratio"),
)

SNAPSHOT_FIELDS = (
    _field("step_id", int, "step.id", required=True),
    _field("request_id", str, "request.id", required=True),
    _field("phase", str, "request.phase", required=True),
    _field("prompt_tokens", int, "request.num_prompt_tokens"),
    _field("computed_tokens", int, "request.num_computed_tokens", required=True),
    _field("output_tokens", int, "request.num_output_tokens"),
    _field("preemptions", int, "request.num_preemptions"),
    _field("scheduled_tokens", int, "request.scheduled_tokens_this_step", required=True),
    _field("kv_blocks_allocated", int, "kv.blocks_allocated_gpu"),
    _field("kv_blocks_cached", int, "kv.blocks_cached_gpu"),
    _field("effective_prompt_tokens", int, "request.effective_prompt_len"),
)

#: A journey event needs one of its two clocks; the nanoseconds win where both are there.
JOURNEY_FIELDS = (
    _field("monotonic_ns", int, "ts.monotonic_ns"),
    _field("monotonic_s", float, "ts.monotonic", "event.ts.monotonic"),
    _field("step", int, "scheduler.step"),
    _field("prefill_done", int, "prefill.done_tokens"),
    _field("prefill_total", int, "prefill.total_tokens"),
    _field("decode_done", int, "decode.done_tokens"),
    _field("decode_max", int, "decode.max_tokens"),
    _field("preemptions", int, "num_preemptions"),
    _field("schedule_kind", str, "schedule.kind"),
    _field("finish_status", str, "finish.status"),
)

API_FIELDS = (
    _field("monotonic_ns", int, "ts.monotonic_ns"),
    _field("monotonic_s", float, "event.ts.monotonic", "ts.monotonic"),
)

SPAN_FIELDS = (
    _field("request_id", str, "gen_ai.request.id", "gen_ai.request_id"),
    _field("route", str, "http.route"),
    _field("model", str, "gen_ai.response.model"),
    _field("prompt_tokens", int, "gen_ai.usage.prompt_tokens"),
    _field("output_tokens", int, "gen_ai.usage.completion_tokens"),
    _field("max_tokens", int, "gen_ai.request.max_tokens"),
)

JOURNEY_EVENTS = ("QUEUED", "SCHEDULED", "FIRST_TOKEN", "PREEMPTED", "FINISHED")
API_EVENTS = ("ARRIVED", "HANDOFF_TO_CORE", "FIRST_RESPONSE_FROM_CORE", "DEPARTED", "ABORTED")

#: Event name on the wire, aliases included -> what it is.
EVENT_KINDS: dict[str, EventKind] = {
    name: EventKind(table, label, fields)
    for table, prefix, labels, fields in (
        (STEPS, "step", ("BATCH_SUMMARY",), STEP_FIELDS),
        (SNAPSHOTS, "step", ("REQUEST_SNAPSHOT",), SNAPSHOT_FIELDS),
        (JOURNEY, "journey", JOURNEY_EVENTS, JOURNEY_FIELDS),
        (API, "api", API_EVENTS, API_FIELDS),
    )
    for label in labels
    for name in (f"{prefix}.{label}", label)
}

#: Spans that stand for a request: the engine's and, its parent, the API server's.
CORE_SPAN, API_SPAN = "llm_core", "llm_request"
REQUEST_SPANS = {name: EventKind(SPANS, name, SPAN_FIELDS) for name in (CORE_SPAN, API_SPAN)}

#: Spans that collect step events of a while; their number is no step id.
STEP_SPAN_PREFIX = "scheduler_steps_"

#: Attributes that only repeat others (the event's name and what follows from it; start + duration;
#: prefill + decode tokens): they fill no column and are not decoded.
ECHOES = ("event.type", "event_type", "phase", "step.ts_end_ns", "step_ts_end_ns",
          "batch.scheduled_tokens", "batch_scheduled_tokens")  # fmt: skip

#: Seconds that journey events give beside their nanoseconds: decoded only in files that hold events
#: without nanoseconds.
SPARES = ("ts.monotonic", "ts_monotonic")

#: Attribute name on the wire -> type of its value.
ATTRIBUTE_KINDS: dict[str, type] = dict.fromkeys(ECHOES, str) | {
    name: field.kind
    for fields in (STEP_FIELDS, SNAPSHOT_FIELDS, JOURNEY_FIELDS, API_FIELDS, SPAN_FIELDS)
    for field in fields
    for name in field.names
}
