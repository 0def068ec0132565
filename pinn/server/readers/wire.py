"""What a trace file is made of: columns, OTLP values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int

# Arrow columns made from their buffers and back.
#
# ``pa.array`` and ``to_numpy`` would do, but import pandas on their first call, into every
# process that parses.


def numbers(values: Float[np.ndarray, " rows"] | Int[np.ndarray, " rows"]) -> pa.Array:
    """A column of 64-bit integers or numbers.

    >>> numbers(np.array([1, 2])).to_pylist()
    [1, 2]
    """
    kind, dtype = (pa.float64(), np.float64) if values.dtype.kind == "f" else (pa.int64(), np.int64)
    values = np.ascontiguousarray(values, dtype=dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def values(column: pa.Array) -> Float[np.ndarray, " rows"] | Int[np.ndarray, " rows"]:
    """A column of 64-bit integers or numbers without nulls, as it lies in memory.

    >>> values(numbers(np.array([1.5, 2.5])))
    array([1.5, 2.5])
    """
    dtype = np.float64 if pa.types.is_floating(column.type) else np.int64
    whole = np.frombuffer(column.buffers()[1], dtype=dtype)
    return whole[column.offset : column.offset + len(column)]


def strings(texts: list[str]) -> pa.Array:
    """A column of texts.

    >>> strings(["a", "bc", "é"]).to_pylist()
    ['a', 'bc', 'é']
    """
    joined = "".join(texts)
    encoded = joined.encode(errors="replace")
    if len(encoded) == len(joined):
        lengths = np.fromiter(map(len, texts), dtype=np.int32, count=len(texts))
    else:
        lengths = np.array([len(t.encode(errors="replace")) for t in texts], dtype=np.int32)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(encoded)]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


def repeated(text: str, count: int) -> pa.Array:
    """A column that holds one text throughout.

    >>> repeated("ab", 2).to_pylist()
    ['ab', 'ab']
    """
    encoded = text.encode()
    offsets = (np.arange(count + 1) * len(encoded)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(encoded * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def lists(
    owner: Int[np.ndarray, " values"], values: Int[np.ndarray, " values"], count: int
) -> pa.Array:
    """A column of lists of integers: per owner 0, ..., count - 1 its values in their order.

    >>> lists(np.array([2, 0, 2]), np.array([7, 8, 9]), 3).to_pylist()
    [[8], [], [7, 9]]
    """
    order = np.argsort(owner, kind="stable")
    ends = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=count))))
    inner = numbers(values[order].astype(np.int64))
    buffers = [None, pa.py_buffer(ends.astype(np.int32))]
    return pa.Array.from_buffers(pa.list_(pa.int64()), count, buffers, children=[inner])


# Names on the wire of an instrumented vLLM (0.15.1): events, their attributes, their columns.
#
# Older writings use other spellings; each is an alias: underscores for dots
# (``prefill_done_tokens``), ``gen_ai.request_id``, and event names without their scope
# (``ARRIVED`` for ``api.ARRIVED``).

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
ECHOES = (
    "event.type",
    "event_type",
    "phase",
    "step.ts_end_ns",
    "step_ts_end_ns",
    "batch.scheduled_tokens",
    "batch_scheduled_tokens",
)

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
