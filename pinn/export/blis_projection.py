"""The vector for BLIS's formula that comes closest to the surrogate over given batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

from pinn.export.blis_features import BASIS, blis_step_us

#: Terms that no batch changes. What is constant in a step is fitted to ``step`` alone: a fit cannot
#: tell the constants apart, and ``weights`` moves with the bytes per weight that BLIS assumes.
CONSTANTS = ("weights", "layer", "interleaved_moe_layer")

_FITTED = np.array([name not in CONSTANTS for name in BASIS])
_ROUNDS = 30
#: Relative errors below this count alike; keeps the reweighting finite.
_SMALL = 1e-3
#: Errors that still count, in medians of the errors.
_SCALES = (8, 4, 2, 1)
#: By how much the time of all batches together may change.
_TIME = 0.01


@dataclass(frozen=True)
class Projection:
    """A fitted vector.

    Attributes:
        beta: For ``--beta-coeffs``, in the order of ``BASIS``.
        zeroed: Names of basis functions, constants apart, that batches have but the fit leaves
            out.
        errors: |BLIS - surrogate| / surrogate of batches that were not fitted.
    """

    beta: Float[np.ndarray, " basis"]
    zeroed: tuple[str, ...]
    errors: Float[np.ndarray, " batches"]

    @property
    def median_error(self) -> float:
        """Median absolute relative difference."""
        return float(np.median(self.errors))


def project(
    features: Float[np.ndarray, "batches basis"], step_us: Float[np.ndarray, " batches"]
) -> Projection:
    """Fit every second batch, judge by the others.

    Args:
        features: Basis functions of the batches.
        step_us: The surrogate's step times.
    """
    beta = fit(features[::2], step_us[::2])
    errors = step_errors(features[1::2], step_us[1::2], beta)
    occurs = (features.max(0) > 0) & _FITTED
    zeroed = tuple(np.array(list(BASIS))[occurs & (beta == 0)].tolist())
    return Projection(beta, zeroed, errors)


def step_errors(
    features: Float[np.ndarray, "batches basis"],
    step_us: Float[np.ndarray, " batches"],
    beta: Float[np.ndarray, " basis"],
) -> Float[np.ndarray, " batches"]:
    """|BLIS - surrogate| / surrogate of each batch."""
    return np.abs(blis_step_us(features, beta) / step_us - 1)


def fit(
    features: Float[np.ndarray, "batches basis"], step_us: Float[np.ndarray, " batches"]
) -> Float[np.ndarray, " basis"]:
    """Non-negative vector with the least median of relative errors, the load's time kept.

    From the least sum of errors, large ones are left out by and by: step time bends where BLIS's
    formula is straight, and a line that is right for most batches is off for the others. A vector
    under which all batches together take longer or shorter by more than ``_TIME``, and more than
    under the least sum, is not taken, since end-to-end latencies are such sums.

    Iteratively reweighted non-negative least squares (Chen and Plemmons 2009 on non-negativity),
    by Geman and McClure's weights with a falling scale (Yang et al. 2020, Graduated non-convexity).
    """
    relative = features / step_us[:, None]
    size = np.linalg.norm(relative, axis=0)
    used = (size > 0) & _FITTED
    scaled = relative[:, used] / size[used]
    path = [_reweighted(scaled, np.ones(len(step_us)), _least_sum, _ROUNDS)]
    for scale in _SCALES:
        error = np.abs(scaled @ path[-1] - 1)
        most = max(scale * float(np.median(error)), _SMALL / 10)
        weight = partial(_saturating, most=most)
        path.append(_reweighted(scaled, weight(error), weight, _ROUNDS // 3))
    errors = scaled @ np.stack(path, axis=1) - 1
    time = np.abs(step_us @ errors) / step_us.sum()
    median = np.where(time <= max(time[0], _TIME), np.median(np.abs(errors), 0), np.inf)
    beta = np.zeros(features.shape[1])
    beta[used] = path[int(median.argmin())] / size[used]
    return beta


def _least_sum(error: Float[np.ndarray, " batches"]) -> Float[np.ndarray, " batches"]:
    return 1 / np.maximum(error, _SMALL)


def _saturating(error: Float[np.ndarray, " batches"], most: float) -> Float[np.ndarray, " batches"]:
    return 1 / (1 + (error / most) ** 2) ** 2


def _reweighted(
    scaled: Float[np.ndarray, "batches used"],
    weight: Float[np.ndarray, " batches"],
    weigh: Callable[[np.ndarray], np.ndarray],
    rounds: int,
) -> Float[np.ndarray, " used"]:
    """Non-negative least squares towards 1, time and again weighted by their errors."""
    found = np.zeros(scaled.shape[1])
    for _ in range(rounds):
        # The normal equations' Cholesky factor has few rows, whatever the number of batches.
        root = np.sqrt(weight)
        found, _ = nnls(*_compact(scaled * root[:, None], root))
        weight = weigh(np.abs(scaled @ found - 1))
    return found


def _compact(
    rows: Float[np.ndarray, "batches used"], target: Float[np.ndarray, " batches"]
) -> tuple[Float[np.ndarray, "k used"], Float[np.ndarray, " k"]]:
    """The same least-squares problem in as few rows as unknowns."""
    q, r = np.linalg.qr(rows)
    return r, q.T @ target
