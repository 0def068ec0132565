"""Widths of a checkpoint's prediction intervals, fitted to and scored on rows of its scorecard."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.surrogate.uncertainty import width_fit
from pinn.surrogate.uncertainty.distance import served_gpus
from pinn.surrogate.uncertainty.intervals import (
    calibration_path,
    read_calibration,
    write_calibration,
)
from pinn.surrogate.uncertainty.widths import Widths


@dataclass(frozen=True)
class IntervalScore:
    """Score of intervals on groups of rows, each held out of the fit of the interval widths.

    All groups have the same weight. A ratio of interval scores below 1 is an improvement.

    Attributes:
        covered: Share of measurements inside their intervals.
        stated: Ratio of the interval score to that of the checkpoint's constant half-widths.
        constant: Ratio of the interval score to that of constant half-widths fitted to all other
            groups.
        worst: Name of the group with the lowest coverage.
        worst_covered: Coverage of that group.
    """

    covered: float
    stated: float
    constant: float
    worst: str
    worst_covered: float

    def __str__(self) -> str:
        return (
            "90 % intervals, with each group held out of the fit in turn: coverage "
            f"{100 * self.covered:.0f} % (lowest: {100 * self.worst_covered:.0f} %, {self.worst}); "
            f"interval score relative to the checkpoint's constant widths {self.stated:.2f}, "
            f"relative to refitted constant widths {self.constant:.2f}."
        )


def interval_rows(checkpoint: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a scorecard with the columns used to fit interval widths.

    Args:
        checkpoint: Checkpoint that predicted the rows.
        rows: Rows as ``pinn.evaluation.panel_rows.panel_rows`` returns them.

    Returns:
        The rows with ``error`` (log of measured / predicted), ``half`` (the checkpoint's constant
        log half-width), a column for each trait (property of a deployment that widens intervals,
        see ``pinn.surrogate.uncertainty.widths``), and ``nested``, the log half-width fitted to
        all other groups.

    Raises:
        PinnError: If the checkpoint has no intervals.
    """
    constants = replace(read_calibration(checkpoint), widths=Widths())
    served = served_gpus(checkpoint)
    known = np.array([deployment.gpu.name in served for deployment in rows["deployment"]])
    asked = zip(rows["metric"], rows["deployment"], known.tolist(), strict=True)
    half = [constants.half_width(*one) for one in asked]
    error = np.log(rows["measured_s"].to_numpy() / rows["predicted_s"].to_numpy())
    table = width_fit.with_traits(rows.assign(error=error, half=half), known)
    return table.assign(nested=width_fit.nested_half_widths(table))


def judge_intervals(rows: pd.DataFrame) -> IntervalScore:
    """Score the half-widths in the column ``nested`` of :func:`interval_rows`."""
    weight = pd.Series(width_fit.group_weights(rows), rows.index)
    inside = weight.where(rows["error"].abs() <= rows["nested"], 0.0)
    covered = inside.groupby(rows["group"]).sum() / weight.groupby(rows["group"]).sum()
    score = width_fit.interval_score(rows, rows["nested"].to_numpy())
    return IntervalScore(
        float(inside.sum()),
        score / width_fit.interval_score(rows, rows["half"].to_numpy()),
        score / width_fit.interval_score(rows, width_fit.constant_half_widths(rows)),
        str(covered.idxmin()),
        float(covered.min()),
    )


def write_widths(checkpoint: Path, rows: pd.DataFrame) -> None:
    """Fit interval widths to rows of :func:`interval_rows` and save them next to the checkpoint."""
    found = replace(read_calibration(checkpoint), widths=width_fit.fit_widths(rows))
    write_calibration(found, calibration_path(checkpoint))
