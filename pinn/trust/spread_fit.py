"""Learning the spread of predictions on left-out groups.

The half-width is ``sizes . parts`` (``pinn.trust.spread_parts``). The sizes make the mean
interval score of left-out rows smallest, every group counting once: that is the regression of the
90 % quantile of absolute log errors. A dozen groups teach little, so the sizes are held to the
proportions of their priors, by a strength that leaving groups out of the calibration chooses; the
factor that all of them have in common is free, and such that 90 % are covered in every kind of
left-out data. Otherwise a kind with small errors (TTFT of serving runs at low load) would narrow
the intervals of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from scipy.optimize import minimize
from scipy.special import expit

from pinn.errors import PinnError
from pinn.trust.conformal import (
    LEVEL,
    Values,
    group_weights,
    interval_score,
    weighted_quantile,
)
from pinn.trust.spread import Spread
from pinn.trust.spread_parts import SPREAD_PARTS

#: Strengths of the prior that are tried: log units of the score per squared relative deviation.
STRENGTHS = (0.01, 0.1, 1.0)

#: Width in log units over which the score's kink is rounded, so that it has a gradient.
_ROUNDING = 0.004

#: Smallest size, relative to its prior: none is exactly 0.
_LEAST = 1e-3

#: Metric -> prior of every part.
_PRIORS = {
    "tpot": np.array([part.prior for part in SPREAD_PARTS.values()]),
    "ttft": np.array([part.ttft_prior for part in SPREAD_PARTS.values()]),
}


@dataclass(frozen=True)
class _Rows:
    """Rows to learn from: parts of the spread, sizes of errors, and what each row belongs to."""

    parts: Float[np.ndarray, "n parts"]
    size: Values
    shape: Int[np.ndarray, " n"]
    gpu: Int[np.ndarray, " n"]
    split: Int[np.ndarray, " n"]

    @staticmethod
    def of(errors: pd.DataFrame, column: str) -> _Rows:
        codes = (pd.factorize(errors[name])[0] for name in ("shape", "gpu", "split"))
        return _Rows(_parts(errors), errors[column].abs().to_numpy(), *codes)

    def take(self, mask: Bool[np.ndarray, " n"]) -> _Rows:
        return _Rows(*(column[mask] for column in vars(self).values()))

    @property
    def weight(self) -> Values:
        """A model's shape on a GPU is a group, and every group counts once."""
        groups = zip(self.shape.tolist(), self.gpu.tolist(), strict=True)
        return group_weights(groups, self.split.tolist())


def fit_spread(errors: pd.DataFrame, column: str, level: float = LEVEL) -> Spread:
    """Learn the spread of one metric on left-out rows.

    Args:
        errors: Columns ``split``, ``shape`` (models of equal shape share it), ``gpu``, one per
            part, and ``column``.
        column: ``tpot`` or ``ttft``, log errors; where queues magnify TPOT, per log unit of the
            step time.
        level: Share to cover.

    Raises:
        PinnError: If there are fewer than two models, so that none can be left out.
    """
    models = errors["shape"].nunique()
    if models < 2:
        raise PinnError(
            f"intervals need errors of at least 2 left-out models, got {models}: run an experiment "
            "that leaves models out"
        )
    rows = _Rows.of(errors, column)
    strength = min(STRENGTHS, key=lambda s: _left_out_score(rows, _PRIORS[column], s, level))
    return with_strength(errors, column, strength, level)


def with_strength(errors: pd.DataFrame, column: str, strength: float, level: float) -> Spread:
    """The spread under one strength of the prior."""
    sizes = _fit(_Rows.of(errors, column), _PRIORS[column], strength, level)
    return Spread(dict(zip(SPREAD_PARTS, sizes.tolist(), strict=True)), strength)


def half_widths(spread: Spread, rows: pd.DataFrame) -> Values:
    """Log half-width of every row of a table with a column per part."""
    return _parts(rows) @ np.array([spread.sizes[name] for name in SPREAD_PARTS])


def row_weights(errors: pd.DataFrame) -> Values:
    """A model's shape on a GPU is a group, and every group counts once."""
    groups = zip(errors["shape"], errors["gpu"], strict=True)
    return group_weights(groups, errors["split"])


def _parts(rows: pd.DataFrame) -> Float[np.ndarray, "n parts"]:
    return rows[list(SPREAD_PARTS)].to_numpy(dtype=np.float64)


def _fit(
    rows: _Rows, prior: Float[np.ndarray, " parts"], strength: float, level: float
) -> Float[np.ndarray, " parts"]:
    """Sizes: a convex problem in them, relative to their priors, and in their common factor."""
    parts, size, weight, penalty = rows.parts * prior, rows.size, rows.weight, 1 / (1 - level)

    def score(point: np.ndarray) -> tuple[float, np.ndarray]:
        sizes, common = point[:-1], point[-1]
        half = parts @ sizes
        beyond = (size - half) / _ROUNDING
        apart = sizes - common
        value = weight @ (half + penalty * _ROUNDING * np.logaddexp(0.0, beyond))
        slope = parts.T @ (weight * (1 - penalty * expit(beyond)))
        slopes = np.append(slope + 2 * strength * apart, -2 * strength * apart.sum())
        return value + strength * (apart @ apart), slopes

    start = np.ones(len(prior) + 1)
    bounds = [(_LEAST, None)] * len(start)
    found = minimize(score, start, jac=True, method="L-BFGS-B", bounds=bounds)
    sizes = np.asarray(found.x[:-1])
    # The score trades width for coverage: wide rows count more. Every group is to count once, and
    # in no kind of left-out data (models, GPUs, serving runs) may fewer rows be covered.
    ratio = size / (parts @ sizes)
    of_kinds = (rows.split == kind for kind in np.unique(rows.split))
    return sizes * max(weighted_quantile(ratio[k], weight[k], level) for k in of_kinds) * prior


def _left_out_score(
    rows: _Rows, prior: Float[np.ndarray, " parts"], strength: float, level: float
) -> float:
    """Mean log of the interval score of each left-out model and GPU under what the others teach.

    The log, so that a model whose errors are small counts as much as one whose errors are large.
    """
    found = []
    for key in (rows.shape, rows.gpu):
        names = np.unique(key)
        if len(names) < 2:
            continue  # nothing is left to learn from without it
        scores = []
        for name in names:
            rest, left_out = rows.take(key != name), rows.take(key == name)
            half = left_out.parts @ _fit(rest, prior, strength, level)
            score = interval_score(left_out.size, half, level)
            scores.append(np.log(left_out.weight @ score))
        found.append(np.mean(scores))
    return float(np.mean(found))
