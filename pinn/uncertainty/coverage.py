"""Do the intervals hold? Each group is judged by intervals calibrated on the others."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from pinn.uncertainty.conformal import LEVEL, fit_half_width
from pinn.uncertainty.held_out import LEFT_OUT, METRICS

#: Relative error from which a prediction counts as bad.
BAD = 0.2

#: Levels of the calibration curve.
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def nested_intervals(errors: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
    """Half-widths for each left-out row, calibrated without its model or its GPU.

    What is left out of training is also left out of the calibration, in every split: a left-out
    model's rows on any GPU, a left-out GPU's rows of any model.

    Args:
        errors: As ``held_out_errors`` gives them, of one or more experiments.
        level: Share to cover.

    Returns:
        Columns ``split``, ``row_id``, ``model``, ``gpu``, ``group``, ``left_out``, ``metric``,
        ``level``, ``distance``, ``error``, ``half`` and ``covered``.
    """
    parts = []
    for split, of_split in errors.groupby("split", sort=False):
        column = LEFT_OUT.get(str(split))
        if column is None:
            continue
        for left_out, test in of_split.groupby(column, sort=True):
            rest = errors[errors[column] != left_out]
            parts += [_judged(rest, test, metric, str(left_out), level) for metric in METRICS]
    return pd.concat(parts, ignore_index=True)


def _judged(
    rest: pd.DataFrame, test: pd.DataFrame, metric: str, left_out: str, level: float
) -> pd.DataFrame:
    half = fit_half_width(rest, metric, level).at(test["distance"].to_numpy())
    found = test[["split", "row_id", "model", "gpu", "group", "distance"]].copy()
    return found.assign(
        left_out=left_out,
        metric=metric,
        level=level,
        error=test[metric],
        half=half,
        covered=test[metric].abs() <= half,
    )


def coverage_table(judged: pd.DataFrame) -> pd.DataFrame:
    """Coverage and width per kind of split and metric, over all rows and for each left-out part.

    Returns:
        Columns ``split``, ``metric``, ``left_out`` (``all`` first), ``n``, ``coverage`` (share of
        rows) and ``width``, the median of (upper - lower) / predicted.
    """
    rows = []
    for (split, metric), part in judged.groupby(["split", "metric"], sort=False):
        for name, of_name in [("all", part), *part.groupby("left_out", sort=True)]:
            rows.append(
                {
                    "split": split,
                    "metric": metric,
                    "left_out": name,
                    "n": len(of_name),
                    "coverage": round(float(of_name["covered"].mean()), 4),
                    "width": round(float(np.median(2 * np.sinh(of_name["half"]))), 4),
                }
            )
    return pd.DataFrame(rows)


def calibration_curve(errors: pd.DataFrame) -> pd.DataFrame:
    """Coverage of nested intervals at every level of ``LEVELS``.

    Returns:
        ``coverage_table`` with a column ``level``.
    """
    tables = [
        coverage_table(nested_intervals(errors, level)).assign(level=level) for level in LEVELS
    ]
    return pd.concat(tables, ignore_index=True)


def distance_auroc(errors: pd.DataFrame, metric: str = "tpot") -> float:
    """Chance that a row with an error above 20 % lies farther away than one below.

    The area under the ROC curve, as the rank sum statistic; NaN where all rows are alike.

    >>> distance_auroc(pd.DataFrame({"tpot": [0.0, 0.5], "distance": [0.1, 0.2]}))
    1.0
    """
    bad = (np.abs(np.expm1(-errors[metric])) > BAD).to_numpy()
    if bad.all() or not bad.any():
        return float("nan")
    ranks = rankdata(errors["distance"].to_numpy())
    above = ranks[bad].sum() - bad.sum() * (bad.sum() + 1) / 2
    return float(above / (bad.sum() * (~bad).sum()))
