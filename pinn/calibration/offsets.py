"""Residual offsets of named coefficients: ridge around the base, with totals that stay physical.

The base coefficients stay frozen; a total is base + offset. With X the features over the measured
times, so that X total = 1 where the fit is exact, the offsets minimize

    sum_i w_i (x_i . total - 1)^2 + n strength sum_k (offset_k / spread_k)^2,  total_k >= lower_k

The penalty is on offsets over their spread, by default the base itself, so units do not matter.
Lower bounds are those of the registry: 0, and 1 for what the datasheet bounds, so that no
calibrated step is faster than its floor. The substitution total = lower + u makes it non-negative
least squares. Weights are Huber's: w_i falls beyond 1.5 times the median residual, since stalls of
a server are no property of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

#: Strengths to choose from, by cross-validation: from none to nothing but the base.
STRENGTHS = 10.0 ** np.arange(-9, 1.01, 0.5)
#: Rounds of Huber's weights: an assumption.
_REWEIGHTINGS = 2
#: Median residuals up to which a row counts in full: a standard deviation of normal noise is 1.48.
_HUBER = 1.5
#: Chosen on the 20 % of the public run between calibration and test (LOG.md).
_FOLDS = 5

Vector = Float[np.ndarray, " features"]
Matrix = Float[np.ndarray, "rows features"]
Rows = Float[np.ndarray, " rows"]


@dataclass(frozen=True)
class Prior:
    """What the totals are before and may be after.

    Attributes:
        base: The frozen coefficients.
        lower: Smallest totals.
        spread: How far each may be off, in its own unit; 0 keeps the base.
    """

    base: Vector
    lower: Vector
    spread: Vector


def fit_totals(
    features: Matrix, seconds: Rows, prior: Prior, strength: float, scale: Rows | None = None
) -> Vector:
    """Totals under a given strength.

    A coefficient whose feature is 0 in every row, or whose spread is 0, keeps its base exactly.

    Args:
        features: Features of each row.
        seconds: Measured seconds of each row.
        prior: Base, lower bounds and spreads.
        strength: Of the penalty, per row.
        scale: Seconds that a row's residual is measured in; by default its own, for relative
            errors.
    """
    scale = seconds if scale is None else scale
    free = (np.abs(features).max(axis=0) > 0) & (prior.spread > 0)
    fixed = features[:, ~free] @ prior.base[~free]
    scaled = features[:, free] / scale[:, None]
    base, lower = prior.base[free], np.minimum(prior.lower, prior.base)[free]
    target = (seconds - fixed) / scale - scaled @ lower
    penalty = np.diag(np.sqrt(len(seconds) * strength) / prior.spread[free])
    weight = np.ones(len(seconds))
    excess = base - lower
    for _ in range(_REWEIGHTINGS + 1):
        root = np.sqrt(weight)
        matrix = np.vstack([scaled * root[:, None], penalty])
        excess, _ = nnls(matrix, np.concatenate([target * root, penalty @ (base - lower)]))
        residual = np.abs(scaled @ excess - target)
        if np.median(residual) == 0:
            break  # most rows are exact: no size to measure the others by
        weight = huber_weights(residual)
    totals = prior.base.copy()
    totals[free] = lower + excess
    return totals


def huber_weights(residual: Rows) -> Rows:
    """Weights of rows by their absolute residual: 1 up to ``_HUBER`` medians, then falling."""
    edge = _HUBER * max(np.median(residual), np.finfo(float).tiny)
    return np.where(residual > edge, edge / np.maximum(residual, edge), 1.0)


def choose_strength(
    features: Matrix, seconds: Rows, prior: Prior, scale: Rows | None = None
) -> float:
    """The strength with the smallest mean absolute error over interleaved folds.

    Every fold sees the whole stretch of time: with contiguous ones, a change of load would decide.
    One row leaves nothing to judge by: then the strongest.
    """
    count = len(seconds)
    if count < 2:
        return float(STRENGTHS[-1])
    scale = seconds if scale is None else scale
    fold = np.arange(count) % min(_FOLDS, count)

    def error(strength: float) -> float:
        found = np.empty(count)
        for k in np.unique(fold):
            inside, outside = fold != k, fold == k
            totals = fit_totals(features[inside], seconds[inside], prior, strength, scale[inside])
            found[outside] = features[outside] @ totals
        return float(np.mean(np.abs(found - seconds) / scale))

    return float(STRENGTHS[int(np.argmin([error(strength) for strength in STRENGTHS]))])
