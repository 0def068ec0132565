"""Walks decoded trace lines and gathers raw tables; every line, span and event is counted once."""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from pinn.server.readers.otlp import Shape, SpareNeededError, Vocabulary
from pinn.server.readers.wire import EVENT_KINDS, REQUEST_SPANS, SPANS, STEP_SPAN_PREFIX

#: What is counted apart: lines of the file, groups (resourceSpans and scopeSpans entries), spans,
#: events of spans.
LEVELS = ("lines", "groups", "spans", "events")

#: Refusal reasons kept apart per level; further ones are counted under one heading.
MAX_REASONS = 200

_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass
class Counts:
    """Items read and refused by level; the rest of those read was accepted."""

    read: Counter[str] = field(default_factory=Counter)
    refused: dict[str, Counter[str]] = field(
        default_factory=lambda: {level: Counter() for level in LEVELS}
    )

    def add(self, other: Counts) -> None:
        """Add another part's counts to these."""
        self.read.update(other.read)
        for level, reasons in other.refused.items():
            for reason, count in reasons.items():
                known = reason in self.refused[level] or len(self.refused[level]) < MAX_REASONS
                self.refused[level][reason if known else "further reasons"] += count


@dataclass
class ParsedChunk:
    """Raw tables of a stretch of the file.

    Attributes:
        tables: Record batches by raw table; ``span`` and ``server`` count from 0 in this chunk.
        spans: Number of request spans.
        servers: Resource attributes of each server as JSON text.
        counts: What was read and refused.
    """

    tables: dict[str, list[pa.RecordBatch]]
    spans: int
    servers: list[str]
    counts: Counts


