"""Fit of interval widths to traits of a deployment, and the score of the fit.

The half-widths of ``interval_fit`` are constants: quantiles of errors on vLLM, by metric and by
whether the GPU has serving data. Held-out groups of other engines, GPUs and sizes show how errors
depend on traits of a deployment, such as its engine. The logs of absolute errors, divided by the
constant, are regressed on the traits, with an intercept per metric (ridge). Then one factor per
metric scales all half-widths, so that the intervals cover the requested share of the measurements
of all groups (split conformal prediction: Lei et al. (2018), "Distribution-free predictive
inference for regression", section 5.2, with errors in units of the half-width).
"""

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from pinn.surrogate.uncertainty.quantiles import LEVEL, weighted_quantile
from pinn.surrogate.uncertainty.widths import TRAITS, Widths

#: Ridge penalties, for row weights that sum to 1. ``_RIDGE``: of the coefficient of a deployment
#: trait; it keeps the coefficients of rare traits near 0. ``_LEVEL_RIDGE``: of a metric's
#: intercept; it hardly affects an intercept, but makes it 0 for a metric without rows.
_RIDGE, _LEVEL_RIDGE = 0.003, 1e-12
#: Minimum absolute log error of a row in the fit; smaller errors count as 1 %.
_LEAST_ERROR = 0.01

Rows = Float[np.ndarray, " rows"]
Mask = Bool[np.ndarray, " rows"]


def fit_widths(rows: pd.DataFrame, level: float = LEVEL) -> Widths:
    """Return the width factors that fit the errors of held-out rows.

    Args:
        rows: Table with the columns ``group``, ``configuration``, ``metric``, ``error`` (log
            error), ``half`` (constant log half-width) and ``TRAITS``.
        level: Share of measurements that intervals must cover.
    """
    weight = group_weights(rows)
    found = _ridge(_design(rows), _log_errors(rows), weight)[-len(TRAITS) :]
    size = rows["error"].abs().to_numpy() / rows["half"].to_numpy() / np.exp(_traits(rows) @ found)
    levels = {
        name: weighted_quantile(size[mine], weight[mine], level)
        for name, mine in _metrics(rows).items()
    }
    return Widths(dict(zip(TRAITS, found.tolist(), strict=True)), levels)


def nested_half_widths(rows: pd.DataFrame) -> Rows:
    """Return the half-widths of each group's rows, fitted to all other groups."""
    half, traits = rows["half"].to_numpy(copy=True), _traits(rows)
    for out in _groups(rows):
        if not out.all():
            found = fit_widths(rows[~out])
            weights = np.array(list(found.traits.values()))
            level = rows["metric"][out].map(found.levels).fillna(1.0).to_numpy(float)
            half[out] *= level * np.exp(traits[out] @ weights)
    return half


def constant_half_widths(rows: pd.DataFrame, level: float = LEVEL) -> Rows:
    """Return baseline half-widths: quantiles of the absolute errors of all other groups.

    Quantiles are by metric. If no other group has the metric, the half-width is that in ``half``.
    """
    half, weight = rows["half"].to_numpy(copy=True), group_weights(rows)
    size = rows["error"].abs().to_numpy()
    for out in _groups(rows):
        for mine in _metrics(rows).values():
            others = mine & ~out
            if others.any():
                half[mine & out] = weighted_quantile(size[others], weight[others], level)
    return half


def interval_score(rows: pd.DataFrame, half: Rows, level: float = LEVEL) -> float:
    """Return the interval score of log errors; lower is better. All groups have the same weight.

    The score is the mean width plus 2 / (1 - level) times the mean distance by which errors lie
    outside their intervals (Gneiting and Raftery (2007), "Strictly proper scoring rules,
    prediction, and estimation", section 6.2).
    """
    beyond = np.maximum(rows["error"].abs().to_numpy() - half, 0.0)
    return float(group_weights(rows) @ (2 * half + 2 / (1 - level) * beyond))


def with_traits(rows: pd.DataFrame, gpus_known: Mask) -> pd.DataFrame:
    """Add a column for each of ``TRAITS`` to rows: the trait's value for the row's deployment."""
    pairs = list(zip(rows["deployment"], gpus_known.tolist(), strict=True))
    return rows.assign(**{name: [of(*pair) for pair in pairs] for name, of in TRAITS.items()})


def group_weights(rows: pd.DataFrame) -> Rows:
    """Return row weights that sum to 1, split evenly over groups, metrics, configurations, rows."""
    weight, key = np.ones(len(rows)), ["group"]
    for column in ("metric", "configuration"):
        weight /= rows.groupby(key)[column].transform("nunique").to_numpy()
        key = [*key, column]
    weight /= rows.groupby(key)["error"].transform("size").to_numpy()
    return weight / weight.sum()


def _metrics(rows: pd.DataFrame) -> dict[str, Mask]:
    """Return a mask of the rows with each metric, by metric."""
    names = sorted(rows["metric"].unique())
    return {name: (rows["metric"] == name).to_numpy() for name in names}


def _groups(rows: pd.DataFrame) -> list[Mask]:
    return [(rows["group"] == group).to_numpy() for group in rows["group"].unique()]


def _traits(rows: pd.DataFrame) -> Float[np.ndarray, "rows traits"]:
    return rows[list(TRAITS)].to_numpy(float)


def _log_errors(rows: pd.DataFrame) -> Rows:
    """Return log(absolute log error / constant half-width) of each row, the fit's target."""
    size = np.maximum(rows["error"].abs().to_numpy(), _LEAST_ERROR)
    return np.log(size / rows["half"].to_numpy())


def _design(rows: pd.DataFrame) -> Float[np.ndarray, "rows columns"]:
    """Return the design matrix: a column per metric, then one per trait."""
    return np.column_stack([*_metrics(rows).values(), _traits(rows)])


def _ridge(
    design: Float[np.ndarray, "rows columns"], target: Rows, weight: Rows
) -> Float[np.ndarray, " columns"]:
    """Return the coefficients of a weighted least-squares fit, with the penalties ``_RIDGE``."""
    share = weight / weight.sum()
    held = np.full(design.shape[1], _LEVEL_RIDGE)
    held[-len(TRAITS) :] = _RIDGE
    moments = (design * share[:, None]).T
    return np.linalg.solve(moments @ design + np.diag(held), moments @ target)
