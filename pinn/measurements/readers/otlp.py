"""Types for the layers of an OTLP-JSON line (export, resource, scope, span, event).

Each layer contains the next one as raw bytes and is decoded separately, so that a malformed span or
event does not affect the others. Parts read and rejected are counted for each layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, TypeVar

import msgspec

from pinn.common.files import ReadReport

#: Errors raised by decoding a line or a part of a line.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Raws = list[msgspec.Raw]
_NULL, _EMPTY = msgspec.Raw(b"null"), msgspec.Raw(b"{}")


class Export(msgspec.Struct, rename="camel"):
    """Line of a trace file: one OTLP export of spans."""

    resource_spans: _Raws


class ResourceSpans(msgspec.Struct, rename="camel"):
    """Spans of one server (OTLP resource)."""

    scope_spans: _Raws
    resource: msgspec.Raw = _EMPTY


class ScopeSpans(msgspec.Struct):
    """Spans of one library (OTLP scope)."""

    spans: _Raws


class Attribute(msgspec.Struct, gc=False):
    """Attribute of a span or event: ``{"key": "step.id", "value": {"intValue": "42"}}``."""

    key: str
    value: msgspec.Raw = _NULL


class Span(msgspec.Struct, rename="camel"):
    """Span, decoded without its events."""

    name: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    attributes: list[Attribute] = []


class SpanEvents(msgspec.Struct):
    """Events of a span, as raw bytes."""

    events: _Raws = []


class Event(msgspec.Struct, rename="camel"):
    """Event of a span: its name, time and attributes."""

    name: str = ""
    time_unix_nano: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    attributes: list[Attribute] = []


class Value(msgspec.Struct, gc=False, rename="camel"):
    """Value of an attribute; integers may be strings, as in OTLP-JSON, or plain numbers."""

    int_value: _Int64 | None = None
    double_value: float | None = None
    string_value: str | None = None

    def of(self, kind: type) -> int | float | str | None:
        """Return the attribute's value as ``kind``; None if it is of another type.

        Integers and floats are converted into each other if no precision is lost.
        """
        if kind is str:
            return self.string_value
        if kind is float:
            whole = self.int_value
            return self.double_value if whole is None or abs(whole) >= 2**53 else float(whole)
        number = self.double_value
        if number is None or abs(number) >= 2**53 or number != int(number):
            return self.int_value
        return int(number)


_VALUES = msgspec.json.Decoder(list[Value], strict=False)
_VALUE = msgspec.json.Decoder(Value, strict=False)


def values_of(raws: Sequence[msgspec.Raw], kind: type) -> list[int | float | str | None]:
    """Decode the raw values of one attribute; values that are not of type ``kind`` become None."""
    try:
        found: Sequence[Value | None] = _VALUES.decode(b"[" + b",".join(map(bytes, raws)) + b"]")
    except DECODE_ERRORS:
        found = [_value(raw) for raw in raws]
    return [None if value is None else value.of(kind) for value in found]


def _value(raw: msgspec.Raw) -> Value | None:
    try:
        return _VALUE.decode(raw)
    except DECODE_ERRORS:
        return None


#: Levels that are counted separately: lines of the file, groups (entries of resourceSpans and
#: scopeSpans), spans, and events of spans.
LEVELS = ("lines", "groups", "spans", "events")

#: Maximum number of distinct reasons for refused items at each level. Further reasons are counted
#: together.
MAX_REASONS = 200


@dataclass
class Counts:
    """Numbers of lines, groups, spans and events that were read, and rejected for each reason."""

    read: Counter[str] = field(default_factory=Counter)
    refused: dict[str, Counter[str]] = field(default_factory=lambda: {n: Counter() for n in LEVELS})

    def add(self, other: Counts) -> None:
        """Add the counts from another part of the file."""
        self.read.update(other.read)
        for level, reasons in other.refused.items():
            for reason, count in reasons.items():
                known = reason in self.refused[level] or len(self.refused[level]) < MAX_REASONS
                self.refused[level][reason if known else "further reasons"] += count

    def reports(self, source: str, sha256: str) -> dict[str, ReadReport]:
        """Return a report of items read and rejected for each level, such as ``spans``."""
        reports = {}
        for level, reasons in self.refused.items():
            read, refused = self.read[level], dict(reasons.most_common())
            accepted = read - reasons.total()
            reports[level] = ReadReport(f"{source} {level}", "", sha256, read, accepted, refused)
        return reports

    def refuse(self, level: str, reason: str) -> None:
        """Count one rejected line, group, span or event by its level and reason."""
        self.refused[level][reason] += 1


Layer = TypeVar("Layer", Export, ResourceSpans, ScopeSpans, Span, SpanEvents, Event)


class Layers:
    """Decoder of OTLP lines, layer by layer, which counts malformed parts of each layer."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts

    def line(self, line: bytes, is_cut: bool) -> Iterator[tuple[msgspec.Raw, Span | None, _Raws]]:
        """Decode a line, and yield the resource, the span and the raw events of each of its spans.

        The span is None if it is malformed but its events can be read.

        Args:
            line: Line with or without its newline.
            is_cut: Whether the line is the last one in a file and lacks a newline.
        """
        try:
            export = _decoder(Export).decode(line)
        except msgspec.ValidationError:
            self.counts.refuse("lines", "no resourceSpans")
            return
        except DECODE_ERRORS:
            cut = "truncated last line" if is_cut else "invalid JSON"
            self.counts.refuse("lines", cut if line.strip() else "blank line")
            return
        read = self.counts.read
        read["groups"] += len(export.resource_spans)
        for raw_group in export.resource_spans:
            if group := self.decoded(ResourceSpans, raw_group, "groups", "resourceSpans entry"):
                read["groups"] += len(group.scope_spans)
                for raw_scope in group.scope_spans:
                    if scope := self.decoded(ScopeSpans, raw_scope, "groups", "scopeSpans entry"):
                        yield from self._spans(group.resource, scope.spans)

    def _spans(
        self, resource: msgspec.Raw, spans: _Raws
    ) -> Iterator[tuple[msgspec.Raw, Span | None, _Raws]]:
        self.counts.read["spans"] += len(spans)
        for raw in spans:
            if below := self.decoded(SpanEvents, raw, "spans", "span"):
                self.counts.read["events"] += len(below.events)
                yield resource, self.decoded(Span, raw, "spans", "span"), below.events

    def decoded(self, layer: type[Layer], raw: msgspec.Raw, level: str, what: str) -> Layer | None:
        """Decode one part of a line; count a malformed part as rejected, and return None for it."""
        try:
            return _decoder(layer).decode(raw)
        except DECODE_ERRORS as error:
            self.counts.refuse(level, f"{what}: {str(error).partition(' - at ')[0]:.100}")
            return None


@cache
def _decoder(layer: type[Layer]) -> msgspec.json.Decoder[Layer]:
    return msgspec.json.Decoder(layer, strict=False)
