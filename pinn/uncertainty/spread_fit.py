"""Learning the spread of predictions on left-out groups.

The half-width is ``sizes . parts`` (``pinn.uncertainty.spread_parts``). The sizes make the mean
interval score of left-out rows smallest, every group counting once: that is the regression of the
90 % quantile of absolute log errors. A dozen groups teach little, so the sizes are held to the
proportions of their priors, by a strength that leaving groups out of the calibration chooses; the
factor that all of them have in common is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import expit

from pinn.errors import PinnError
from pinn.uncertainty.conformal import LEVEL, Values, group_weights, interval_score
from pinn.uncertainty.spread import Spread
from pinn.uncertainty.spread_parts import SPREAD_PARTS

#: Strengths of the prior that are tried: log units of the score per squared relative deviation.
STRENGTHS = (0.003, 0.01, 0.03, 0.1)

#: Width in log units over which the score's kink is rounded, so that it has a gradient.
_ROUNDING = 0.004

#: Smallest size, relative to its prior: none is exactly 0.
_LEAST = 1e-3

#: What is left out of the calibration in turn to choose the strength.
_LEFT_OUT = ("shape", "gpu")

#: Metric -> prior of every part.
_PRIORS = {
    "tpot": np.array([part.prior for part in SPREAD_PARTS.values()]),
    "ttft": np.array([part.ttft_prior for part in SPREAD_PARTS.values()]),
}


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
    if errors["shape"].nunique() < 2:
        raise PinnError(
            f"intervals need errors of at least 2 left-out models, got "
            f"{errors['shape'].nunique()}: run an experiment that leaves models out"
        )
    strength = min(STRENGTHS, key=lambda s: _left_out_score(errors, column, s, level))
    return with_strength(errors, column, strength, level)


def with_strength(errors: pd.DataFrame, column: str, strength: float, level: float) -> Spread:
    """The spread under one strength of the prior."""
    size, weight = errors[column].abs().to_numpy(), row_weights(errors)
    prior = _PRIORS[column]
    sizes = _fit(_parts(errors) * prior, size, weight, strength, level) * prior
    return Spread(dict(zip(SPREAD_PARTS, sizes.tolist(), strict=True)), strength)


def half_widths(spread: Spread, rows: pd.DataFrame) -> Values:
    """Log half-width of every row of a table with a column per part."""
    return _parts(rows) @ np.array([spread.sizes[name] for name in SPREAD_PARTS])


def row_weights(errors: pd.DataFrame) -> Values:
    """A model's shape on a GPU is a group, and every group counts once."""
    return group_weights(errors["shape"] + " on " + errors["gpu"], errors["split"])


def _parts(rows: pd.DataFrame) -> Float[np.ndarray, "n parts"]:
    return rows[list(SPREAD_PARTS)].to_numpy(dtype=np.float64)


def _fit(
    parts: Float[np.ndarray, "n parts"], size: Values, weight: Values, strength: float, level: float
) -> Float[np.ndarray, " parts"]:
    """Sizes relative to their priors: a convex problem in them and their common factor."""
    penalty = 1 / (1 - level)

    def score(point: np.ndarray) -> tuple[float, np.ndarray]:
        sizes, common = point[:-1], point[-1]
        half = parts @ sizes
        beyond = (size - half) / _ROUNDING
        apart = sizes - common
        value = weight @ (half + penalty * _ROUNDING * np.logaddexp(0.0, beyond))
        slope = parts.T @ (weight * (1 - penalty * expit(beyond)))
        slopes = np.append(slope + 2 * strength * apart, -2 * strength * apart.sum())
        return value + strength * (apart @ apart), slopes

    start = np.ones(parts.shape[1] + 1)
    bounds = [(_LEAST, None)] * len(start)
    found = minimize(score, start, jac=True, method="L-BFGS-B", bounds=bounds)
    return np.asarray(found.x[:-1])


def _left_out_score(errors: pd.DataFrame, column: str, strength: float, level: float) -> float:
    """Mean log of the interval score of each left-out part under what the others teach.

    The log, so that a model whose errors are small counts as much as one whose errors are large.
    """
    found: list[float] = []
    for by in _LEFT_OUT:
        scores = []
        for rest, left_out in _folds(errors, by):
            half = half_widths(with_strength(rest, column, strength, level), left_out)
            score = interval_score(left_out[column].to_numpy(), half, level)
            scores.append(np.log(row_weights(left_out) @ score))
        found += [float(np.mean(scores))] if scores else []
    return float(np.mean(found))


def _folds(errors: pd.DataFrame, by: str) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """The rest and the part that is left out, where something is left to learn from."""
    names: Sequence[str] = errors[by].unique().tolist()
    for name in names if len(names) > 1 else ():
        mine = errors[by] == name
        yield errors[~mine], errors[mine]
