"""Parser of OTLP trace lines into raw tables; every line, span and event is counted once."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from pinn.common.tables import KeptRows
from pinn.measurements.readers import wire
from pinn.measurements.readers.otlp import (
    DECODE_ERRORS,
    Attribute,
    Counts,
    Event,
    Layers,
    Span,
    values_of,
)
from pinn.measurements.readers.request_spans import numbers, strings
from pinn.measurements.readers.wire import EventKind, Field

#: Arrow types of columns, by Python type of an attribute's value.
ARROW_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string()}
_NUMPY_TYPES = {int: np.int64, float: np.float64}

#: Columns of raw tables before the attributes. ``span`` and ``server`` count from 0 in each chunk
#: of a file.
_EVENT_HEAD = (("span", int), ("server", int), ("wall_ns", int))
_SPAN_HEAD = (("span", int), ("server", int), ("span_id", str), ("parent_id", str))

#: Upper bounds of plausible values. ``_MAX_COUNT``: of numbers of tokens and requests. ``_MAX_NS``:
#: of clock values in nanoseconds.
_MAX_COUNT, _MAX_NS = 2**40, 2**62

Head = tuple[int | str, ...]


class Shape:
    """Rows of events that have the same name and the same attributes in the same order.

    Servers nearly always write an event's attributes in the same order, so rows are grouped by
    shape and decoded column by column. A shape that lacks a required attribute is rejected as a
    whole.

    Attributes:
        kind: Kind of the rows' event; it names no table if the event is unknown.
        heads: Values of each row that precede its attributes.
        values: Raw values of each row's attributes.
    """

    def __init__(self, name: str, kind: EventKind, keys: Sequence[str]) -> None:
        self.kind = kind
        self.heads, self.values = list[Head](), list[list[msgspec.Raw]]()
        self._refusal = "" if kind.table else f"unknown event {name[:60]!r}"
        # If an event has two attributes with the same name, the later one is used.
        places = {key: i for i, key in enumerate(keys) if key not in wire.ECHOES}
        self._fields: list[tuple[Field, str, int]] = []
        for field in kind.fields:
            key = next((each for each in field.names if each in places), None)
            if key is not None:
                self._fields.append((field, key, places.pop(key)))
            elif field.required:
                self._refusal = f"{name} without {field.names[0]}"
        self._extra = places
        columns = {field.column for field, _, _ in self._fields}
        is_timed = columns & {"monotonic_ns", "monotonic_s"}
        if kind.table in (wire.JOURNEY, wire.API) and not is_timed:
            self._refusal = f"{name} without a monotonic time"

    def batch(self, refused: Counter[str]) -> pa.RecordBatch | None:
        """Return the accepted rows as columns, and count rejected rows; None if none remain."""
        if self._refusal:
            refused[self._refusal] += len(self.heads)
            return None
        raws = list(zip(*self.values, strict=True)) or [()]
        found = [(f, key, values_of(raws[place], f.kind)) for f, key, place in self._fields]
        kept, large = KeptRows(len(self.heads)), np.zeros(len(self.heads), dtype=bool)
        for field, key, values in found:
            kept.refuse(f"event with an invalid value of {key}", [v is None for v in values])
            if field.kind is int:
                limit = _MAX_NS if field.column.endswith("_ns") else _MAX_COUNT
                large |= [abs(int(v or 0)) >= limit for v in values]
        kept.refuse(f"{self.kind.label} with a number out of range", large)
        if self.kind.table in (wire.JOURNEY, wire.API):
            outside = [head[0] == -1 for head in self.heads]
            kept.refuse("request event outside a request's span", outside)
        refused.update(kept.refused)
        columns = self._columns({f.column: (f.kind, v) for f, _, v in found}, kept.mask)
        return columns if columns.num_rows else None

    def _columns(
        self, found: dict[str, tuple[type, list[int | float | str | None]]], kept: np.ndarray
    ) -> pa.RecordBatch:
        rows = np.flatnonzero(kept).tolist()
        names = _SPAN_HEAD if self.kind.table == wire.SPANS else _EVENT_HEAD
        heads = zip(*(self.heads[row] for row in rows), strict=True) if rows else [()] * len(names)
        columns = {name: _array(h, k) for (name, k), h in zip(names, heads, strict=True)}
        columns["label"] = strings([self.kind.label] * len(rows))
        for field in self.kind.fields:
            if field.column in found:
                kind, values = found[field.column]
                columns[field.column] = _array([values[row] for row in rows], kind)
            else:
                columns[field.column] = pa.nulls(len(rows), ARROW_TYPES[field.kind])
        columns["extra"] = self._extras(rows)
        ordered = sorted(columns)
        return pa.RecordBatch.from_arrays([columns[name] for name in ordered], ordered)

    def _extras(self, rows: list[int]) -> pa.Array:
        """Return the attributes of each row that have no column of their own, as a JSON string."""
        if not self._extra:
            return pa.nulls(len(rows), pa.string())
        texts = (
            msgspec.json.encode({key: self.values[row][at] for key, at in self._extra.items()})
            for row in rows
        )
        return strings([text.decode(errors="replace") for text in texts])


def _array(values: Sequence[int | float | str | None], kind: type) -> pa.Array:
    if kind is str:
        return strings([str(value) for value in values])
    return numbers(np.array(values, dtype=_NUMPY_TYPES[kind]))


@dataclass
class ParsedChunk:
    """Raw tables of a chunk of a trace file.

    Attributes:
        tables: Record batches by raw table; ``span`` and ``server`` count from 0 in the chunk.
        spans: Number of request spans.
        servers: Resource attributes of each server as a JSON string.
        counts: Counts of lines, groups, spans and events read and rejected.
    """

    tables: dict[str, list[pa.RecordBatch]]
    spans: int
    servers: list[str]
    counts: Counts


class ChunkParser:
    """Parser of successive chunks of a trace file."""

    def parse(self, lines: list[bytes], last_is_cut: bool = False) -> ParsedChunk:
        """Parse the lines of a chunk into raw tables.

        Args:
            lines: Lines with or without their newlines.
            last_is_cut: Whether the last line lacks a newline.
        """
        self._shapes: dict[tuple[str, ...], Shape] = {}
        self._servers: dict[bytes, int] = {}
        self._spans, self._counts = 0, Counts()
        layers = Layers(self._counts)
        self._counts.read["lines"] = len(lines)
        for number, line in enumerate(lines, 1):
            for resource, span, events in layers.line(line, last_is_cut and number == len(lines)):
                server = self._servers.setdefault(bytes(resource), len(self._servers))
                owner = -1 if span is None else self._span(span, server)
                for raw in events:
                    if event := layers.decoded(Event, raw, "events", "event"):
                        head = (owner, server, event.time_unix_nano)
                        self._take(event.name, wire.EVENT_KINDS, head, event.attributes)
        tables: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        for shape in self._shapes.values():
            level = "spans" if shape.kind.table == wire.SPANS else "events"
            batch = shape.batch(self._counts.refused[level])
            if batch is not None:
                tables[shape.kind.table].append(batch)
        servers = [_canonical(raw) for raw in self._servers]
        self._counts.refused = {k: +v for k, v in self._counts.refused.items()}
        return ParsedChunk(dict(tables), self._spans, servers, self._counts)

    def _span(self, span: Span, server: int) -> int:
        """Add a request's span and return its row; -1 for spans of other kinds."""
        if span.name not in wire.REQUEST_SPANS:
            if not span.name.startswith(wire.STEP_SPAN_PREFIX):
                self._counts.refuse("spans", f"unknown span {span.name[:60]!r}")
            return -1
        owner, self._spans = self._spans, self._spans + 1
        head = (owner, server, span.span_id, span.parent_span_id)
        self._take(span.name, wire.REQUEST_SPANS, head, span.attributes)
        return owner

    def _take(
        self, name: str, kinds: dict[str, EventKind], head: Head, attributes: list[Attribute]
    ) -> None:
        key = (name, *[attribute.key for attribute in attributes])
        shape = self._shapes.get(key)
        if shape is None:
            kind = kinds.get(name, EventKind("", name))
            shape = self._shapes[key] = Shape(name, kind, key[1:])
        shape.heads.append(head)
        shape.values.append([attribute.value for attribute in attributes])


def _canonical(resource: bytes) -> str:
    """Return a resource's attributes as a sorted JSON string, which identifies its server."""
    try:
        entries = msgspec.json.decode(resource)["attributes"]
        values = {e["key"]: next(iter(e["value"].values())) for e in entries}
        return msgspec.json.encode(values, order="sorted").decode()
    except (*DECODE_ERRORS, KeyError, TypeError, AttributeError, StopIteration):
        return "{}"
