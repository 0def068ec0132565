"""The vector for BLIS's formula that comes closest to the surrogate over given batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import linprog, nnls

from pinn.export.blis_features import BASIS, blis_step_us

#: Terms that no batch changes. What is constant in a step is fitted to ``step`` alone: a fit cannot
#: tell the constants apart, and ``weights`` moves with the bytes per weight that BLIS assumes.
CONSTANTS = ("weights", "layer", "interleaved_moe_layer")

_PROMPTS = list(BASIS).index("prefill_compute")
_FITTED = np.array([name not in CONSTANTS for name in BASIS])
#: A batch of whose time a vector that fits the others gives no more than this share has stalled.
_STALLED = 0.5
#: Batches of a load that are fitted: twice as many move no median error by 0.02 percentage points.
_ROWS = 400
#: By how much the time of all batches together may change, and of all those with a prompt.
_TIME = 0.01
#: No batch of a guard shall be off by more, where the formula can do that.
GUARD = 0.15
#: What a relative error of 1 beyond the limit of a sum and of the guard counts, beside a mean one.
_BEYOND_SUM, _BEYOND_GUARD = 10.0, 100.0


@dataclass(frozen=True)
class Timed:
    """Batches and what they take.

    Attributes:
        features: BLIS's basis functions of each.
        step_us: The surrogate's step time of each.
    """

    features: Float[np.ndarray, "batches basis"]
    step_us: Float[np.ndarray, " batches"]

    def __getitem__(self, rows: slice | np.ndarray) -> Timed:
        return Timed(self.features[rows], self.step_us[rows])

    @property
    def relative(self) -> Float[np.ndarray, "batches basis"]:
        """Features over the step time: a vector is right where its product is 1."""
        return self.features / self.step_us[:, None]

    def errors(self, beta: Float[np.ndarray, " basis"]) -> Float[np.ndarray, " batches"]:
        """BLIS / surrogate - 1 of each batch."""
        return blis_step_us(self.features, beta) / self.step_us - 1


def joined(parts: Sequence[Timed]) -> Timed:
    """All batches of several."""
    features, step_us = zip(*((part.features, part.step_us) for part in parts), strict=True)
    return Timed(np.concatenate(features), np.concatenate(step_us))


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


def project(batches: Timed, guard: Timed | None = None) -> Projection:
    """Fit every second batch, judge by the others.

    Args:
        batches: Those of a load.
        guard: Batches none of which shall be off by more than ``GUARD``.
    """
    beta = fit(batches[::2], guard)
    occurs = (batches.features.max(0) > 0) & _FITTED
    zeroed = tuple(np.array(list(BASIS))[occurs & (beta == 0)].tolist())
    return Projection(beta, zeroed, np.abs(batches[1::2].errors(beta)))


def fit(batches: Timed, guard: Timed | None = None) -> Float[np.ndarray, " basis"]:
    """Non-negative vector with the least mean of relative errors, the load's time kept.

    Step time bends where BLIS's formula is straight: a line that is right for most batches is off
    for the others, and least absolute deviations let those be. End-to-end latencies are sums of all
    batches, times to first token of those with a prompt: each of the two sums is off by at most
    ``_TIME``. No batch of the guard is off by more than ``GUARD``. What no vector can do is missed
    by as little as possible: one linear program.
    """
    size = np.linalg.norm(batches.relative, axis=0)
    used = (size > 0) & _FITTED
    rows = batches.relative[:, used] / size[used]
    sums = _sums(rows, batches)
    few = rows[np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(int)]
    limited = [(few, 0.0, np.arange(len(few))), (sums, _TIME, np.arange(len(sums)))]
    if guard is not None:
        guarded = guard.relative[:, used] / size[used]
        limited.append((guarded, GUARD, np.zeros(len(guarded), int)))
    found = _least(limited, (1 / len(few), _BEYOND_SUM, _BEYOND_GUARD))
    beta = np.zeros(len(BASIS))
    beta[used] = found / size[used]
    return beta


def _least(
    limited: Sequence[tuple[np.ndarray, float, np.ndarray]], weights: Sequence[float]
) -> Float[np.ndarray, " used"]:
    """Vector whose rows miss 1 by least beyond their limits.

    Args:
        limited: Rows, by how much each may miss 1, and which excess it shares with which others.
        weights: What an excess of each of these counts.
    """
    counts = [int(which.max()) + 1 for _, _, which in limited]
    # One column for each excess, on the rows that share it.
    firsts = np.cumsum([0, *counts])
    which = np.concatenate([first + at for first, (_, _, at) in zip(firsts, limited, strict=False)])
    shared = np.eye(firsts[-1])[which]
    left = np.concatenate([rows for rows, _, _ in limited])
    limit = np.concatenate([np.full(len(rows), most) for rows, most, _ in limited])
    solved = linprog(
        np.concatenate([np.zeros(left.shape[1]), np.repeat(weights[: len(counts)], counts)]),
        A_ub=np.block([[left, -shared], [-left, -shared]]),
        b_ub=np.concatenate([1 + limit, limit - 1]),
        method="highs",
    )
    assert solved.x is not None, solved.message
    return np.maximum(solved.x[: left.shape[1]], 0.0)


def _sums(
    rows: Float[np.ndarray, "batches used"], batches: Timed
) -> Float[np.ndarray, "sums used"]:
    """Time of all batches and of those with a prompt, each over the surrogate's.

    Batches that take far longer than least squares says count in neither, unless all do.
    """
    q, r = np.linalg.qr(rows)
    squares, _ = nnls(r, q.sum(0))
    near = rows @ squares > _STALLED
    usual = batches.step_us * (near if near.any() else True)
    weights = [usual, usual * (batches.features[:, _PROMPTS] > 0)]
    return np.stack([weight @ rows / weight.sum() for weight in weights if weight.any()])