class ChunkParser:
    """Parses stretches of a file one after another; what it learns of names carries over."""

    def __init__(self) -> None:
        self.vocabulary: Vocabulary
        self._shapes: dict[tuple, Shape]
        self._last: dict[str, Shape]
        self._last_spans: dict[str, Shape]
        self._forget(Vocabulary())
        self._servers: dict[bytes, int] = {}
        self._spans = 0
        self._counts = Counts()

    def parse(self, lines: list[bytes], last_is_cut: bool = False) -> ParsedChunk:
        """Parse lines.

        Args:
            lines: With or without their line ends.
            last_is_cut: Whether the last line lacks its line end.
        """
        try:
            self._take_lines(lines, last_is_cut)
        except SpareNeededError:
            self._forget(Vocabulary(spares=True))
            self._take_lines(lines, last_is_cut)
        self._counts.read["lines"] += len(lines)
        tables: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        for shape in self._shapes.values():
            is_span = shape.kind is not None and shape.kind.table == SPANS
            batch = shape.batch(self._counts.refused["spans" if is_span else "events"])
            if batch is not None and shape.kind is not None:
                tables[shape.kind.table].append(batch)
        servers = [_canonical(raw) for raw in self._servers]
        return ParsedChunk(dict(tables), self._spans, servers, self._counts)

    def _forget(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._shapes, self._last, self._last_spans = {}, {}, {}

    def _take_lines(self, lines: list[bytes], last_is_cut: bool) -> None:
        self._servers, self._spans, self._counts = {}, 0, Counts()
        decode, walk = self.vocabulary.decode, self._walk
        with _garbage_collector_off():
            for number, line in enumerate(lines):
                try:
                    export = decode(line)
                except _DECODE_ERRORS:
                    self._slow_line(line, last_is_cut and number == len(lines) - 1)
                    decode = self.vocabulary.decode
                else:
                    walk(export.resourceSpans)

    def _walk(self, groups: list) -> None:
        """Take in a line that decoded as expected throughout."""
        read, last, last_spans = self._counts.read, self._last, self._last_spans
        for group in groups:
            server = self._server(bytes(group.resource))
            read["groups"] += 1 + len(group.scopeSpans)
            for scope in group.scopeSpans:
                read["spans"] += len(scope.spans)
                for span in scope.spans:
                    shape = last_spans.get(span.name)
                    owner = self._spans
                    if shape is not None and shape.take(
                        owner, server, span.spanId, span.parentSpanId, span.attributes
                    ):
                        self._spans += 1
                    else:
                        owner = self._span(span, server)
                    events = span.events
                    read["events"] += len(events)
                    for event in events:
                        shape = last.get(event.name)
                        if shape is None or not shape.take(
                            owner, server, event.timeUnixNano, event.attributes
                        ):
                            head = (owner, server, event.timeUnixNano)
                            self._take(last, event.name, head, event.attributes)

    def _span(self, span: Any, server: int) -> int:
        """Take a span of a new shape; its row's number, or -1 if it stands for no request."""
        name = span.name
        if name not in REQUEST_SPANS:
            if not name.startswith(STEP_SPAN_PREFIX):
                self._counts.refused["spans"][f"unknown span {name[:60]!r}"] += 1
            return -1
        owner, self._spans = self._spans, self._spans + 1
        head = (owner, server, span.spanId, span.parentSpanId)
        self._take(self._last_spans, name, head, span.attributes)
        return owner

    def _take(self, last: dict[str, Shape], name: str, head: tuple, attributes: list) -> None:
        """Take a row of another shape than the last one of its name."""
        kinds = REQUEST_SPANS if last is self._last_spans else EVENT_KINDS
        types = [*map(type, attributes)]
        key = (len(head), name, *types)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = Shape(name, kinds.get(name), types, self.vocabulary)
        shape.take(*head, attributes)
        last[name] = shape

    def _server(self, resource: bytes) -> int:
        return self._servers.setdefault(resource, len(self._servers))

    # The slow path: lines with unknown names, wrong types or missing parts.

    def _slow_line(self, line: bytes, is_cut: bool) -> None:
        refused = self._counts.refused["lines"]
        if not line.strip():
            refused["blank line"] += 1
            return
        try:
            export = msgspec.json.decode(line)
        except _DECODE_ERRORS:
            refused["truncated last line" if is_cut else "invalid JSON"] += 1
            return
        if not isinstance(export, dict) or not isinstance(export.get("resourceSpans"), list):
            refused["no resourceSpans"] += 1
            return
        self.vocabulary.learn(_attribute_names(export))
        for group in export["resourceSpans"]:
            self._slow_group(group)

    def _slow_group(self, group: Any) -> None:
        scopes = self._part(group, "groups", "resourceSpans entry", "scopeSpans")
        if scopes is None:
            return
        server = self._server(msgspec.json.encode(group.get("resource")))
        for scope in scopes:
            spans = self._part(scope, "groups", "scopeSpans entry", "spans")
            for span in spans or ():
                self._slow_span(span, server)

    def _slow_span(self, span: Any, server: int) -> None:
        events = self._part(span, "spans", "span", "events", optional=True)
        if events is None:
            return
        owner = -1
        try:
            attributes = self._attributes(span)
            loose = _Loose(
                _text(span, "name"), attributes, _text(span, "spanId"), _text(span, "parentSpanId")
            )
            owner = self._span(loose, server)
        except ValueError as error:
            self._counts.refused["spans"][f"span with {error}"] += 1
        for event in events:
            self._counts.read["events"] += 1
            try:
                self._slow_event(event, owner, server)
            except ValueError as error:
                self._counts.refused["events"][f"event with {error}"] += 1

    def _slow_event(self, event: Any, owner: int, server: int) -> None:
        if not isinstance(event, dict):
            raise ValueError("no fields: not an object")
        name = _text(event, "name")
        try:
            wall_ns = int(event.get("timeUnixNano", 0))
        except (TypeError, ValueError, OverflowError):
            wall_ns = -1
        if not 0 <= wall_ns < 2**63:
            raise ValueError("bad timeUnixNano")
        attributes = self._attributes(event)
        self._take(self._last, name, (owner, server, wall_ns), attributes)

    def _attributes(self, owner: dict) -> list:
        entries = owner.get("attributes", [])
        if not isinstance(entries, list):
            raise ValueError("attributes that are no list")
        self.vocabulary.learn(_attribute_names(entries))
        try:
            return [self.vocabulary.attribute(entry) for entry in entries]
        except KeyError:
            raise ValueError("too many unknown attribute names in the file") from None

    def _part(
        self, item: Any, level: str, what: str, inner: str, *, optional: bool = False
    ) -> list | None:
        """Count an item of a level and give its inner list; None, counted, if it is malformed."""
        self._counts.read[level] += 1
        if not isinstance(item, dict):
            self._counts.refused[level][f"{what} that is no object"] += 1
            return None
        part = item.get(inner, [] if optional else None)
        if not isinstance(part, list):
            self._counts.refused[level][f"{what} without a list of {inner}"] += 1
            return None
        return part


@dataclass
class _Loose:
    """A span from the slow path, with the fields of a decoded one."""

    name: str
    attributes: list
    spanId: str  # noqa: N815
    parentSpanId: str  # noqa: N815


@contextmanager
def _garbage_collector_off() -> Iterator[None]:
    """Parsing makes many objects and no cycles: the collector would only look at them again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _text(item: dict, key: str) -> str:
    value = item.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"bad {key}")
    return value


def _attribute_names(part: Any) -> set[str]:
    """Names of all attributes anywhere inside, resources left out."""
    found: set[str] = set()
    stack = [part]
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


def _canonical(resource: bytes) -> str:
    """A resource's attributes as JSON text with sorted names, so that equal servers are equal."""
    try:
        entries = msgspec.json.decode(resource)["attributes"]
        values = {e["key"]: next(iter(e["value"].values())) for e in entries}
        return msgspec.json.encode(values, order="sorted").decode()
    except (*_DECODE_ERRORS, KeyError, TypeError, AttributeError, StopIteration):
        return "{}"
