"""Expressions as text: in Python and JavaScript, and in Go as statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from generating.expressions import Expression

#: How tightly each kind binds its operands; a call or a name needs no brackets.
_BINDS = {
    "where": 0, ">": 1, ">=": 1, "<": 1, "<=": 1, "==": 1, "!=": 1,
    "+": 2, "-": 2, "*": 3, "/": 3, "**": 4,
}  # fmt: skip
_LOOSEST = min(_BINDS.values())
_INITIALS = {"kv": "KV", "cpu": "CPU"}
#: Go's functions of the package: its own of floating-point numbers mind signs of 0 and no numbers,
#: which takes them several times as long.
_COMPARING = {"max": "larger", "min": "smaller"}

#: The text of an expression that has a name, or None.
Named = Callable[[Expression], str | None]


def used_parts(
    roots: Iterable[Expression], names: Mapping[Expression, str], least: int
) -> dict[Expression, str]:
    """Named parts of expressions that occur at so many places, inner ones first.

    Args:
        roots: The expressions.
        names: What parts are called; those of one name get numbers.
        least: Smallest number of places.
    """
    places: Counter[Expression] = Counter()
    order: list[Expression] = []

    def visit(expression: Expression) -> None:
        places[expression] += 1
        if places[expression] == 1:
            for operand in expression.operands:
                visit(operand)
            order.append(expression)

    for root in roots:
        visit(root)
    seen: Counter[str] = Counter()
    found = {}
    for part in order:
        if part in names and places[part] >= least:
            name = names[part]
            seen[name] += 1
            found[part] = name if seen[name] == 1 else f"{name}_{seen[name]}"
    return found


@dataclass(frozen=True)
class Language:
    """What languages write differently in an expression.

    Attributes:
        library: Before ``max`` and ``min``.
        choice: Of ``yes``, ``no`` and ``condition``; only the chosen side is computed.
    """

    library: str
    choice: str


PYTHON = Language("", "{yes} if {condition} else {no}")
JAVASCRIPT = Language("Math.", "{condition} ? {yes} : {no}")


def expression_text(
    expression: Expression, named: Named, language: Language, outside: int = _LOOSEST
) -> str:
    """An expression of plain numbers.

    Args:
        expression: What to write.
        named: Texts of fields, and of parts that are at hand.
        language: To write it in.
        outside: How tightly what stands around it binds.
    """

    def inner(operand: Expression, binds: int = _LOOSEST) -> str:
        return expression_text(operand, named, language, binds)

    name = named(expression)
    if name is not None:
        return name
    kind, operands = expression.kind, expression.operands
    if kind == "number":
        return repr(expression.parts[0])
    if kind in ("max", "min"):
        return f"{language.library}{kind}({', '.join(inner(o) for o in operands)})"
    if kind == "where":
        texts = (inner(o, _LOOSEST + 1) for o in operands)
        text = language.choice.format(**dict(zip(("condition", "yes", "no"), texts, strict=True)))
    else:
        text = _binary(kind, [inner(o, b) for o, b in _bound(expression)])
    return f"({text})" if _BINDS[kind] < outside else text


def _bound(expression: Expression) -> list[tuple[Expression, int]]:
    """Operands of a binary operator and how tightly each binds; it goes from left to right."""
    binds = _BINDS[expression.kind]
    left, right = expression.operands
    return [(left, binds + (expression.kind == "**")), (right, binds + 1)]


def _binary(kind: str, operands: list[str]) -> str:
    return f" {kind} ".join(operands)


class GoText:
    """Statements of Go that work out expressions.

    Attributes:
        lines: The statements so far.
        powers: Bases, known before a step, of powers: each has its logarithm ``logN``.
    """

    def __init__(self, named: Named, before_a_step: str) -> None:
        """Start without statements.

        Args:
            named: Texts of fields, and of parts that are at hand.
            before_a_step: The record whose values do not change from step to step.
        """
        self.named, self.known = named, frozenset([before_a_step])
        self.lines: list[str] = []
        self.powers: list[Expression] = []
        self._variables = 0

    def declare(self, name: str, expression: Expression) -> None:
        """A new variable."""
        if expression.kind == "where":
            self.lines.append(f"var {name} float64")
            self.assign(name, expression)
        else:
            self.lines.append(f"{name} := {self.text(expression)}")

    def assign(self, target: str, expression: Expression) -> None:
        """Something that is 0 so far."""
        if expression == Expression("number", (0.0,)):
            return
        if expression.kind != "where" or self.named(expression) is not None:
            self.lines.append(f"{target} = {self.text(expression)}")
            return
        condition, yes, no = expression.operands
        self.lines.append(f"if {self.text(condition)} {{")
        self.assign(target, yes)
        before = len(self.lines)
        self.assign(target, no)
        if len(self.lines) > before:
            self.lines.insert(before, "} else {")
        self.lines.append("}")

    def text(self, expression: Expression, outside: int = _LOOSEST) -> str:
        """An expression; what needs statements comes before it."""
        name = self.named(expression)
        if name is not None:
            return name
        kind, operands = expression.kind, expression.operands
        if kind == "number":
            return (
                f"{expression.parts[0]:.17g}" if _is_whole(expression) else repr(*expression.parts)
            )
        if kind in _COMPARING:
            return f"{_COMPARING[kind]}({', '.join(self.text(o) for o in operands)})"
        if kind == "**":
            return self._power(*operands)
        if kind == "where":
            self._variables += 1
            variable = f"chosen{self._variables}"
            self.declare(variable, expression)
            return variable
        text = _binary(kind, [self.text(o, b) for o, b in _bound(expression)])
        return f"({text})" if _BINDS[kind] < outside else text

    def _power(self, base: Expression, exponent: Expression) -> str:
        if not base.records <= self.known:
            return f"math.Pow({self.text(base)}, {self.text(exponent)})"
        if base not in self.powers:
            self.powers.append(base)
        return f"power(c.log{self.powers.index(base) + 1}, {self.text(exponent)})"


def _is_whole(number: Expression) -> bool:
    return number.parts[0].is_integer() and abs(number.parts[0]) < 2**53


def go_name(name: str, exported: bool = True) -> str:
    """A name as Go writes it, without the unit of seconds.

    >>> go_name("windowed_kv_read_s"), go_name("kv_read", exported=False)
    ('WindowedKVRead', 'kvRead')
    """
    second = "_s" if not name.endswith("_per_s") else ""
    first, *rest = name.removesuffix(second).split("_")
    capitals = [_INITIALS.get(word, word.capitalize()) for word in (first, *rest)]
    return "".join(capitals if exported else [first, *capitals[1:]])
