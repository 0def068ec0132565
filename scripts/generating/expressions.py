"""Formulas read off Python functions, to be written in another language.

A formula is a small function of records and numbers: arithmetic, one comparison at a time,
``np.maximum``, ``np.minimum``, ``np.where``, names for parts of it, and calls of further functions
of that kind. A record's fields are its variables; its properties are formulas too.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from pinn.errors import PinnError

_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
_COMPARED = {ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!="}
_RELATIONS = frozenset(_COMPARED.values())
_CALLED: dict[Any, str] = {np.maximum: "max", np.minimum: "min", np.where: "where"}


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

    @property
    def records(self) -> frozenset[str]:
        """Names of the records that it depends on."""
        if self.kind == "field":
            return frozenset([self.parts[0]])
        return frozenset().union(*(operand.records for operand in self.operands))


@dataclass(frozen=True)
class Record:
    """What a parameter of a formula stands for: a dataclass of numbers.

    Attributes:
        name: What it is called in expressions.
        type: The dataclass.
    """

    name: str
    type: type


Value = Expression | Record


class Formulas:
    """Expressions of functions, with the name of the function that each came from."""

    def __init__(self) -> None:
        self.names: dict[Expression, str] = {}

    def read(self, function: Callable, *arguments: Value) -> Expression:
        """The expression that a function returns.

        Args:
            function: A formula, as the module's docstring says.
            arguments: One for each parameter that has no default.

        Raises:
            PinnError: If it holds anything else.
        """
        function = inspect.unwrap(function)
        assert isinstance(function, FunctionType)
        node = _definition(function)
        names, defaults = [a.arg for a in node.args.args], function.__defaults__ or ()
        given = (*arguments, *defaults[len(arguments) - len(names) :]) if defaults else arguments
        scope = dict(inspect.getclosurevars(function).nonlocals)
        scope |= dict(zip(names, given[: len(names)], strict=True))
        found = _Reader(self, function, scope).body(node)
        if not isinstance(node, ast.Lambda) and found.operands:
            self.names.setdefault(found, function.__name__.strip("_"))
        return found


class _Reader:
    """Reads one function's body."""

    def __init__(self, formulas: Formulas, function: FunctionType, scope: dict[str, Any]) -> None:
        self.formulas, self.function, self.scope = formulas, function, scope

    def body(self, node: ast.Lambda | ast.FunctionDef) -> Expression:
        if isinstance(node, ast.Lambda):
            return self.expression(node.body)
        for statement in node.body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                return self.expression(statement.value)
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self.scope[statement.targets[0].id] = self.value(statement.value)
            elif not isinstance(statement, ast.Expr):  # a docstring
                raise self._unknown(statement)
        raise self._unknown(node)

    def expression(self, node: ast.expr) -> Expression:
        """An expression for a number; of a comparison, 1 where it holds."""
        found = self.value(node)
        if not isinstance(found, Expression | int | float):
            raise self._unknown(node)
        found = _number(found)
        return _where(found, _number(1), _number(0)) if found.kind in _RELATIONS else found

    def value(self, node: ast.expr) -> Any:
        """An expression, or what Python knows already: a number, a record, a function."""
        match node:
            case ast.Constant(value=constant):
                return constant
            case ast.Name(id=name):
                return self._named(name, node)
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(self.value(owner), name)
            case ast.BinOp(left=a, op=op, right=b) if type(op) in _BINARY:
                return self._combined(_BINARY[type(op)], a, b)
            case ast.Compare(left=a, ops=[op], comparators=[b]) if type(op) in _COMPARED:
                return self._combined(_COMPARED[type(op)], a, b)
            case ast.Call(func=called, keywords=[]):
                return self._call(self.value(called), node)
        raise self._unknown(node)

    def _named(self, name: str, node: ast.expr) -> Any:
        for known in (self.scope, self.function.__globals__, vars(builtins)):
            if name in known:
                return known[name]
        raise self._unknown(node)

    def _attribute(self, owner: Any, name: str) -> Any:
        if not isinstance(owner, Record):
            return getattr(owner, name)
        if is_dataclass(owner.type) and name in {f.name for f in fields(owner.type)}:
            return Expression("field", (owner.name, name))
        return self.formulas.read(getattr(owner.type, name).func, owner)

    def _combined(self, kind: str, *operands: ast.expr) -> Expression:
        parts = tuple(self.expression(operand) for operand in operands)
        if kind == "*" and _number(1) in parts:
            return parts[0] if parts[1] == _number(1) else parts[1]
        return Expression(kind, parts)

    def _call(self, called: Any, node: ast.Call) -> Expression:
        kind, arguments = _CALLED.get(called), node.args
        if kind == "where":
            condition = self.value(arguments[0])
            return _where(condition, *(self.expression(value) for value in arguments[1:]))
        if kind is not None:
            return self._combined(kind, *arguments)
        values = [self.value(argument) for argument in arguments]
        if not isinstance(called, FunctionType):
            raise self._unknown(node)
        return self.formulas.read(
            called, *(v if isinstance(v, Record) else _number(v) for v in values)
        )

    def _unknown(self, node: ast.AST) -> PinnError:
        return PinnError(
            f"{self.function.__module__}.{self.function.__qualname__}: a formula cannot hold "
            f"'{ast.unparse(node)}'; use arithmetic, comparisons, np.maximum, np.minimum, np.where "
            "and functions of the same kind"
        )


def _where(condition: Expression, yes: Expression, no: Expression) -> Expression:
    return Expression("where", (condition, yes, no))


def _number(value: Any) -> Expression:
    return value if isinstance(value, Expression) else Expression("number", (float(value),))


def _definition(function: FunctionType) -> ast.Lambda | ast.FunctionDef:
    """The syntax tree of a function, found by its first line."""
    code = function.__code__
    found = []
    for node in ast.walk(_module(code.co_filename)):
        if isinstance(node, ast.Lambda) and code.co_name == "<lambda>":
            lines = {node.lineno}
        elif isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            lines = {node.lineno, *(decorator.lineno for decorator in node.decorator_list)}
        else:
            continue
        if code.co_firstlineno in lines:
            found.append(node)
    if len(found) != 1:
        raise PinnError(
            f"{code.co_filename}, line {code.co_firstlineno}: expected one function to read, got "
            f"{len(found)}; give each formula a line of its own"
        )
    return found[0]


@cache
def _module(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text())
