"""Walks decoded trace lines and gathers raw tables; every line, span and event is counted once."""

import gc
import struct
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from pinn.measurements.readers import wire
from pinn.measurements.readers.otlp import DECODE_ERRORS, Counts, Sieve, Vocabulary
from pinn.measurements.readers.request_spans import numbers, strings
from pinn.measurements.readers.wire import EventKind


class SpareNeededError(Exception):
    """An event holds only what the vocabulary does not decode."""


# Rows gathered by shape: one name, the same attributes in the same order.
#
# Servers write an event's attributes in the same order nearly always, so which attribute fills
# which column is worked out once per shape, and what a shape lacks refuses all its rows at once.

#: Columns before those of the attributes and how they are stored: ``q`` integer, ``d`` number,
#: ``s`` text, ``r`` raw JSON, ``-`` not at all. ``span`` and ``server`` count from 0 in a chunk.
EVENT_HEAD = {"span": "q", "server": "q", "wall_ns": "q"}
SPAN_HEAD = {"span": "q", "server": "q", "span_id": "s", "parent_id": "s"}

#: How the values of a field are stored.
ARROW_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string()}

#: No count of steps, tokens or blocks, and no nanoseconds of a clock, reach these.
_MAX_COUNT, _MAX_NS = 2**40, 2**62


class Shape:
    """Rows of one shape: numbers packed in 8 bytes each, texts in a list per column.

    Attributes:
        kind: What the rows are; without a table for an unknown event.
        take: Appends a row, given the head's values and the list of attributes; False, and nothing
            appended, if the attributes are not of this shape.
    """

    def __init__(
        self, name: str, kind: EventKind, attributes: list[type], vocabulary: Vocabulary
    ) -> None:
        self.kind = kind
        names = [vocabulary.names[a] for a in attributes]
        head = SPAN_HEAD if kind.table == wire.SPANS else EVENT_HEAD
        self._formats = [*head.values(), *(vocabulary.formats[n] for n in names)]
        packed = [i for i, f in enumerate(self._formats) if f in "qd"]
        self._packed = {position: i for i, position in enumerate(packed)}
        self._texts: dict[int, list] = {i: [] for i, f in enumerate(self._formats) if f in "sr"}
        self._buffer = bytearray()
        self.take = _taker(attributes, self._formats, self._texts, self._buffer)
        self._columns = {column: i for i, column in enumerate(head)}
        self._refusal = "" if kind.table else f"unknown event {name[:60]!r}"
        # Of two attributes of one name the later one counts.
        positions = {n: i for i, n in enumerate(names, len(head)) if self._formats[i] != "-"}
        for field in kind.fields:
            found = next((n for n in field.names if n in positions), None)
            if found is not None:
                self._columns[field.column] = positions.pop(found)
            elif field.required:
                self._refusal = f"{name} without {field.names[0]}"
        self._extra = list(positions.items())
        # Packed places of the integers, and what they may not reach.
        integers = [f.column for f in kind.fields if f.kind is int and f.column in self._columns]
        self._checked = [self._packed[self._columns[column]] for column in integers]
        self._limits = np.array([_MAX_NS if c.endswith("_ns") else _MAX_COUNT for c in integers])
        is_timed = {"monotonic_ns", "monotonic_s"} & set(self._columns)
        if kind.table in (wire.JOURNEY, wire.API) and not is_timed:
            if any(n in wire.SPARES and vocabulary.formats[n] == "-" for n in names):
                raise SpareNeededError
            self._refusal = f"{name} without a monotonic time"

    def batch(self, refused: Counter[str]) -> pa.RecordBatch | None:
        """Take the rows out as columns; None, with the refusals counted, where none is left."""
        rows = np.frombuffer(bytes(self._buffer), dtype=np.int64).reshape(-1, len(self._packed))
        texts = {i: strings(t) for i, t in self._texts.items()}
        self._buffer.clear()
        for text in self._texts.values():
            text.clear()
        if not len(rows):
            return None
        if self._refusal:
            refused[self._refusal] += len(rows)
            return None
        batch = self._record_batch(rows, texts)
        size = rows[:, self._checked]
        kept = ((size < self._limits) & (size > -self._limits)).all(axis=1)
        if not kept.all():
            refused[f"{self.kind.label} with a number out of range"] += int((~kept).sum())
        if self.kind.table in (wire.JOURNEY, wire.API) and rows[:, 0].min() < 0:
            outside = kept & (rows[:, 0] < 0)
            refused["request event outside a request's span"] += int(outside.sum())
            kept &= ~outside
        if not kept.all():
            batch = batch.filter(pa.array(kept))
        return batch if batch.num_rows else None

    def _record_batch(self, rows: np.ndarray, texts: dict[int, pa.Array]) -> pa.RecordBatch:
        def column(position: int) -> pa.Array:
            if position in texts:
                return texts[position]
            values = np.ascontiguousarray(rows[:, self._packed[position]])
            return numbers(values.view(np.float64) if self._formats[position] == "d" else values)

        columns = {name: column(position) for name, position in self._columns.items()}
        columns["label"] = strings([self.kind.label] * len(rows))
        for field in self.kind.fields:
            if field.column not in columns:
                columns[field.column] = pa.nulls(len(rows), ARROW_TYPES[field.kind])
        extra = {name: column(position).to_pylist() for name, position in self._extra}
        columns["extra"] = self._extras(extra, len(rows))
        names = sorted(columns)
        return pa.RecordBatch.from_arrays([columns[name] for name in names], names)

    def _extras(self, extra: dict[str, list], count: int) -> pa.Array:
        """Attributes that fill no column, as JSON text."""
        if not extra:
            return pa.nulls(count, pa.string())
        for name, position in self._extra:
            if self._formats[position] == "r":
                extra[name] = [msgspec.Raw(text.encode()) for text in extra[name]]
        rows = zip(*extra.values(), strict=True)
        named = (dict(zip(extra, row, strict=True)) for row in rows)
        return strings([msgspec.json.encode(row).decode() for row in named])


