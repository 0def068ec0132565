"""Do the intervals hold? Each left-out part is judged by intervals calibrated on the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from pinn.trust.conformal import LEVEL
from pinn.trust.half_widths import METRICS, fit_half_widths, half_widths, left_out_column

#: Levels of the calibration curve.
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)

#: Columns that tell a judged row.
_ROW = ["split", "row_id", "model", "shape", "gpu", "group"]


def nested_intervals(errors: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
    """Half-widths for each left-out row, calibrated without its model or its GPU.

    What is left out of training is also left out of the calibration, in every split and with every
    choice made there: a left-out model's rows on any GPU, those of models of its shape, a left-out
    GPU's rows of any model.

    Args:
        errors: Of one or more experiments; columns as ``pinn.evaluation.held_out.COLUMNS``.
        level: Share to cover.

    Returns:
        Columns ``split``, ``row_id``, ``model``, ``shape``, ``gpu``, ``group``, ``left_out``,
        ``metric``, ``level``, ``error``, ``half`` and ``covered``.
    """
    found: list[pd.DataFrame] = []
    for left_out, rest, test in left_out_parts(errors):
        half = half_widths(fit_half_widths(rest, level), test)
        about = test[_ROW].assign(left_out=left_out, level=level)
        found += [
            about.assign(
                metric=metric,
                error=test[metric],
                half=half[metric],
                covered=test[metric].abs() <= half[metric],
            )
            for metric in METRICS
        ]
    return pd.concat(found, ignore_index=True)


def left_out_parts(errors: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """Each left-out part's name, the rows that may calibrate it in any split, and its own rows."""
    columns = errors["split"].map({s: left_out_column(s) for s in errors["split"].unique()})
    for column in ("shape", "gpu"):
        judged = errors[columns == column]
        for left_out, test in judged.groupby(column, sort=True):
            name = ", ".join(sorted(test["model"].unique())) if column == "shape" else left_out
            yield str(name), errors[errors[column] != left_out], test


def coverage_table(judged: pd.DataFrame) -> pd.DataFrame:
    """Coverage and width per kind of split and metric: for all and for each model or GPU.

    For all, every model counts once, however many rows it has: coverage is the mean of the models'
    coverages, width the mean of their widths; ``median_width`` is that of all rows. For one model
    or GPU they are those of its rows.

    Returns:
        Columns ``split``, ``metric``, ``part`` (``all``, ``model`` or ``gpu``), ``name``, ``n``,
        ``coverage``, ``row_coverage`` (share of rows), ``lowest`` (coverage of the worst model),
        ``width`` and ``median_width``; widths are (upper - lower) / predicted.
    """
    judged = judged.assign(width=2 * np.sinh(judged["half"]))
    rows = []
    for (split, metric), part in judged.groupby(["split", "metric"], sort=False):
        about = {"split": split, "metric": metric}
        rows.append(about | {"part": "all", "name": "all"} | _of_models(part))
        for by in ("model", "gpu"):
            rows += [
                about | {"part": by, "name": name} | _of_rows(of_name)
                for name, of_name in part.groupby(by, sort=True)
            ]
    return pd.DataFrame(rows).round(4)


def _of_models(part: pd.DataFrame) -> dict[str, float]:
    by_model = part.groupby("model")
    coverage = by_model["covered"].mean()
    return {
        "n": len(part),
        "coverage": float(coverage.mean()),
        "row_coverage": float(part["covered"].mean()),
        "lowest": float(coverage.min()),
        "width": float(by_model["width"].median().mean()),
        "median_width": float(part["width"].median()),
    }


def _of_rows(part: pd.DataFrame) -> dict[str, float]:
    coverage, width = float(part["covered"].mean()), float(part["width"].median())
    return {
        "n": len(part),
        "coverage": coverage,
        "row_coverage": coverage,
        "lowest": coverage,
        "width": width,
        "median_width": width,
    }


def calibration_curve(errors: pd.DataFrame) -> pd.DataFrame:
    """Coverage of nested intervals at every level of ``LEVELS``.

    Returns:
        ``coverage_table`` with a column ``level``.
    """
    tables = [
        coverage_table(nested_intervals(errors, level)).assign(level=level) for level in LEVELS
    ]
    return pd.concat(tables, ignore_index=True)
