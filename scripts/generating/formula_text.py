"""Expressions as text: in Python and JavaScript; of Go what is the same."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from generating.expressions import Expression

#: How tightly each kind binds its operands; a call or a name needs no brackets.
_BINDS = {
    "where": 0, ">": 1, ">=": 1, "<": 1, "<=": 1, "==": 1, "!=": 1,
    "+": 2, "-": 2, "*": 3, "/": 3, "**": 4,
}  # fmt: skip
LOOSEST = min(_BINDS.values())


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

    def text(self, expression: Expression, outside: int = LOOSEST) -> str:
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
