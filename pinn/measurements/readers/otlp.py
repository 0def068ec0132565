"""One typed decoder of OTLP-JSON lines, and what it takes of a line with malformed parts."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Union

import msgspec

from pinn.common.files import ReadReport
from pinn.measurements.readers.wire import ATTRIBUTE_KINDS, ECHOES, SPARES, STEP_SPAN_PREFIX

# Typed decoding of OTLP-JSON lines: the attribute names known so far become types.
#
# Decoding straight into typed structs makes a third of the objects that a generic JSON decoder
# makes, and checks every value's type on the way. A name that is not known yet, or a value of
# another type, makes the whole line fail; a :class:`Sieve` then learns the names and gives back
# what of the line is usable, as bytes that the same decoder takes.

#: Unknown attribute names learned at most; what holds more of them is refused.
MAX_LEARNED = 256

#: What decoding a line may raise.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class IntValue(msgspec.Struct, gc=False, rename={"v": "intValue"}):
    """``{"intValue": "42"}``: integers are strings on the wire; plain numbers are accepted."""

    v: _Int64


class DoubleValue(msgspec.Struct, gc=False, rename={"v": "doubleValue"}):
    """``{"doubleValue": 0.19}``."""

    v: float


class StringValue(msgspec.Struct, gc=False, rename={"v": "stringValue"}):
    """``{"stringValue": "DECODE"}``."""

    v: str


_VALUES: dict[type, type] = {int: IntValue, float: DoubleValue, str: StringValue}

#: How a value is stored in a packed row: integer, number, text, not at all; else raw JSON.
_FORMATS: dict[type | None, str] = {IntValue: "q", DoubleValue: "d", StringValue: "s", None: "-"}


class Vocabulary:
    """Attribute names and the struct type that stands for each.

    An attribute of a known name holds ``value.v`` of the name's type, or no value where that only
    repeats others. One of a learned name holds the bytes of its value in ``value``.
    """

    def __init__(self, spares: bool = False) -> None:
        """Know the wire's names.

        Args:
            spares: Whether to decode what other attributes usually tell better.
        """
        self.types: dict[str, type] = {}
        self.names: dict[type, str] = {}
        self.formats: dict[str, str] = {}
        self.learned: set[str] = set()
        for name, kind in ATTRIBUTE_KINDS.items():
            is_skipped = name in ECHOES or (name in SPARES and not spares)
            self._add(name, None if is_skipped else _VALUES[kind])
        self.decode = self._decoder()

    def learn(self, names: set[str]) -> None:
        """Let the decoder accept further attribute names."""
        new = sorted(names - self.types.keys())[: MAX_LEARNED - len(self.learned)]
        if not new:
            return
        for name in new:
            self._add(name, msgspec.Raw)
        self.learned.update(new)
        self.decode = self._decoder()

    def entry(self, entry: Any) -> dict[str, Any]:
        """An attribute as the decoder takes it; numbers are texts, which keeps all their digits.

        Raises:
            ValueError: If it is no attribute, its name cannot be learned any more, or its value is
                not of the name's type.
        """
        if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
            raise ValueError("attribute without a key")
        key, value = entry["key"], entry.get("value")
        if key not in self.types:
            raise ValueError("too many unknown attribute names in the file")
        if key in self.learned:
            return {"key": key, "value": value}
        if self.formats[key] == "-":
            return {"key": key}
        kind = ATTRIBUTE_KINDS[key]
        found: Any
        try:
            found = msgspec.convert(value, _VALUES[kind], strict=False).v
        except msgspec.ValidationError:
            found = _number(value, kind)
            if found is None:
                raise ValueError(f"bad value of {key}") from None
        return {"key": key, "value": _VALUES[kind](str(found))}

    def _add(self, name: str, value: type | None) -> None:
        fields = [] if value is None else [("value", value)]
        kind = msgspec.defstruct(
            f"Attribute{len(self.types)}", fields, tag_field="key", tag=name, gc=False
        )
        self.types[name] = kind
        self.formats[name] = _FORMATS.get(value, "r")
        self.names[kind] = name

    def _decoder(self) -> Any:
        """The decoder of a whole line."""
        attributes = list[Union[tuple(self.types.values())]]  # type: ignore  # noqa: UP007

        def struct(name: str, *fields: Any) -> type:
            return msgspec.defstruct(name, fields, gc=False)

        def texts(*names: str) -> list[Any]:
            return [(name, str, "") for name in names]

        about: tuple[Any, ...] = ("attributes", attributes, [])
        event = struct("Event", *texts("name"), ("timeUnixNano", _Int64, 0), about)
        events: tuple[Any, ...] = ("events", list[event], [])  # type: ignore[valid-type]
        span = struct("Span", *texts("name", "spanId", "parentSpanId"), about, events)
        scope = struct("ScopeSpans", ("spans", list[span]))  # type: ignore[valid-type]
        scopes = ("scopeSpans", list[scope])  # type: ignore[valid-type]
        resource = struct("ResourceSpans", scopes, ("resource", msgspec.Raw, msgspec.Raw(b"{}")))
        export = struct("Export", ("resourceSpans", list[resource]))  # type: ignore[valid-type]
        return msgspec.json.Decoder(export, strict=False).decode


def _number(value: Any, kind: type) -> int | float | None:
    """A number that was written as another kind of number, without loss; else None."""
    if not isinstance(value, dict) or kind is str:
        return None
    number: Any = value.get("doubleValue" if kind is int else "intValue")
    try:
        converted = int(float(number)) if kind is int else float(number)
        exact = converted == float(number) and abs(converted) < 2**53
    except (TypeError, ValueError, OverflowError):
        return None
    return converted if exact else None


#: What is counted apart: lines of the file, groups (resourceSpans and scopeSpans entries), spans,
#: events of spans.
LEVELS = ("lines", "groups", "spans", "events")

#: Refusal reasons kept apart per level; further ones are counted under one heading.
MAX_REASONS = 200


@dataclass
class Counts:
    """Items read and refused by level; the rest of those read was accepted."""

    read: Counter[str] = field(default_factory=Counter)
    refused: dict[str, Counter[str]] = field(default_factory=lambda: {n: Counter() for n in LEVELS})

    def add(self, other: "Counts") -> None:
        """Add another part's counts to these."""
        self.read.update(other.read)
        for level, reasons in other.refused.items():
            for reason, count in reasons.items():
                known = reason in self.refused[level] or len(self.refused[level]) < MAX_REASONS
                self.refused[level][reason if known else "further reasons"] += count

    def reports(self, source: str, sha256: str) -> dict[str, ReadReport]:
        """One report per level: lines, groups, spans, events."""
        reports = {}
        for level, reasons in self.refused.items():
            read, refused = self.read[level], dict(reasons.most_common())
            accepted = read - reasons.total()
            reports[level] = ReadReport(f"{source} {level}", "", sha256, read, accepted, refused)
        return reports


