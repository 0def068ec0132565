"""Fit of intervals to errors on held-out data, and their coverage."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.common.files import file_sha256
from pinn.errors import PinnError
from pinn.surrogate.checkpoint import load_checkpoint
from pinn.surrogate.coefficients import NAMES
from pinn.surrogate.uncertainty import intervals
from pinn.surrogate.uncertainty.intervals import HalfWidth, StatedIntervals
from pinn.surrogate.uncertainty.kinds import kinds_of_errors
from pinn.surrogate.uncertainty.quantiles import LEVEL, Values, error_law, weighted_quantile

# Half-widths of the intervals of TPOT, TTFT and E2E. The first two are fitted; E2E and all gains
# follow from them.
#
# A half-width is a constant: the P90 of absolute log errors on held-out data, in which every pair
# of model and GPU counts once (split conformal prediction over groups). One half-width is for GPUs
# with serving data in the training data, and is fitted to errors on held-out models. The other is
# for all other GPUs, and is also fitted to errors on held-out GPUs. Each is the maximum over the
# types of held-out data, so that a type with small errors (serving runs at low load) does not
# narrow the others. Sums of up to 15 properties of a deployment were not better (LOG.md of
# 2026-11-24).
#
# An error of the step time changes all metrics in the same direction. A gain is the log change of a
# metric per log change of the step time. It is above 1 if queues magnify an error, and 1 in a
# closed loop below saturation. The half-width of TPOT is that of the step time x gain. TTFT also
# has a separate half-width, and the wider of the two applies. E2E is a TTFT followed by decodes, so
# the ends of its interval are the sums of the ends of these two.

#: Metrics with an interval; the mean ITL has TPOT's interval.
METRICS = ("tpot", "ttft", "e2e")

#: Names of the columns of the gains, by metric. A gain is a metric's log change per log change of
#: the step time.
GAINS = tuple(f"{metric}_gain" for metric in METRICS)


def left_out_column(split: str) -> str | None:
    """Return the column whose values a split holds out, or None.

    >>> left_out_column("leave-one-gpu-and-its-kernels-out")
    'gpu'
    """
    if split.endswith("leave-one-model-out"):
        return "shape"
    return "gpu" if split.startswith("leave-one-gpu-") else None


def fit_half_widths(errors: pd.DataFrame, level: float = LEVEL) -> dict[str, HalfWidth]:
    """Return the half-widths of the prediction intervals of step time (TPOT) and TTFT.

    Args:
        errors: One row per measurement, with the columns ``split``, ``shape`` (the same for models
            of the same architecture), ``gpu``, ``tpot`` and ``ttft`` (log errors of the
            prediction), and ``GAINS``.
        level: Share of measurements that the intervals must cover.

    Raises:
        PinnError: If there are fewer than two models, so that none can be held out.
    """
    models = errors["shape"].nunique()
    if models < 2:
        raise PinnError(
            f"intervals need errors of at least 2 held-out models, got {models}: "
            "run an experiment that holds models out"
        )
    step = errors.assign(tpot=errors["tpot"] / errors["tpot_gain"])
    return {metric: _fit(step, metric, level) for metric in intervals.METRICS}


def _fit(errors: pd.DataFrame, metric: str, level: float) -> HalfWidth:
    of_split = {
        str(split): weighted_quantile(part[metric].abs().to_numpy(), row_weights(part), level)
        for split, part in errors.groupby("split")
    }
    widest = max(of_split.values())
    of_models = [half for split, half in of_split.items() if left_out_column(split) != "gpu"]
    return HalfWidth(max(of_models, default=widest), widest)


def row_weights(errors: pd.DataFrame) -> Values:
    """Return row weights that sum to 1, split evenly over groups, then splits, then rows.

    A group is one model shape on one GPU.

    >>> rows = pd.DataFrame({"shape": list("aaab"), "gpu": "H100", "split": [1, 1, 2, 1]})
    >>> row_weights(rows).tolist()
    [0.125, 0.125, 0.25, 0.5]
    """
    group = ["shape", "gpu"]
    rows = errors.groupby([*group, "split"])["split"].transform("size")
    splits = errors.groupby(group)["split"].transform("nunique")
    weight = 1.0 / (rows * splits).to_numpy()
    return weight / weight.sum()


def half_widths(found: Mapping[str, HalfWidth], rows: pd.DataFrame) -> dict[str, Values]:
    """Return the log half-width of every row, by metric.

    Args:
        found: Half-widths of ``pinn.surrogate.uncertainty.intervals.METRICS``.
        rows: Table with the columns ``split``, ``GAINS``, and ``ttft_share`` of the predicted E2E.
            A GPU counts as known unless the row's split holds it out.
    """
    known = rows["split"].map(lambda split: left_out_column(split) != "gpu").to_numpy(bool)
    step, ttft = (np.where(known, found[m].known, found[m].unknown) for m in intervals.METRICS)
    moved = {metric: step * rows[f"{metric}_gain"].to_numpy() for metric in METRICS}
    ttft = np.maximum(ttft, moved["ttft"])
    beyond = rows["ttft_share"].to_numpy() * (np.exp(ttft) - np.exp(moved["ttft"]))
    return {"tpot": moved["tpot"], "ttft": ttft, "e2e": np.log(np.exp(moved["e2e"]) + beyond)}


# Actual coverage of intervals on held-out models and GPUs, each with intervals calibrated on all
# others.

#: Nominal coverage levels of the calibration curve.
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)

#: Columns that identify a row of held-out errors.
_ROW = ["split", "row_id", "model", "shape", "gpu", "group"]


def nested_intervals(errors: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
    """Return half-widths for each held-out row, calibrated without the row's model or GPU.

    Rows that are held out of training are also held out of calibration, in every split and for
    every choice made in the calibration. For a held-out model, these are all rows of models with
    its shape, on any GPU. For a held-out GPU, these are all rows of this GPU.

    Args:
        errors: Errors of one or more experiments, with the columns
            ``pinn.evaluation.crossvalidation.COLUMNS``.
        level: Share of measurements that the intervals must cover.

    Returns:
        Table with columns ``split``, ``row_id``, ``model``, ``shape``, ``gpu``, ``group``,
        ``left_out``, ``metric``, ``level``, ``error``, ``half`` and ``covered``.
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
    """Yield (name of a held-out model or GPU, rows to calibrate its intervals, its own rows)."""
    columns = errors["split"].map({s: left_out_column(s) for s in errors["split"].unique()})
    for column in ("shape", "gpu"):
        evaluated = errors[columns == column]
        for left_out, test in evaluated.groupby(column, sort=True):
            name = ", ".join(sorted(test["model"].unique())) if column == "shape" else left_out
            yield str(name), errors[errors[column] != left_out], test


