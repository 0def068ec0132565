"""Quantiles of held-out errors (split conformal prediction), and probability of meeting a limit."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

# Quantiles of the errors of held-out groups, in which every group counts once.
#
# A group is a model on a GPU; models of equal shape are one model. The rows of a group differ only
# in load and share their error. Each group therefore counts once, regardless of its number of rows
# and splits.
#
# Few groups give only weak guarantees: split conformal prediction covers a new exchangeable group
# with a probability of 90 % only if the number of groups n is at least nine (``ceil(0.9 (n + 1)) <=
# n``). A dozen pairs of model and GPU are not exchangeable, because they share a few models. The 90
# % are thus an average over similar groups, not guaranteed for each group: half of the rows of an
# unseen model may be outside their intervals.

#: Share of measurements that intervals should cover (nominal coverage).
LEVEL = 0.9

#: Ratio of the half-width of a 90 % interval to the standard deviation of normally distributed
#: errors.
NORMAL_QUANTILE = 1.645

Values = Float[np.ndarray, " n"]


def weighted_quantile(values: Values, weight: Values, level: float) -> float:
    """Return the smallest value with at least a share ``level`` of the weight at or below it.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.ones(3), 0.6)
    2.0
    """
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) / weight.sum()
    first = int(np.searchsorted(reached, level - 1e-12))
    return float(values[order][min(first, len(values) - 1)])


# Probability that a measured time meets its limit.
#
# The errors of held-out rows, log(measured / predicted) in units of each row's half-width, are a
# distribution. The half-width of a prediction scales this distribution to its own time. This is a
# conformal predictive distribution (Vovk et al. 2019, "Nonparametric predictive distributions based
# on conformal prediction"). Near the limit, the probability of meeting it thus decreases gradually,
# so no safety margin has to be chosen.

#: Number of equally likely errors that represent a distribution. Each one is the median of a
#: fraction 1 / ``COUNT`` of the distribution.
COUNT = 20

_SHARES = (np.arange(COUNT) + 0.5) / COUNT


@dataclass(frozen=True)
class ErrorLaw:
    """Distribution of measured times relative to predicted times.

    Attributes:
        errors: Equally likely values of log(measured / predicted), in units of the interval's
            half-width.
    """

    errors: Sequence[float]

    def chance(self, excess: Values, half: Values) -> Values:
        """Return the probability that the measured time meets a limit, given its prediction.

        Args:
            excess: Ratio of the predicted time to its limit.
            half: Log half-width of the prediction's interval.

        >>> ErrorLaw((-1.0, 0.0, 1.0, 2.0)).chance(np.array([0.9, 1.0]), np.array([0.1, 0.1]))
        array([0.75, 0.5 ])
        """
        times = excess[..., None] * np.exp(half[..., None] * np.asarray(self.errors))
        return (times <= 1).mean(axis=-1)

    def error_at(self, probability: float) -> float:
        """Return the smallest error that a share ``probability`` of the errors does not exceed.

        >>> ErrorLaw((-1.0, 0.0, 1.0, 2.0)).error_at(0.75)
        1.0
        """
        place = math.ceil(probability * len(self.errors) - 1e-9)
        return sorted(self.errors)[max(place, 1) - 1]

    def held(self, holds: Callable[[float], bool]) -> float:
        """Return the probability of meeting limits that are checked by a function (a simulation).

        The probability is the share of ``errors`` at which the limits are met. It is found by
        bisection over the sorted errors.

        Args:
            holds: Function that takes a prediction error, in half-widths of the interval, and
                returns whether the limits are met if all predicted times change by this error.
                Limits that are met at one error must also be met at every smaller error, which
                makes times shorter.

        >>> ErrorLaw((-1.0, 0.0, 1.0, 2.0)).held(lambda error: error < 1.5)
        0.75
        """
        errors = sorted(self.errors)
        return bisect_left(errors, True, key=lambda error: not holds(error)) / len(errors)


def normal_law() -> ErrorLaw:
    """Return the distribution of normally distributed errors, in half-widths of a 90 % interval."""
    return ErrorLaw(tuple(NormalDist().inv_cdf(share) / NORMAL_QUANTILE for share in _SHARES))


def error_law(errors: Values, half: Values, weight: Values) -> ErrorLaw:
    """Return the distribution of the errors of held-out rows, in half-widths.

    Args:
        errors: log(measured / predicted) of each row.
        half: Log half-width of each row's interval.
        weight: Weight of each row.
    """
    scaled = errors / half
    return ErrorLaw(tuple(weighted_quantile(scaled, weight, share) for share in _SHARES))
