"""OTLP spans, also those of a known shape, read fast."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Union

import msgspec
import numpy as np
import pyarrow as pa

from pinn.server.readers.wire import (
    API,
    ATTRIBUTE_KINDS,
    ECHOES,
    JOURNEY,
    SPANS,
    SPARES,
    EventKind,
    numbers,
    repeated,
    strings,
)

# Typed decoding of OTLP-JSON lines: the attribute names known so far become types.
#
# Decoding straight into typed structs makes a third of the objects that a generic JSON decoder
# makes, and checks every value's type on the way. A name that is not known yet makes the whole
# line fail; the caller then decodes it generically, learns the name and goes on.

#: Unknown attribute names learned at most; lines with more of them take the slow path.
MAX_LEARNED = 256

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


class SpareNeededError(Exception):
    """An event holds only what the vocabulary does not decode."""


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

    def attribute(self, entry: Any) -> Any:
        """One attribute from its generic form.

        Raises:
            KeyError: If its name is unknown.
            ValueError: If it is no attribute, or its value is not of the name's type.
        """
        if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
            raise ValueError("attribute without a key")
        key = entry["key"]
        kind = self.types[key]
        if key in self.learned:
            return kind(value=msgspec.Raw(msgspec.json.encode(entry.get("value"))))
        if self.formats[key] == "-":
            return kind()
        try:
            return msgspec.convert(entry, kind, strict=False)
        except msgspec.ValidationError:
            value = _number(entry.get("value"), ATTRIBUTE_KINDS[key])
            if value is None:
                raise ValueError(f"bad value of {key}") from None
            return kind(value=_VALUES[ATTRIBUTE_KINDS[key]](value))

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

        event = struct(
            "Event", ("name", str, ""), ("timeUnixNano", _Int64, 0), ("attributes", attributes, [])
        )
        span = struct(
            "Span",
            ("name", str, ""),
            ("spanId", str, ""),
            ("parentSpanId", str, ""),
            ("attributes", attributes, []),
            ("events", list[event], []),  # type: ignore[valid-type]
        )
        scope = struct("ScopeSpans", ("spans", list[span]))  # type: ignore[valid-type]
        resource = struct(
            "ResourceSpans",
            ("scopeSpans", list[scope]),  # type: ignore[valid-type]
            ("resource", msgspec.Raw, msgspec.Raw(b"{}")),
        )
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


# Rows gathered by shape: one name, the same attributes in the same order.
#
# Servers write an event's attributes in the same order nearly always, so which attribute fills
# which column is worked out once per shape, and what a shape lacks refuses all its rows at once.

#: Columns before those of the attributes and how they are stored: ``q`` integer, ``d`` number,
#: ``s`` text, ``r`` raw JSON, ``-`` not at all. ``span`` and ``server`` count from 0 in a chunk.
EVENT_HEAD = {"span": "q", "server": "q", "wall_ns": "q"}
SPAN_HEAD = {"span": "q", "server": "q", "span_id": "s", "parent_id": "s"}

_ARROW_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string()}

#: No count of steps, tokens or blocks, and no nanoseconds of a clock, reach these.
_MAX_COUNT, _MAX_NS = 2**40, 2**62


class Shape:
    """Rows of one shape: numbers packed in 8 bytes each, texts in a list per column.

    Attributes:
        kind: What the rows are; None for an unknown event.
        take: Appends a row, given the head's values and the list of attributes; False, and nothing
            appended, if the attributes are not of this shape.
    """

    def __init__(
        self, name: str, kind: EventKind | None, attributes: list[type], vocabulary: Vocabulary
    ) -> None:
        self.kind = kind
        names = [vocabulary.names[a] for a in attributes]
        head = SPAN_HEAD if kind is not None and kind.table == SPANS else EVENT_HEAD
        self._formats = [*head.values(), *(vocabulary.formats[n] for n in names)]
        packed = [i for i, f in enumerate(self._formats) if f in "qd"]
        self._packed = {position: i for i, position in enumerate(packed)}
        self._texts: dict[int, list] = {i: [] for i, f in enumerate(self._formats) if f in "sr"}
        self._buffer = bytearray()
        self.take = _taker(attributes, self._formats, self._texts, self._buffer)
        self._columns = {column: i for i, column in enumerate(head)}
        self._extra: list[tuple[str, int]] = []
        self._checked: list[int] = []  # packed places of the integers, and what they may not reach
        self._limits = np.zeros(0, dtype=np.int64)
        self._refusal = ""
        if kind is None:
            self._refusal = f"unknown event {name[:60]!r}"
        else:
            places = {n: i for i, n in enumerate(names, len(head)) if self._formats[i] != "-"}
            self._lay_out(name, kind, places)
            is_timed = {"monotonic_ns", "monotonic_s"} & set(self._columns)
            if kind.table in (JOURNEY, API) and not is_timed:
                if any(n in SPARES and vocabulary.formats[n] == "-" for n in names):
                    raise SpareNeededError
                self._refusal = f"{name} without a monotonic time"

    def _lay_out(self, name: str, kind: EventKind, positions: dict[str, int]) -> None:
        """Find each column's position; of two attributes of one name the later one counts."""
        for field in kind.fields:
            found = next((n for n in field.names if n in positions), None)
            if found is not None:
                self._columns[field.column] = positions.pop(found)
            elif field.required:
                self._refusal = f"{name} without {field.names[0]}"
        self._extra = list(positions.items())
        integers = [f.column for f in kind.fields if f.kind is int and f.column in self._columns]
        self._checked = [self._packed[self._columns[column]] for column in integers]
        self._limits = np.array([_MAX_NS if c.endswith("_ns") else _MAX_COUNT for c in integers])

    def batch(self, refused: Counter[str]) -> pa.RecordBatch | None:
        """Take the rows out as columns; None, with the refusals counted, where none is left."""
        rows = np.frombuffer(bytes(self._buffer), dtype=np.int64).reshape(-1, len(self._packed))
        texts = {i: strings(t) for i, t in self._texts.items()}
        self._buffer.clear()
        for text in self._texts.values():
            text.clear()
        if not len(rows):
            return None
        if self._refusal or self.kind is None:
            refused[self._refusal] += len(rows)
            return None
        batch = self._record_batch(self.kind, rows, texts)
        size = rows[:, self._checked]
        kept = ((size < self._limits) & (size > -self._limits)).all(axis=1)
        if not kept.all():
            refused[f"{self.kind.label} with a number out of range"] += int((~kept).sum())
        if self.kind.table in (JOURNEY, API) and rows[:, 0].min() < 0:
            outside = kept & (rows[:, 0] < 0)
            refused["request event outside a request's span"] += int(outside.sum())
            kept &= ~outside
        if not kept.all():
            batch = batch.filter(pa.array(kept))
        return batch if batch.num_rows else None

    def _record_batch(
        self, kind: EventKind, rows: np.ndarray, texts: dict[int, pa.Array]
    ) -> pa.RecordBatch:
        def column(position: int) -> pa.Array:
            if position in texts:
                return texts[position]
            values = np.ascontiguousarray(rows[:, self._packed[position]])
            return numbers(values.view(np.float64) if self._formats[position] == "d" else values)

        columns = {name: column(position) for name, position in self._columns.items()}
        columns["label"] = repeated(kind.label, len(rows))
        for field in kind.fields:
            if field.column not in columns:
                columns[field.column] = pa.nulls(len(rows), _ARROW_TYPES[field.kind])
        extra = {name: column(position).to_pylist() for name, position in self._extra}
        columns["extra"] = self._extras(extra, len(rows))
        names = sorted(columns)
        return pa.RecordBatch.from_arrays([columns[name] for name in names], names)

    def _extras(self, extra: dict[str, list], count: int) -> pa.Array:
        """Attributes that fill no column, as JSON text."""
        if not extra:
            return pa.nulls(count, pa.string())
        raw = {name for name, position in self._extra if self._formats[position] == "r"}
        encoded = (
            msgspec.json.encode(
                {n: msgspec.Raw(v[row].encode()) if n in raw else v[row] for n, v in extra.items()}
            ).decode()
            for row in range(count)
        )
        return strings(list(encoded))


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
