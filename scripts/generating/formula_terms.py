"""Features as sums of terms, whose weights are worked out before a step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from generating.expressions import Expression

_ONE = Expression("number", (1.0,))


@dataclass(frozen=True)
class Share:
    """What a feature adds to the weight of a term: its coefficient times and over some costs.

    Attributes:
        feature: Its name.
        times: Factors.
        over: Divisors.
    """

    feature: str
    times: tuple[Expression, ...] = ()
    over: tuple[Expression, ...] = ()


def step_terms(
    features: Mapping[str, Expression], whole: Collection[Expression], known: str = "costs"
) -> dict[Expression, list[Share]]:
    """Terms that change from step to step, with what the features add to the weight of each.

    Args:
        features: Name -> expression.
        whole: Sums that are terms of their own.
        known: The record whose values do not change.
    """
    found: dict[Expression, list[Share]] = {}

    def add(expression: Expression, share: Share) -> None:
        kind, operands = expression.kind, expression.operands
        constant = [operand.records <= {known} for operand in operands]
        if expression in whole:
            found.setdefault(expression, []).append(share)
        elif kind == "+":
            for operand in operands:
                add(operand, share)
        elif kind == "*" and any(constant):
            factor, rest = operands if constant[0] else reversed(operands)
            add(rest, Share(share.feature, (*share.times, factor), share.over))
        elif kind == "/" and constant[1]:
            add(operands[0], Share(share.feature, share.times, (*share.over, operands[1])))
        elif kind == "where" and operands[1] != _ONE and constant[1] and _is_zero(operands[2]):
            times = (*share.times, operands[1])
            chosen = Expression("where", (operands[0], _ONE, operands[2]))
            add(chosen, Share(share.feature, times, share.over))
        else:
            found.setdefault(expression, []).append(share)

    for name, expression in features.items():
        add(expression, Share(name))
    return found


def is_of(expression: Expression, part: Expression, known: str = "costs") -> bool:
    """Whether nothing but a part of an expression, and a known record, decides it."""
    if expression == part or expression.records <= {known}:
        return True
    return bool(expression.operands) and all(is_of(o, part, known) for o in expression.operands)


def _is_zero(expression: Expression) -> bool:
    return expression == Expression("number", (0.0,))
