"""Typed decoding of OTLP-JSON lines: the attribute names known so far become types.

Decoding straight into typed structs makes a third of the objects that a generic JSON decoder makes,
and checks every value's type on the way. A name that is not known yet makes the whole line fail;
the caller then decodes it generically, learns the name and goes on.
"""

from __future__ import annotations

from typing import Annotated, Any, Union

import msgspec

from pinn.data.traces.readers.wire import ATTRIBUTE_KINDS, ECHOES, SPARES

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
