"""Formulas read off Python functions, to be written in another language.

A formula is a small function of records and numbers: arithmetic, one comparison at a time,
``np.maximum``, ``np.minimum``, ``np.where``, names for parts of it, and calls of further functions
of that kind. A record's fields are its variables; its properties are formulas too. To be read, it
is called with a symbol for each variable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from types import FrameType
from typing import Any

import numpy as np

from pinn.errors import PinnError

_KINDS: dict[Callable, str] = {
    np.add: "+", np.subtract: "-", np.multiply: "*", np.divide: "/", np.power: "**",
    np.greater: ">", np.greater_equal: ">=", np.less: "<", np.less_equal: "<=",
    np.equal: "==", np.not_equal: "!=", np.maximum: "max", np.minimum: "min",
}  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """A formula or a part of one; equal ones are the same value.

    Attributes:
        kind: ``number``, ``field``, an operator, ``max``, ``min`` or ``where``.
        parts: The number, or the record's name and the field's, or what the kind takes.
    """

    kind: str
    parts: tuple[Any, ...]

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The expressions that it is made of."""
        return () if self.kind in ("number", "field") else self.parts

    def fields(self, given: Collection[Expression] = ()) -> frozenset[tuple[str, str]]:
        """Record and name of each field that it depends on, outside of parts that are given."""
        if self in given:
            return frozenset()
        if self.kind == "field":
            return frozenset([self.parts])
        return frozenset().union(*(operand.fields(given) for operand in self.operands))

    def is_of(self, record: str, given: Collection[Expression] = ()) -> bool:
        """Whether nothing but the fields of a record decides it, and what is given."""
        return all(name == record for name, _ in self.fields(given))


ZERO, ONE = (Expression("number", (value,)) for value in (0.0, 1.0))


class Symbol(np.ndarray):
    """A number that nobody knows yet: what is made of it are symbols of expressions."""

    expression: Expression

    def __new__(cls, kind: str, *parts: Any) -> Symbol:
        """The symbol of an expression of that kind and those parts."""
        made = super().__new__(cls, ())
        made.fill(np.nan)  # what a function that does not know symbols would see
        made.expression = Expression(kind, parts)
        return made

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **how: Any) -> Symbol:
        if ufunc not in _KINDS or method != "__call__" or how:
            raise _unknown(f"np.{ufunc.__name__}")
        parts = [number(operand) for operand in operands]
        if ufunc is np.multiply and ONE in parts:
            parts.remove(ONE)
            return Symbol(parts[0].kind, *parts[0].parts)
        return Symbol(_KINDS[ufunc], *parts)

    def __array_function__(self, function: Any, _: Any, arguments: Any, __: Any) -> Symbol:
        if function is not np.where or not isinstance(arguments[0], Symbol):
            raise _unknown(f"np.{function.__name__}")
        condition, *values = arguments
        return Symbol("where", condition.expression, *map(number, values))

    # An array's own take squares and roots for operations of their own.

    def __pow__(self, exponent: Any) -> Any:
        return np.power(self, exponent)

    def __rpow__(self, base: Any) -> Any:
        return np.power(base, self)

    def __bool__(self) -> bool:
        raise _unknown("if, and, or, max(), min()")

    def item(self, *_: Any) -> Any:
        """Refuse: nobody knows the number."""
        raise _unknown("functions of plain numbers")

    __float__ = __int__ = __index__ = __round__ = item


def number(value: Any) -> Expression:
    """The expression of a symbol or a number; of a comparison, 1 where it holds."""
    if not isinstance(value, Symbol):
        if np.isnan(value):
            raise _unknown("functions of plain arrays")
        return Expression("number", (float(value),))
    found = value.expression
    return Expression("where", (found, ONE, ZERO)) if found.kind[0] in "<>=!" else found


def _unknown(what: str) -> PinnError:
    return PinnError(
        f"a formula cannot hold {what}; use arithmetic, comparisons, np.maximum, np.minimum, "
        "np.where and functions of the same kind"
    )


def record(name: str, kind: type) -> Any:
    """A dataclass of numbers, each a symbol; what it is called in expressions."""
    return kind(**{f.name: Symbol("field", name, f.name) for f in fields(kind)})


class Formulas:
    """Expressions of functions, with the name of the function that each came from."""

    def __init__(self) -> None:
        self.names: dict[Expression, str] = {}

    def read(self, function: Callable, *records: Any) -> Expression:
        """The expression that a formula returns; functions that it calls name its parts.

        Raises:
            PinnError: If it holds anything but what the module's docstring says.
        """
        before = sys.getprofile()
        sys.setprofile(self._name)
        try:
            return number(function(*records))
        except PinnError as error:
            place = f"{function.__module__}, line {function.__code__.co_firstlineno}"
            raise PinnError(f"{place}: {error}") from error
        finally:
            sys.setprofile(before)

    def _name(self, frame: FrameType, event: str, returned: Any) -> None:
        """What a profiler does when a function was left: its name is its result's."""
        function = frame.f_code.co_name
        if event != "return" or frame.f_globals is globals() or function == "<lambda>":
            return
        if isinstance(returned, Symbol) and (found := number(returned)).operands:
            self.names.setdefault(found, function.strip("_"))
