"""Expressions as Go: statements, and names as Go spells them."""

from collections.abc import Collection, Mapping

from generating.expressions import ZERO, Expression
from generating.formula_text import LOOSEST, Text


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
        name = go_variable(name)
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

    def text(self, expression: Expression, outside: int = LOOSEST) -> str:
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


def go_name(name: str) -> str:
    """An exported name as Go writes it, without the unit of seconds.

    >>> go_name("windowed_kv_read_s"), go_variable("kv_read")
    ('WindowedKVRead', 'kvRead')
    """
    return camel(*_words(name))


def go_variable(name: str) -> str:
    """A name that only the package knows."""
    first, *others = _words(name)
    return first + camel(*others)


def _words(name: str) -> list[str]:
    return name.removesuffix("" if name.endswith("_per_s") else "_s").split("_")


def camel(*words: str, capitals: Collection[str] = ("cpu", "kv")) -> str:
    """Words as one, some in capitals."""
    return "".join(word.upper() if word in capitals else word.capitalize() for word in words)
