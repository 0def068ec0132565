"""Quantiles of held-out errors (split conformal prediction), and the chance to hold a limit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

# Quantiles of errors of left-out groups, in which every group counts once.
#
# A group is a model on a GPU; models of equal shape are one. Its rows differ only in load and
# share their error, so each group counts once, however many rows it has and however many splits
# left it out.
#
# What so few groups guarantee: split conformal prediction covers a new exchangeable group with
# 90 % only from nine groups on (``ceil(0.9 (n + 1)) <= n``), and a dozen of model x GPU are not
# exchangeable, since they share a few models. So 90 % holds on average over groups like these,
# not for each of them; an unseen model can lie outside in half of its rows.

#: Share of values that intervals are to cover.
LEVEL = 0.9

#: Half of such an interval over the standard deviation, where errors are normal.
NORMAL_QUANTILE = 1.645

Values = Float[np.ndarray, " n"]


def weighted_quantile(values: Values, weight: Values, level: float) -> float:
    """Smallest value up to which at least a share ``level`` of the weight lies.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.ones(3), 0.6)
    2.0
    """
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) / weight.sum()
    first = int(np.searchsorted(reached, level - 1e-12))
    return float(values[order][min(first, len(values) - 1)])


# The chance that a predicted time holds its limit.
#
# Left-out rows tell how measured times lie around predicted ones: log(measured / predicted), in
# half-widths of each row's interval. A prediction's own half-width turns such an error into one
# of its own time, as a conformal predictive distribution does (Vovk et al. 2019, "Nonparametric
# predictive distributions based on conformal prediction"). So the chance of holding a limit
# falls gradually, where a margin would fall off a cliff, and no margin has to be chosen.

#: Equally likely errors that a law is kept as, each the middle of its share.
COUNT = 20

_SHARES = (np.arange(COUNT) + 0.5) / COUNT


@dataclass(frozen=True)
class ErrorLaw:
    """How measured times lie around predicted ones.

    Attributes:
        errors: Equally likely values of log(measured / predicted), in half-widths of the interval.
    """

    errors: Sequence[float]

    def chance(self, excess: Values, half: Values) -> Values:
        """Chance that a limit is held.

        Args:
            excess: Predicted time as a share of its limit.
            half: Log half-width of the prediction's interval.

        >>> ErrorLaw((-1.0, 0.0, 1.0, 2.0)).chance(np.array([0.9, 1.0]), np.array([0.1, 0.1]))
        array([0.75, 0.5 ])
        """
        times = excess[..., None] * np.exp(half[..., None] * np.asarray(self.errors))
        return (times <= 1).mean(axis=-1)

    def held(self, holds: Callable[[float], bool]) -> float:
        """Chance that limits are held that only a trial can judge; found by bisection.

        Args:
            holds: Whether they are held with times off by so many half-widths. If they are with
                some, they are with shorter times.

        >>> ErrorLaw((-1.0, 0.0, 1.0, 2.0)).held(lambda error: error < 1.5)
        0.75
        """
        errors = sorted(self.errors)
        return bisect_left(errors, True, key=lambda error: not holds(error)) / len(errors)


def error_law(errors: Values, half: Values, weight: Values) -> ErrorLaw:
    """The law of left-out rows.

    Args:
        errors: log(measured / predicted).
        half: Log half-widths of the rows' intervals.
        weight: What each row counts.
    """
    scaled = errors / half
    return ErrorLaw(tuple(weighted_quantile(scaled, weight, share) for share in _SHARES))
