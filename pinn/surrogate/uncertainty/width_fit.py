"""Fit how much wider or narrower intervals are by traits of a deployment, and judge it.

Half-widths of left-out models are constants by metric and kind of GPU (``interval_fit``), quantiles
of errors on vLLM. Held-out groups of other engines, GPUs and sizes show how errors depend on traits
of a deployment: logs of absolute errors over the constant are regressed on the traits, with a level
for each metric (ridge). A deployment without traits keeps the constant.
"""

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from pinn.surrogate.uncertainty.quantiles import LEVEL, weighted_quantile
from pinn.surrogate.uncertainty.widths import TRAITS, Widths

#: Of the ridge, where the weights of all rows add up to 1. Numerical: it keeps weights of traits
#: that hardly occur near 0. A metric's level is held by next to nothing, so that one without rows
#: has an answer.
_RIDGE, _LEVEL_RIDGE = 0.003, 1e-12
#: Errors below 1 % are as good as none.
_LEAST_ERROR = 0.01

Rows = Float[np.ndarray, " rows"]
Mask = Bool[np.ndarray, " rows"]


def fit_widths(rows: pd.DataFrame) -> Widths:
    """Fit to left-out rows.

    Args:
        rows: Columns ``group``, ``configuration``, ``metric``, ``error`` (log error), ``half`` (the
            constant's half-width) and ``TRAITS``.
    """
    found = _ridge(_design(rows), _log_errors(rows), group_weights(rows))
    return Widths(dict(zip(TRAITS, found[-len(TRAITS) :].tolist(), strict=True)))


def nested_half_widths(rows: pd.DataFrame) -> Rows:
    """Half-widths of each group's rows by a fit to the others."""
    half, traits = rows["half"].to_numpy(copy=True), _traits(rows)
    for out in _groups(rows):
        if not out.all():
            weights = np.array(list(fit_widths(rows[~out]).traits.values()))
            half[out] *= np.exp(traits[out] @ weights)
    return half


def constant_half_widths(rows: pd.DataFrame, level: float = LEVEL) -> Rows:
    """The rival: for each group's rows of a metric, the others' quantile of absolute errors.

    Those of a metric that no other group has are the constant's.
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
    """Mean width plus 2 / (1 - level) times what lies outside, every group counting once.

    Gneiting and Raftery (2007), "Strictly proper scoring rules, prediction, and estimation",
    section 6.2, of log errors; the smaller the better.
    """
    beyond = np.maximum(rows["error"].abs().to_numpy() - half, 0.0)
    return float(group_weights(rows) @ (2 * half + 2 / (1 - level) * beyond))


def with_traits(rows: pd.DataFrame, gpus_known: Mask) -> pd.DataFrame:
    """Rows with a column for each trait of their ``deployment``."""
    pairs = list(zip(rows["deployment"], gpus_known.tolist(), strict=True))
    return rows.assign(**{name: [of(*pair) for pair in pairs] for name, of in TRAITS.items()})


def group_weights(rows: pd.DataFrame) -> Rows:
    """Weights that add up to 1: groups count once, in each its metrics, configurations and rows."""
    weight, key = np.ones(len(rows)), ["group"]
    for column in ("metric", "configuration"):
        weight /= rows.groupby(key)[column].transform("nunique").to_numpy()
        key = [*key, column]
    weight /= rows.groupby(key)["error"].transform("size").to_numpy()
    return weight / weight.sum()


def _metrics(rows: pd.DataFrame) -> dict[str, Mask]:
    """Metric -> its rows."""
    names = sorted(rows["metric"].unique())
    return {name: (rows["metric"] == name).to_numpy() for name in names}


def _groups(rows: pd.DataFrame) -> list[Mask]:
    return [(rows["group"] == group).to_numpy() for group in rows["group"].unique()]


def _traits(rows: pd.DataFrame) -> Float[np.ndarray, "rows traits"]:
    return rows[list(TRAITS)].to_numpy(float)


def _log_errors(rows: pd.DataFrame) -> Rows:
    """Logarithm of absolute errors over the constant's half-width."""
    size = np.maximum(rows["error"].abs().to_numpy(), _LEAST_ERROR)
    return np.log(size / rows["half"].to_numpy())


def _design(rows: pd.DataFrame) -> Float[np.ndarray, "rows columns"]:
    """A column for each metric, then one for each trait."""
    return np.column_stack([*_metrics(rows).values(), _traits(rows)])


def _ridge(
    design: Float[np.ndarray, "rows columns"], target: Rows, weight: Rows
) -> Float[np.ndarray, " columns"]:
    """Weighted least squares; traits alone are held near 0."""
    share = weight / weight.sum()
    held = np.full(design.shape[1], _LEVEL_RIDGE)
    held[-len(TRAITS) :] = _RIDGE
    moments = (design * share[:, None]).T
    return np.linalg.solve(moments @ design + np.diag(held), moments @ target)