def coverage_table(evaluated: pd.DataFrame) -> pd.DataFrame:
    """Return interval coverage and width by split and metric: for all data, and per model or GPU.

    Over all data, every model has the same weight: coverage is the mean of the models' coverages,
    and width the mean of their widths. ``median_width`` is the median over all rows. For one model
    or GPU, coverage and width are over its rows.

    Returns:
        Table with columns ``split``, ``metric``, ``part`` (``all``, ``model`` or ``gpu``),
        ``name``, ``n``, ``coverage``, ``row_coverage`` (share of rows), ``lowest`` (coverage of the
        worst model), ``width`` and ``median_width``; widths are (upper - lower) / predicted.
    """
    evaluated = evaluated.assign(width=2 * np.sinh(evaluated["half"]))
    rows = []
    for (split, metric), part in evaluated.groupby(["split", "metric"], sort=False):
        about = {"split": split, "metric": metric}
        rows.append(about | {"part": "all", "name": "all"} | _coverage(part, by="model"))
        for by in ("model", "gpu"):
            rows += [
                about | {"part": by, "name": name} | _coverage(of_name, by)
                for name, of_name in part.groupby(by, sort=True)
            ]
    return pd.DataFrame(rows).round(4)


def _coverage(part: pd.DataFrame, by: str) -> dict[str, float]:
    """Return coverage and interval widths of rows, weighting the values of ``by`` equally."""
    groups = part.groupby(by)
    coverage = groups["covered"].mean()
    return {
        "n": len(part),
        "coverage": float(coverage.mean()),
        "row_coverage": float(part["covered"].mean()),
        "lowest": float(coverage.min()),
        "width": float(groups["width"].median().mean()),
        "median_width": float(part["width"].median()),
    }


def calibration_curve(errors: pd.DataFrame) -> pd.DataFrame:
    """Return the coverage of :func:`nested_intervals` at every level of ``LEVELS``.

    Returns:
        Table of :func:`coverage_table` with an additional column ``level``.
    """
    tables = [
        coverage_table(nested_intervals(errors, level)).assign(level=level) for level in LEVELS
    ]
    return pd.concat(tables, ignore_index=True)


# Calibration of intervals on all held-out data.


def calibrate(
    errors: pd.DataFrame,
    coefficient_changes: pd.DataFrame,
    checkpoint: Path,
    sources: Sequence[Mapping[str, object]],
) -> StatedIntervals:
    """Return intervals calibrated on all held-out data, with their coverage.

    The coverage comes from nested calibrations, which hold out the model or GPU that they evaluate.

    Args:
        errors: Errors of one or more experiments, as
            ``pinn.evaluation.crossvalidation.held_out_errors`` and
            ``pinn.evaluation.folds.run_error_rows`` return them.
        coefficient_changes: Table of
            :func:`pinn.surrogate.uncertainty.coefficient_changes.coefficient_changes`.
        checkpoint: Checkpoint that the intervals belong to.
        sources: Experiments from which the errors come, stored with the intervals.
    """
    evaluated = nested_intervals(errors)
    found = fit_half_widths(errors)
    half = half_widths(found, errors)["tpot"]
    law = error_law(errors["tpot"].to_numpy(), half, row_weights(errors))
    metadata = load_checkpoint(checkpoint).metadata
    return StatedIntervals(
        checkpoint_sha256=file_sha256(checkpoint),
        belongs={name: metadata[name] for name in intervals.BELONGS if name in metadata},
        half_widths=found,
        coefficients=coefficient_half_widths(coefficient_changes),
        kinds=kinds_of_errors(errors),
        sources=sources,
        coverage=coverage_table(evaluated).to_dict("records"),
        errors={"tpot": law.errors},
    )


def coefficient_half_widths(changes: pd.DataFrame) -> dict[str, float]:
    """Return the P90 of each coefficient's absolute log change over models and GPUs."""
    weight = row_weights(changes)
    sizes = changes[list(NAMES)].abs()
    return {name: weighted_quantile(sizes[name].to_numpy(), weight, LEVEL) for name in NAMES}
