"""The vector for BLIS's formula that comes closest to the surrogate over given batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import nnls

from pinn.export.blis_features import BASIS, blis_step_us

#: Terms that no batch changes. What is constant in a step is fitted to ``step`` alone: a fit cannot
#: tell the constants apart, and ``weights`` moves with the bytes per weight that BLIS assumes.
CONSTANTS = ("weights", "layer", "interleaved_moe_layer")

_PROMPTS = list(BASIS).index("prefill_compute")
_FITTED = np.array([name not in CONSTANTS for name in BASIS])
_ROUNDS = 30
#: A batch of whose time a vector that fits the others gives no more than this share has stalled.
_STALLED = 0.5
#: A limit is met if it is exceeded by this share of it.
_MET = 1e-3
#: Vectors from which the search starts, and batches that each of them fits. Twice as many starts
#: move no load's median over thirty configurations by more than 0.02 percentage points.
_STARTS = 30
_DRAWN = 12
#: Weight of a row that holds a sum of batches, beside rows of at most 1.
_BINDING = 1e3
#: By how much the time of all batches together may change, and of all those with a prompt.
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

    Step time bends where BLIS's formula is straight: a line that is right for most batches is off
    for the others, and which those are is searched for. From many starts, the half of the batches
    that a vector fits best is fitted anew until that half is stable (concentration steps: Rousseeuw
    and Van Driessen 2006, Computing LTS regression for large data sets). End-to-end latencies are
    sums of all batches, times to first token of those with a prompt: each of the two sums is off by
    at most ``_TIME``, or by as little as no coefficients below zero allow.
    """
    relative = features / step_us[:, None]
    size = np.linalg.norm(relative, axis=0)
    used = (size > 0) & _FITTED
    scaled = relative[:, used] / size[used]
    kept = _sums(scaled, step_us, features[:, _PROMPTS] > 0)
    of_all = _least_squares(scaled, kept, np.full(len(kept), _TIME))
    limits = np.maximum(np.abs(kept @ of_all - 1), _TIME)
    starts = [of_all, *_drawn_starts(scaled, kept, limits)]
    found = np.stack(
        [of_all, *(_concentrated(scaled, kept, limits, start) for start in starts)], axis=1
    )
    within = (np.abs(kept @ found - 1) <= limits[:, None] * (1 + _MET)).all(0)
    median = np.where(within, np.median(np.abs(scaled @ found - 1), 0), np.inf)
    beta = np.zeros(features.shape[1])
    beta[used] = found[:, int(median.argmin())] / size[used]
    return beta


def _sums(
    scaled: Float[np.ndarray, "batches used"],
    step_us: Float[np.ndarray, " batches"],
    with_prompt: Bool[np.ndarray, " batches"],
) -> Float[np.ndarray, "sums used"]:
    """Time of all batches and of those with a prompt, each over the surrogate's.

    Batches that take far longer than least squares says count in neither, unless all do.
    """
    squares, _ = nnls(*_compact(scaled, np.ones(len(scaled))))
    near = scaled @ squares > _STALLED
    usual = step_us * (near if near.any() else True)
    weights = [usual, usual * with_prompt]
    return np.stack([weight @ scaled / weight.sum() for weight in weights if weight.any()])


def _drawn_starts(
    scaled: Float[np.ndarray, "batches used"],
    kept: Float[np.ndarray, "sums used"],
    limits: Float[np.ndarray, " sums"],
) -> Iterator[Float[np.ndarray, " used"]]:
    """Vectors of a few batches each, the same draws every time."""
    random = np.random.default_rng(0)
    few = min(_DRAWN, len(scaled))
    for _ in range(_STARTS):
        yield _least_squares(scaled[random.choice(len(scaled), few, replace=False)], kept, limits)


def _concentrated(
    scaled: Float[np.ndarray, "batches used"],
    kept: Float[np.ndarray, "sums used"],
    limits: Float[np.ndarray, " sums"],
    found: Float[np.ndarray, " used"],
) -> Float[np.ndarray, " used"]:
    """From a vector, fit the better half of the batches until it is stable."""
    count = len(scaled) // 2 + 1
    half = np.zeros(0, dtype=int)
    for _ in range(_ROUNDS):
        best = np.sort(np.argpartition(np.abs(scaled @ found - 1), count - 1)[:count])
        if np.array_equal(best, half):
            break
        half = best
        found = _least_squares(scaled[half], kept, limits)
    return found


def _least_squares(
    fitted: Float[np.ndarray, "fitted used"],
    kept: Float[np.ndarray, "sums used"],
    limits: Float[np.ndarray, " sums"],
) -> Float[np.ndarray, " used"]:
    """Non-negative least squares of some batches, the sums kept within their limits.

    A sum beyond its limit is held there by a row of great weight, one after the other.
    """
    rows, target = _compact(fitted, np.ones(len(fitted)))
    found, _ = nnls(rows, target)
    for _ in kept:
        beyond = kept @ found - 1
        worst = int((np.abs(beyond) - limits).argmax())
        if abs(beyond[worst]) <= limits[worst] * (1 + _MET):
            break
        rows = np.vstack([rows, _BINDING * kept[worst]])
        total = 1 + np.copysign(limits[worst], beyond[worst])
        target = np.append(target, _BINDING * total)
        found, _ = nnls(rows, target)
    return found


def _compact(
    rows: Float[np.ndarray, "batches used"], target: Float[np.ndarray, " batches"]
) -> tuple[Float[np.ndarray, "k used"], Float[np.ndarray, " k"]]:
    """A least-squares problem in as few rows as unknowns."""
    q, r = np.linalg.qr(rows)
    return r, q.T @ target
