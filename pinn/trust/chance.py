"""The chance that a predicted time holds its limit.

Left-out rows tell how measured times lie around predicted ones: log(measured / predicted), in
half-widths of each row's interval. A prediction's own half-width turns such an error into one of
its own time, as a conformal predictive distribution does (Vovk et al. 2019, "Nonparametric
predictive distributions based on conformal prediction"). So the chance of holding a limit falls
gradually, where a margin would fall off a cliff, and no margin has to be chosen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from pinn.trust.conformal import LEVEL, Values, weighted_quantile

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
        return (self._times(excess, half) <= 1).mean(axis=-1)

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

    def _times(self, excess: Values, half: Values) -> Float[np.ndarray, "n errors"]:
        """Equally likely times as shares of the limit."""
        return excess[..., None] * np.exp(half[..., None] * np.asarray(self.errors))


def error_law(errors: Values, half: Values, weight: Values) -> ErrorLaw:
    """The law of left-out rows.

    Args:
        errors: log(measured / predicted).
        half: Log half-widths of the rows' intervals.
        weight: What each row counts.
    """
    scaled = errors / half
    return ErrorLaw(tuple(weighted_quantile(scaled, weight, share) for share in _SHARES))


def normal_law(level: float = LEVEL) -> ErrorLaw:
    """Where left-out rows are not known: normal errors, of which the interval holds its level."""
    quantile = NormalDist().inv_cdf
    return ErrorLaw(tuple(quantile(share) / quantile((1 + level) / 2) for share in _SHARES))
