"""Conformal half-widths from errors of left-out groups.

A group is a model on a GPU. Its rows differ only in load and share their error, so each group
counts once, however many rows it has. The half-width of an interval is ``q (1 + k distance)`` in
log units: k is chosen by leaving models out of the calibration, q is the quantile of what remains.

What so few groups guarantee: split conformal prediction covers a new exchangeable group with
90 % only from nine groups on (``ceil(0.9 (n + 1)) <= n``), and a dozen of model x GPU are not
exchangeable, since they share four models. So 90 % holds on average over groups like these,
not for each of them; an unseen model can lie outside in half of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.errors import PinnError

#: Share of values that intervals are to cover.
LEVEL = 0.9

#: Widening per unit of distance that is tried.
SLOPES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)

Values = Float[np.ndarray, " n"]


@dataclass(frozen=True)
class HalfWidth:
    """Half of an interval in log units, as a function of the distance.

    Attributes:
        base: At distance 0.
        slope: Widening per unit of distance, as a share of ``base``.
    """

    base: float
    slope: float

    def at(self, distance: float | Values) -> Values:
        """Half-width at a distance."""
        return self.base * (1 + self.slope * np.asarray(distance, dtype=np.float64))


def group_weights(groups: Sequence[str]) -> Values:
    """1 / rows of the same group: every group counts the same."""
    _, index, counts = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    return 1.0 / counts[index]


def weighted_quantile(values: Values, weight: Values, level: float) -> float:
    """Smallest value up to which at least a share ``level`` of the weight lies.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.ones(3), 0.6)
    2.0
    """
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) / weight.sum()
    first = int(np.searchsorted(reached, level - 1e-12))
    return float(values[order][min(first, len(values) - 1)])


def fit_half_width(errors: pd.DataFrame, column: str, level: float = LEVEL) -> HalfWidth:
    """Calibrate on left-out groups.

    Args:
        errors: Columns ``model``, ``group``, ``distance`` and ``column``, a log error.
        column: Which error.
        level: Share to cover.

    Raises:
        PinnError: If there are fewer than two models, so that no slope can be chosen.
    """
    if errors["model"].nunique() < 2:
        raise PinnError(
            f"intervals need errors of at least 2 left-out models, got "
            f"{errors['model'].nunique()}: run python train.py +experiment=moe_ep"
        )
    slope = min(SLOPES, key=lambda k: _left_out_score(errors, column, k, level))
    return _with_slope(errors, column, slope, level)


def _with_slope(errors: pd.DataFrame, column: str, slope: float, level: float) -> HalfWidth:
    size = errors[column].abs().to_numpy() / (1 + slope * errors["distance"].to_numpy())
    return HalfWidth(weighted_quantile(size, group_weights(errors["group"].tolist()), level), slope)


def _left_out_score(errors: pd.DataFrame, column: str, slope: float, level: float) -> float:
    """Mean interval score of each model with the half-width that the other models give."""
    scores = []
    for model in errors["model"].unique():
        of_model = errors["model"] == model
        rest, left_out = errors[~of_model], errors[of_model]
        half = _with_slope(rest, column, slope, level).at(left_out["distance"].to_numpy())
        score = interval_score(left_out[column].to_numpy(), half, level)
        scores.append(np.average(score, weights=group_weights(left_out["group"].tolist())))
    return float(np.mean(scores))


def interval_score(error: Values, half: Values, level: float = LEVEL) -> Values:
    """Width plus 2 / (1 - level) times how far the error lies outside; smaller is better.

    Proper for central intervals (Gneiting and Raftery 2007, eq. 43).
    """
    return 2 * half + 2 / (1 - level) * np.maximum(np.abs(error) - half, 0.0)
