"""Which observations to calibrate on when each one costs something.

None of these looks at a measured time: what they choose could have been asked for beforehand.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from pinn.errors import PinnError
from pinn.training.calibration.intervals import Intervals
from pinn.training.calibration.prior import COEFFICIENT_SPREAD

SELECTIONS = ("random", "active")

#: Operating regions: so many equal ranges of queue depth, and of KV usage in each. Chosen, with the
#: noise, on the 20 % of the public run between calibration and test (LOG.md).
REGIONS = 6

#: Relative uncertainty of one interval's mean step time.
NOISE = 0.01


def select(
    how: str, candidates: Intervals, base: Float[np.ndarray, " features"], budget: int, seed: int
) -> Int[np.ndarray, " chosen"]:
    """Choose ``budget`` of the candidates, or all if there are fewer.

    Args:
        how: ``active`` or ``random``.
        candidates: What can be chosen.
        base: Coefficients before the calibration.
        budget: How many to choose.
        seed: Of the random choice; the active one draws nothing.

    Returns:
        Row numbers in order of time.

    Raises:
        PinnError: If ``how`` is unknown or the budget is not positive.
    """
    if budget < 1:
        raise PinnError(f"--budget must be at least 1 observation, got {budget}")
    if how == "random":
        size = min(budget, len(candidates))
        return np.sort(np.random.default_rng(seed).choice(len(candidates), size, replace=False))
    if how == "active":
        return np.sort(_most_informative(candidates, base, budget))
    raise PinnError(f"unknown selection {how!r}: use one of {', '.join(SELECTIONS)}")


def regions(candidates: Intervals) -> Int[np.ndarray, " candidates"]:
    """Operating region of each: equal ranges of queue depth times equal ranges of KV usage."""
    region = np.zeros(len(candidates), dtype=np.int64)
    for values in (candidates.queue_share, candidates.kv_usage):
        low, span = values.min(), np.ptp(values)
        place = (values - low) / span * REGIONS if span > 0 else np.zeros(len(values))
        region = region * REGIONS + np.minimum(place.astype(np.int64), REGIONS - 1)
    return region


def _most_informative(
    candidates: Intervals, base: Float[np.ndarray, " features"], budget: int
) -> Int[np.ndarray, " chosen"]:
    """Regions in turn; from each the interval with the largest expected information gain.

    Under a Gaussian prior on relative offsets with covariance S, an interval whose relative
    features are u gains log(1 + u S u / noise^2) / 2 about the coefficients: greedy Bayesian
    D-optimal design. Features are relative to the base's own prediction, not to what was measured.
    """
    relative = candidates.features * base / (candidates.features @ base)[:, None]
    covariance = np.eye(relative.shape[1]) * COEFFICIENT_SPREAD**2
    left = [np.flatnonzero(regions(candidates) == r) for r in np.unique(regions(candidates))]
    chosen: list[int] = []
    turn = 0
    while len(chosen) < min(budget, len(candidates)):
        pool = left[turn % len(left)]
        gain = np.einsum("ij,jk,ik->i", relative[pool], covariance, relative[pool])
        best = int(np.argmax(gain))
        chosen.append(int(pool[best]))
        known = covariance @ relative[pool[best]]
        covariance -= np.outer(known, known) / (NOISE**2 + gain[best])
        left[turn % len(left)] = np.delete(pool, best)
        if not len(left[turn % len(left)]):
            del left[turn % len(left)]
        else:
            turn += 1
    return np.array(chosen)