_TAKE = """
def take({head}, attributes):
    if len(attributes) != {count}:
        return False
    {unpack}
    if not ({types}):
        return False
    extend(pack({numbers}))
    {texts}
    return True
"""


def _taker(
    attributes: list[type], formats: list[str], texts: dict[int, list], buffer: bytearray
) -> Callable[..., bool]:
    """Write out :attr:`Shape.take` for a shape, like the constructor of a namedtuple.

    Every access in it then sees one type only, which CPython's adaptive interpreter makes three
    times as fast as a loop over mixed types.
    """
    heads = len(formats) - len(attributes)
    names = [f"a{i}" for i in range(len(formats))]
    values = names[:heads] + [
        f"bytes({n}.value).decode(errors='replace')" if f == "r" else f"{n}.value.v"
        for n, f in zip(names[heads:], formats[heads:], strict=True)
    ]
    packed = [i for i, f in enumerate(formats) if f in "qd"]
    source = _TAKE.format(
        head=", ".join(names[:heads]),
        count=len(attributes),
        unpack=f"[{', '.join(names[heads:])}] = attributes",
        types=" and ".join(f"type({n}) is t{n}" for n in names[heads:]) or "True",
        numbers=", ".join(values[i] for i in packed),
        texts="; ".join(f"append{i}({values[i]})" for i in texts) or "pass",
    )
    scope: dict[str, Any] = {
        "extend": buffer.extend,
        "pack": struct.Struct("@" + "".join(formats[i] for i in packed)).pack,
        **{f"append{i}": text.append for i, text in texts.items()},
        **{f"t{n}": kind for n, kind in zip(names[heads:], attributes, strict=True)},
    }
    exec(source, scope)
    return scope["take"]


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
            is_span = shape.kind.table == wire.SPANS
            batch = shape.batch(self._counts.refused["spans" if is_span else "events"])
            if batch is not None:
                tables[shape.kind.table].append(batch)
        servers = [_canonical(raw) for raw in self._servers]
        return ParsedChunk(dict(tables), self._spans, servers, self._counts)

    def _forget(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._shapes: dict[tuple, Shape] = {}
        self._last: dict[str, Shape] = {}
        self._last_spans: dict[str, Shape] = {}

    def _take_lines(self, lines: list[bytes], last_is_cut: bool) -> None:
        self._servers, self._spans, self._counts = {}, 0, Counts()
        decode, walk = self.vocabulary.decode, self._walk
        sieve = Sieve(self.vocabulary, self._counts)
        # Parsing makes many objects and no cycles: the collector would only look at them again.
        was_on = gc.isenabled()
        gc.disable()
        try:
            for number, line in enumerate(lines):
                try:
                    export = decode(line)
                except DECODE_ERRORS:
                    usable = sieve.usable(line, last_is_cut and number == len(lines) - 1)
                    decode = self.vocabulary.decode  # it may have learned names
                    if usable is None:
                        continue
                    export = decode(usable)
                walk(export.resourceSpans)
        finally:
            if was_on:
                gc.enable()

    def _walk(self, groups: list) -> None:
        """Take in a line that decoded as expected throughout."""
        read, last, last_spans = self._counts.read, self._last, self._last_spans
        for group in groups:
            server = self._servers.setdefault(bytes(group.resource), len(self._servers))
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
        if name not in wire.REQUEST_SPANS:
            if not name.startswith(wire.STEP_SPAN_PREFIX):
                self._counts.refused["spans"][f"unknown span {name[:60]!r}"] += 1
            return -1
        owner, self._spans = self._spans, self._spans + 1
        head = (owner, server, span.spanId, span.parentSpanId)
        self._take(self._last_spans, name, head, span.attributes)
        return owner

    def _take(self, last: dict[str, Shape], name: str, head: tuple, attributes: list) -> None:
        """Take a row of another shape than the last one of its name."""
        kinds = wire.REQUEST_SPANS if last is self._last_spans else wire.EVENT_KINDS
        types = [*map(type, attributes)]
        key = (len(head), name, *types)
        shape = self._shapes.get(key)
        if shape is None:
            kind = kinds.get(name, EventKind("", name, ()))
            shape = self._shapes[key] = Shape(name, kind, types, self.vocabulary)
        shape.take(*head, attributes)
        last[name] = shape


def _canonical(resource: bytes) -> str:
    """A resource's attributes as JSON text with sorted names, so that equal servers are equal."""
    try:
        entries = msgspec.json.decode(resource)["attributes"]
        values = {e["key"]: next(iter(e["value"].values())) for e in entries}
        return msgspec.json.encode(values, order="sorted").decode()
    except (*DECODE_ERRORS, KeyError, TypeError, AttributeError, StopIteration):
        return "{}"
