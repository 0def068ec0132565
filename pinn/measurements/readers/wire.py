"""Names in the traces of an instrumented vLLM (0.15.1): events, attributes, columns.

``wire.csv`` lists the attributes: the raw table and column that each one fills, the type of its
value, whether an event without it is rejected, and its spellings. Older traces have other
spellings: underscores for dots (``prefill_done_tokens``), ``gen_ai.request_id``, and event names
without their scope (``ARRIVED`` for ``api.ARRIVED``). An event of a request (``journey`` or
``api``) has its time as seconds, as nanoseconds or as both; without a time it is rejected.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pinn.common.files import read_rows

STEPS, SNAPSHOTS, JOURNEY, API, SPANS = "steps", "snapshots", "journey", "api", "spans"


@dataclass(frozen=True)
class Field:
    """Attribute of an event or span, and the raw table's column for it.

    Attributes:
        column: Name of the raw column, which includes the unit if there is one.
        kind: Type of the value: int, float or str.
        names: Spellings in traces, the current one first; the first one present is used.
        required: Whether an event without the attribute is rejected.
    """

    column: str
    kind: type
    names: tuple[str, ...]
    required: bool


@dataclass(frozen=True)
class EventKind:
    """Kind of event or span in a trace, and the raw table for its rows; empty if unknown."""

    table: str
    label: str

    @property
    def fields(self) -> Sequence[Field]:
        """Return the attributes of the event, each with the raw table's column for it."""
        return FIELDS.get(self.table, ())


def _read_fields() -> dict[str, list[Field]]:
    kinds, found = {"int": int, "float": float, "str": str}, dict[str, list[Field]]()
    for row in read_rows(Path(__file__).with_name("wire.csv")):
        spelled = f"{row['names']} {row['names'].replace('.', '_')}".split()
        names, is_required = tuple(dict.fromkeys(spelled)), row["required"] == "yes"
        field = Field(row["column"], kinds[row["kind"]], names, is_required)
        found.setdefault(row["table"], []).append(field)
    return found


#: Attributes that fill the columns of a raw table, by table.
FIELDS = _read_fields()

JOURNEY_EVENTS = ("QUEUED", "SCHEDULED", "FIRST_TOKEN", "PREEMPTED", "FINISHED")
API_EVENTS = ("ARRIVED", "HANDOFF_TO_CORE", "FIRST_RESPONSE_FROM_CORE", "DEPARTED", "ABORTED")

#: Kinds of events, by name of the event in traces, with or without its scope.
EVENT_KINDS: dict[str, EventKind] = {
    name: EventKind(table, label)
    for table, prefix, labels in (
        (STEPS, "step", ("BATCH_SUMMARY",)),
        (SNAPSHOTS, "step", ("REQUEST_SNAPSHOT",)),
        (JOURNEY, "journey", JOURNEY_EVENTS),
        (API, "api", API_EVENTS),
    )
    for label in labels
    for name in (f"{prefix}.{label}", label)
}

#: Names of a request's two spans: the engine's span, and its parent span from the API server.
CORE_SPAN, API_SPAN = "llm_core", "llm_request"
REQUEST_SPANS = {name: EventKind(SPANS, name) for name in (CORE_SPAN, API_SPAN)}

#: Prefix of the names of spans that collect the events of many steps. The number that follows the
#: prefix is not a step id.
STEP_SPAN_PREFIX = "scheduler_steps_"

#: Redundant attributes of events, which are not decoded: the event's name or parts of it, the end
#: of a step, and a step's total number of tokens.
ECHOES = ("event.type", "event_type", "phase", "step.ts_end_ns", "step_ts_end_ns",
          "batch.scheduled_tokens", "batch_scheduled_tokens")  # fmt: skip
