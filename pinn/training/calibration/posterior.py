"""Coefficients after measurements: Laplace's approximation around the most probable ones.

Every measurement is linear in the coefficients c, given its batches: x . c + offset seconds. With
relative residuals r = (x . c + offset) / seconds - 1, a Gaussian prior and noise of scale s,

    -log p(c) = (c - mean)' C^-1 (c - mean) / 2 + sum_i loss(r_i / s),      c >= lower

is minimized by iterated non-negative least squares; its curvature there is the inverse of the
posterior's covariance (bounds left aside, so that intervals at a bound are wider than need be).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

from pinn.training.calibration.prior import Prior

#: Degrees of freedom of Student's t for residuals whose scale is unknown: stalls and windows of
#: which only the ends are known miss by factors. Chosen on the 20 % of the public run's time
#: between calibration and test among 1, 3 and Huber's weights.
_DEGREES = 1.0
#: Scale of the noise before any residual, and how many residuals that counts as: assumptions.
_NOISE, _NOISE_ROWS = 0.02, 5.0
#: Up to how many times the median a row may say something of the coefficients and count in full.
_USUAL = 1.5
#: Rounds of weights and scale, and the least variance of a correlation matrix: numerical.
_ROUNDS, _JITTER = 12, 1e-9

Vector = Float[np.ndarray, " coefficients"]
Rows = Float[np.ndarray, " rows"]


@dataclass(frozen=True)
class Posterior:
    """Coefficients after a calibration.

    Attributes:
        mean: Most probable ones, in the order of ``pinn.training.calibration.scalars.NAMES``.
        covariance: Of the coefficients.
        noise: Relative scale of a measurement's noise, of each row.
    """

    mean: Vector
    covariance: Float[np.ndarray, "coefficients coefficients"]
    noise: Rows

    def spread(self, features: Float[np.ndarray, "n coefficients"]) -> Float[np.ndarray, " n"]:
        """Relative standard deviation of what coefficients x features add up to."""
        return relative_spread(features, self.mean, self.covariance)


def relative_spread(
    features: Float[np.ndarray, "n coefficients"],
    mean: Vector,
    covariance: Float[np.ndarray, "coefficients coefficients"],
) -> Float[np.ndarray, " n"]:
    """Standard deviation of features . coefficients over its mean; 0 where the mean is 0."""
    variance = np.einsum("ij,jk,ik->i", features, covariance, features)
    value = features @ mean
    return np.sqrt(np.maximum(variance, 0.0)) / np.where(value > 0, value, np.inf)


def fit_posterior(
    prior: Prior,
    features: Float[np.ndarray, "rows coefficients"],
    seconds: Rows,
    noise: Rows | None = None,
    offset: Rows | float = 0.0,
) -> Posterior:
    """Fit coefficients to measurements.

    Args:
        prior: Before them.
        features: Of each measurement.
        seconds: Measured.
        noise: Relative standard deviation of each, normal; None to learn a common scale of
            Student's t from the residuals.
        offset: What each holds beside features x coefficients.
    """
    free, scale, precision = _precision(prior)
    root = np.linalg.cholesky(precision).T
    lower = prior.lower[free] / scale
    fixed = features[:, ~free] @ prior.mean[~free] + offset
    matrix = features[:, free] * scale / seconds[:, None]
    target = (seconds - fixed) / seconds - matrix @ lower
    centre = root @ (prior.mean[free] / scale - lower)
    size = np.full(len(seconds), _NOISE) if noise is None else noise
    told = np.ones(len(seconds))
    trust = np.ones(len(seconds)) if noise is not None else _trust(matrix, root)
    weight = trust
    for _ in range(_ROUNDS if noise is None else 1):
        at = np.sqrt(weight) / size
        excess, _ = nnls(
            np.vstack([matrix * at[:, None], root]),
            np.concatenate([target * at, centre]),
            maxiter=100 * len(scale),
        )
        if noise is None:
            residual = matrix @ excess - target
            weight, size = _student(residual, size, trust)
            told = trust * (_DEGREES + 1) / (_DEGREES + 3)
    curvature = (matrix.T * (told / size**2)) @ matrix + precision
    mean, covariance = prior.mean.copy(), np.zeros_like(prior.covariance)
    mean[free] = np.maximum((lower + excess) * scale, prior.lower[free])
    covariance[np.ix_(free, free)] = np.linalg.inv(curvature) * np.outer(scale, scale)
    return Posterior(mean, covariance, size)


def distance_squared(prior: Prior, coefficients: Vector) -> float:
    """(c - mean)' C^-1 (c - mean): how far coefficients lie from the prior, in its spreads."""
    free, scale, precision = _precision(prior)
    away = (coefficients - prior.mean)[free] / scale
    return float(away @ precision @ away)


def _precision(prior: Prior) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which coefficients may move, their spreads, and the inverse of their correlations."""
    deviation = np.sqrt(np.diag(prior.covariance))
    free = deviation > 0
    scale = deviation[free]
    correlation = prior.covariance[np.ix_(free, free)] / np.outer(scale, scale)
    return free, scale, np.linalg.inv(correlation + _JITTER * np.eye(len(scale)))


def _trust(matrix: Float[np.ndarray, "rows free"], root: Float[np.ndarray, "free free"]) -> Rows:
    """Weights of rows, less for those with unusual leverage (Mallows' weights).

    Residuals do not show them, since the fit follows them; and a window that holds much of what
    others hold little is also the one whose batches are known least.
    """
    said = np.linalg.norm(np.linalg.solve(root.T, matrix.T), axis=0)
    return np.minimum(1.0, _USUAL * np.median(said) / np.maximum(said, np.finfo(float).tiny)) ** 2


def _student(residual: Rows, size: Rows, trust: Rows) -> tuple[Rows, Rows]:
    """Weights of Student's t and its scale: a round of Lange, Little and Taylor's EM (1989)."""
    weight = trust * (_DEGREES + 1) / (_DEGREES + (residual / size) ** 2)
    known = weight @ residual**2 + _NOISE_ROWS * _NOISE**2
    return weight, np.full_like(size, np.sqrt(known / (trust.sum() + _NOISE_ROWS)))
