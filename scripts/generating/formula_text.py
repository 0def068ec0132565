"""Expressions as text: in Python and JavaScript, and in Go as statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from generating.expressions import ZERO, Expression

#: How tightly each kind binds its operands; a call or a name needs no brackets.
_BINDS = {
    "where": 0, ">": 1, ">=": 1, "<": 1, "<=": 1, "==": 1, "!=": 1,
    "+": 2, "-": 2, "*": 3, "/": 3, "**": 4,
}  # fmt: skip
_LOOSEST = min(_BINDS.values())


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


class Text:
    """Statements and expressions of plain numbers; of a choice, only one side is computed.

    Attributes:
        known: Texts of fields, and of parts that are at hand.
        lines: The statements so far.
    """

    #: What languages write differently.
    functions: Mapping[str, str]
    choice: str
    statement: str

    def __init__(self, known: Mapping[Expression, str]) -> None:
        self.known, self.lines = dict(known), list[str]()

    def declare_shared(
        self, roots: Collection[Expression], names: Mapping[Expression, str]
    ) -> None:
        """A variable for each part that several expressions have."""
        for part, name in used_parts(roots, names, 2).items():
            if part not in self.known:
                self.known[part] = self.declare(name, part)

    def declare(self, name: str, expression: Expression) -> str:
        """A new variable; its name as the language spells it."""
        self.lines.append(self.statement.format(name, self.text(expression)))
        return name

    def text(self, expression: Expression, outside: int = _LOOSEST) -> str:
        """An expression.

        Args:
            expression: What to write.
            outside: How tightly what stands around it binds.
        """
        if expression in self.known:
            return self.known[expression]
        kind, operands = expression.kind, expression.operands
        if kind == "number":
            return self.number(*expression.parts)
        if kind in self.functions:
            return f"{self.functions[kind]}({', '.join(map(self.text, operands))})"
        binds = _BINDS[kind]
        if kind == "where":
            condition, yes, no = (self.text(operand, binds + 1) for operand in operands)
            text = self.choice.format(condition=condition, yes=yes, no=no)
        else:  # from left to right, but powers
            left = self.text(operands[0], binds + (kind == "**"))
            text = f"{left} {kind} {self.text(operands[1], binds + 1)}"
        return f"({text})" if binds < outside else text

    def number(self, value: float) -> str:
        """A constant."""
        return repr(value)


class PythonText(Text):
    """For numba."""

    functions: Mapping[str, str] = {"max": "max", "min": "min"}
    choice = "{yes} if {condition} else {no}"
    statement = "    {} = {}"


class JavaScriptText(Text):
    """For a page."""

    functions: Mapping[str, str] = {"max": "Math.max", "min": "Math.min"}
    choice = "{condition} ? {yes} : {no}"
    statement = "  const {} = {};"


class GoText(Text):
    """Go, which has no expressions of choices: statements come before them.

    Attributes:
        powers: Bases, known before a step, of powers: each has its logarithm ``logN``.
    """

    #: The package's own: Go's functions of floating-point numbers mind signs of 0 and no numbers,
    #: which takes them several times as long.
    functions: Mapping[str, str] = {"max": "larger", "min": "smaller"}
    statement = "{} := {}"

    def __init__(
        self,
        known: Mapping[Expression, str],
        before: str = "",
        powers: list[Expression] | None = None,
    ) -> None:
        """Start without statements.

        Args:
            known: Texts of fields, and of parts that are at hand.
            before: The record whose values do not change from step to step.
            powers: Those that other statements have, to which more are added.
        """
        super().__init__(known)
        self.before, self.powers = before, [] if powers is None else powers
        self._variables = 0

    def declare(self, name: str, expression: Expression) -> str:
        """A new variable, in statements if it is a choice."""
        name = go_name(name, exported=False)
        if expression.kind != "where":
            return super().declare(name, expression)
        self.lines.append(f"var {name} float64")
        self.assign(name, expression)
        return name

    def assign(self, target: str, expression: Expression) -> None:
        """Something that is 0 so far."""
        if expression == ZERO:
            return
        if expression.kind != "where" or expression in self.known:
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
        if expression.kind == "**" and expression not in self.known:
            return self._power(*expression.operands)
        if expression.kind == "where" and expression not in self.known:
            self._variables += 1
            return self.declare(f"chosen{self._variables}", expression)
        return super().text(expression, outside)

    def number(self, value: float) -> str:
        """A constant; whole ones have no point."""
        return f"{value:.17g}" if value.is_integer() and abs(value) < 2**53 else repr(value)

    def _power(self, base: Expression, exponent: Expression) -> str:
        if not base.is_of(self.before):
            return f"math.Pow({self.text(base)}, {self.text(exponent)})"
        if base not in self.powers:
            self.powers.append(base)
        return f"power(c.log{self.powers.index(base) + 1}, {self.text(exponent)})"


def go_name(name: str, exported: bool = True) -> str:
    """A name as Go writes it, without the unit of seconds.

    >>> go_name("windowed_kv_read_s"), go_name("kv_read", exported=False)
    ('WindowedKVRead', 'kvRead')
    """
    second = "_s" if not name.endswith("_per_s") else ""
    first, *rest = name.removesuffix(second).split("_")
    return (camel(first) if exported else first) + camel(*rest)


def camel(*words: str, capitals: Collection[str] = ("cpu", "kv")) -> str:
    """Words as one, some in capitals."""
    return "".join(word.upper() if word in capitals else word.capitalize() for word in words)