class Sieve:
    """What is usable of a line that does not decode; all else is counted as read and refused."""

    def __init__(self, vocabulary: Vocabulary, counts: Counts) -> None:
        self._vocabulary, self._counts = vocabulary, counts

    def usable(self, line: bytes, is_cut: bool) -> bytes | None:
        """The rest of a line, which decodes; None, counted, where the whole line is refused."""
        refused = self._counts.refused["lines"]
        if not line.strip():
            refused["blank line"] += 1
            return None
        try:
            export = msgspec.json.decode(line)
        except DECODE_ERRORS:
            refused["truncated last line" if is_cut else "invalid JSON"] += 1
            return None
        if not isinstance(export, dict) or not isinstance(export.get("resourceSpans"), list):
            refused["no resourceSpans"] += 1
            return None
        self._vocabulary.learn(_attribute_names(export))
        groups = _kept(export["resourceSpans"], self._group)
        return msgspec.json.encode({"resourceSpans": groups})

    def _group(self, group: Any) -> dict[str, Any] | None:
        scopes = self._part(group, "groups", "resourceSpans entry", "scopeSpans")
        if scopes is None:
            return None
        return {"resource": group.get("resource"), "scopeSpans": _kept(scopes, self._scope)}

    def _scope(self, scope: Any) -> dict[str, Any] | None:
        spans = self._part(scope, "groups", "scopeSpans entry", "spans")
        return None if spans is None else {"spans": _kept(spans, self._span)}

    def _span(self, span: Any) -> dict[str, Any] | None:
        events = self._part(span, "spans", "span", "events", optional=True)
        if events is None:
            return None
        try:
            about: dict[str, Any] = {"attributes": self._attributes(span)}
            about |= {name: _text(span, name) for name in ("name", "spanId", "parentSpanId")}
        except ValueError as error:
            self._refuse("spans", f"span with {error}", is_read=False)
            about = {"name": STEP_SPAN_PREFIX}  # stands for no request; its events are still read
        return about | {"events": _kept(events, self._event)}

    def _event(self, event: Any) -> dict[str, Any] | None:
        try:
            if not isinstance(event, dict):
                raise ValueError("no fields: not an object")
            name, wall_ns = _text(event, "name"), _nanoseconds(event.get("timeUnixNano", 0))
            attributes = self._attributes(event)
        except ValueError as error:
            self._refuse("events", f"event with {error}")
            return None
        return {"name": name, "timeUnixNano": wall_ns, "attributes": attributes}

    def _attributes(self, owner: dict) -> list[dict[str, Any]]:
        entries = owner.get("attributes", [])
        if not isinstance(entries, list):
            raise ValueError("attributes that are no list")
        return [self._vocabulary.entry(entry) for entry in entries]

    def _part(
        self, item: Any, level: str, what: str, inner: str, *, optional: bool = False
    ) -> list | None:
        """The inner list of an item; None, counted, if the item is malformed."""
        if not isinstance(item, dict):
            self._refuse(level, f"{what} that is no object")
            return None
        part = item.get(inner, [] if optional else None)
        if not isinstance(part, list):
            self._refuse(level, f"{what} without a list of {inner}")
            return None
        return part

    def _refuse(self, level: str, reason: str, *, is_read: bool = True) -> None:
        """Count a refusal; ``is_read`` is False where the decoder still reads what is left."""
        self._counts.read[level] += is_read
        self._counts.refused[level][reason] += 1


def _kept(items: list, usable: Callable[[Any], dict[str, Any] | None]) -> list[dict[str, Any]]:
    return [found for found in map(usable, items) if found is not None]


def _text(item: dict, key: str) -> str:
    value = item.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"bad {key}")
    return value


def _nanoseconds(value: Any) -> int:
    try:
        wall_ns = int(value)
    except (TypeError, ValueError, OverflowError):
        wall_ns = -1
    if not 0 <= wall_ns < 2**63:
        raise ValueError("bad timeUnixNano")
    return wall_ns


def _attribute_names(part: Any) -> set[str]:
    """Names of all attributes anywhere inside, resources left out."""
    found, stack = set[str](), [part]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, dict):
            if isinstance(item.get("key"), str) and "value" in item:
                found.add(item["key"])
            else:
                stack.extend(value for name, value in item.items() if name != "resource")
    return found
