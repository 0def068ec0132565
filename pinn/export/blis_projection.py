"""The vector for BLIS's formula that comes closest to the surrogate over given batches."""

from __future__ import annotations

from dataclasses import dataclass

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
    """Non-negative vector with the least sum of absolute relative errors.

    Non-negative least squares, reweighted by the errors until they stand still (Iteratively
    reweighted least squares; Chen and Plemmons 2009 on non-negativity).
    """
    relative = features / step_us[:, None]
    size = np.linalg.norm(relative, axis=0)
    used = (size > 0) & _FITTED
    scaled = relative[:, used] / size[used]
    weight = np.ones(len(step_us))
    found = np.zeros(used.sum())
    for _ in range(_ROUNDS):
        # The normal equations' Cholesky factor has few rows, whatever the number of batches.
        root = np.sqrt(weight)
        found, _ = nnls(*_compact(scaled * root[:, None], root))
        weight = 1 / np.maximum(np.abs(scaled @ found - 1), _SMALL)
    beta = np.zeros(features.shape[1])
    beta[used] = found / size[used]
    return beta


def _compact(
    rows: Float[np.ndarray, "batches used"], target: Float[np.ndarray, " batches"]
) -> tuple[Float[np.ndarray, "k used"], Float[np.ndarray, " k"]]:
    """The same least-squares problem in as few rows as unknowns."""
    q, r = np.linalg.qr(rows)
    return r, q.T @ target
