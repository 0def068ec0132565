"""Errors of predicted latencies, and tables that summarize them by method and held-out data."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from pinn.common.files import file_sha256
from pinn.common.tables import read_frame
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.measurements.benchmarks.inferencex import LENGTH_RANGE
from pinn.training.serving_rows import ServingRows

# Error measures of predicted times, and the columns of their table.

#: Latency metrics in a table of predictions: mean TPOT, mean TTFT, and mean and 99th percentile of
#: E2E latency.
METRICS = ("tpot", "ttft", "e2e", "e2e_p99")

RESULT_COLUMNS = ("split", "held_out", "method", "metric", "n", "median", "mean", "p90", "bias")


@dataclass(frozen=True)
class ErrorSummary:
    """Summary of the percentage errors of predicted times.

    Attributes:
        n: Number of predictions.
        median: Median of the absolute percentage errors (median APE).
        mean: Mean of the absolute percentage errors (MAPE).
        p90: 90th percentile of the absolute percentage errors.
        bias: Median of the signed percentage errors, which shows overprediction or underprediction.
            Overprediction can exceed 100 % of the measured value; underprediction cannot.
    """

    n: int
    median: float
    mean: float
    p90: float
    bias: float

    def __str__(self) -> str:
        return f"{self.median:.1f} / {self.mean:.1f} ({self.bias:+.1f})"


def error_summary(
    predicted: Float[np.ndarray, " n"], measured: Float[np.ndarray, " n"]
) -> ErrorSummary:
    """Return a summary of prediction errors, which prints as ``median / mean (bias)`` in percent.

    >>> print(error_summary(np.array([1.1, 0.8]), np.array([1.0, 1.0])))
    15.0 / 15.0 (-5.0)
    """
    percent = 100 * (predicted / measured - 1)
    size = np.abs(percent)
    figures = (np.median(size), size.mean(), np.quantile(size, 0.9), np.median(percent))
    return ErrorSummary(len(size), *(round(float(figure), 6) for figure in figures))


def percent_errors(rows: pd.DataFrame, metric: str) -> pd.Series:
    """Return the signed percentage error of a latency metric in each row; NaN if not predicted."""
    return 100 * (rows[f"{metric}_s"] / rows[f"{metric}_measured_s"] - 1)


def with_e2e(rows: pd.DataFrame) -> pd.DataFrame:
    """Add mean E2E latency in seconds to predictions: TTFT + (mean output tokens - 1) x TPOT."""
    later = rows["output_tokens"] * sum(LENGTH_RANGE) / 2 - 1
    return rows.assign(
        e2e_s=rows["ttft_s"] + later * rows["tpot_s"],
        e2e_measured_s=rows["ttft_measured_s"] + later * rows["tpot_measured_s"],
    )


def summarize(predictions: pd.DataFrame, groups: Mapping[str, pd.Series]) -> pd.DataFrame:
    """Return error summaries of every method and latency metric, overall and in each group.

    Args:
        predictions: One row per (split, row_id, method) with the columns ``held_out`` and, for
            some of ``METRICS``, ``METRIC_s`` (predicted) and ``METRIC_measured_s``. A row that the
            method cannot predict has NaN and is not scored.
        groups: Mask over the rows of ``predictions``, by name of a group, such as
            mixture-of-experts models.

    Returns:
        Table with ``RESULT_COLUMNS``; ``held_out`` is ``all``, a group's name, or the held-out
        model or GPU.
    """
    rows = []
    for (split, method), of_method in predictions.groupby(["split", "method"], sort=False):
        parts = [("all", of_method)]
        parts += [(str(name), part) for name, part in of_method.groupby("held_out", sort=True)]
        for name, mask in groups.items():
            members = of_method[mask.loc[of_method.index]]
            parts.append((name, members))
            whole = of_method["held_out"].value_counts()
            for held_out, part in members.groupby("held_out", sort=True):
                if len(part) < whole[held_out]:
                    parts.append((f"{name}: {held_out}", part))
        for held_out, part in parts:
            for metric, predicted, measured in _scored(part):
                summary = error_summary(predicted, measured)
                rows.append((split, held_out, method, metric, *astuple(summary)))
    return pd.DataFrame(rows, columns=list(RESULT_COLUMNS))


def _scored(part: pd.DataFrame) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield (metric, predicted seconds, measured seconds) of each metric with predictions."""
    for metric in METRICS:
        if f"{metric}_s" in part:
            scored = part[part[f"{metric}_s"].notna()]
            if len(scored):
                times = scored[[f"{metric}_s", f"{metric}_measured_s"]].to_numpy(np.float64)
                yield metric, times[:, 0], times[:, 1]


def read_table(path: Path, columns: Iterable[str], fault: str) -> pd.DataFrame:
    """Read a CSV table of an experiment, such as its predictions.

    Args:
        path: CSV file.
        columns: Names of the columns that the table must have.
        fault: Final part of the error message about a file that lacks a column.

    Raises:
        PinnError: If the file cannot be read or lacks a column.
    """
    table = read_frame(path, "run an experiment first")
    if missing := ", ".join(name for name in columns if name not in table):
        raise PinnError(f"{path} {fault}, as it lacks the columns {missing}: give another file")
    return table


def read_results(path: Path) -> pd.DataFrame:
    """Read an experiment's error summaries; raises the same errors as :func:`read_table`."""
    return read_table(path, RESULT_COLUMNS, "is no results table")


def predictions_of(folder: Path) -> pd.DataFrame | None:
    """Read an experiment's predicted and measured times; return None if its folder has none."""
    for name, read in (("predictions.parquet", pd.read_parquet), ("predictions.csv", pd.read_csv)):
        if (folder / name).is_file():
            return read(folder / name)
    return None


#: File suffix of the table of held-out errors stored next to a checkpoint.
KEPT = ".results.csv"
#: Column with the SHA-256 of the checkpoint file, in tables stored next to a checkpoint.
CHECKPOINT_COLUMN = "checkpoint_sha256"


def check_checkpoint(table: pd.DataFrame, path: Path) -> None:
    """Check that a table stored next to a checkpoint belongs to it.

    Raises:
        PinnError: If the table belongs to another checkpoint; the message gives both hashes.
    """
    checkpoint = path.with_name(path.name.removesuffix(KEPT) + ".safetensors")
    if not path.name.endswith(KEPT) or not checkpoint.is_file():
        return
    named = table[CHECKPOINT_COLUMN].unique() if CHECKPOINT_COLUMN in table else ()
    got = ", ".join(f"{str(mark)[:12]}..." for mark in named) or "no checkpoint"
    expected = file_sha256(checkpoint)
    if list(named) != [expected]:
        raise PinnError(
            f"{path} belongs to another checkpoint: it has the SHA-256 {got}, expected "
            f"{expected[:12]}... of {checkpoint.name}: run "
            "'python train.py +experiment=release', which writes both files"
        )


def with_correlation(results: pd.DataFrame, predictions: pd.DataFrame) -> pd.DataFrame:
    """Add the columns ``pearson_r`` and ``inversions`` to a table of results.

    They are Pearson's r of predicted and measured times, and the number of ranking inversions, over
    all rows and for each held-out model or GPU. An inversion is a pair of rows whose measured 99th
    percentiles differ by more than 20 % and whose predicted percentiles have the opposite order.
    Inversions are counted only for the metric ``e2e_p99``.

    Args:
        results: Table of :func:`summarize`.
        predictions: Predictions that ``results`` summarizes.
    """
    found = [
        (split, held_out, method, metric, *_agreement(metric, predicted, measured))
        for (split, method), of_method in predictions.groupby(["split", "method"], sort=False)
        for held_out, part in [("all", of_method), *of_method.groupby("held_out")]
        for metric, predicted, measured in _scored(part)
    ]
    key = ["split", "held_out", "method", "metric"]
    agreement = pd.DataFrame(found, columns=[*key, "pearson_r", "inversions"])
    return results.merge(agreement, on=key, how="left")


def _agreement(metric: str, predicted: np.ndarray, measured: np.ndarray) -> tuple[float, float]:
    """Return Pearson's r of predicted and measured times, and the number of ranking inversions.

    The number of inversions is NaN for all metrics except p99 E2E latency.
    """
    known = ~np.isnan(measured)
    predicted, measured = predicted[known], measured[known]
    varies = len(measured) > 1 and np.ptp(predicted) > 0 and np.ptp(measured) > 0
    r = float(np.corrcoef(predicted, measured)[0, 1]) if varies else np.nan
    return r, float(inversions(predicted, measured).sum()) if metric == "e2e_p99" else np.nan


#: The order of two rows' predicted times is checked only if their measured times differ by at least
#: this ratio.
RANKING_MARGIN = 1.2


def inversions(
    predicted: Float[np.ndarray, " n"], measured: Float[np.ndarray, " n"]
) -> Bool[np.ndarray, "n n"]:
    """Return, for each pair of rows, whether the clearly slower row is predicted to be faster.

    A row is clearly slower if its measured time is above ``RANKING_MARGIN`` x the other's. Element
    ``[i, j]`` is true if row ``i`` is clearly slower than row ``j``, but predicted to be faster.
    """
    slower = measured[:, None] > RANKING_MARGIN * measured[None, :]
    return slower & (predicted[:, None] < predicted[None, :])


# Named groups of rows that a results table reports separately.

#: Maximum concurrency at which a benchmark counts as lightly loaded in reports.
LOW_CONCURRENCY = 16

#: Functions that return whether a row belongs to a group, given its deployment and concurrency, by
#: group name.
GROUPS: dict[str, Callable[[Deployment, int], bool]] = {
    "mixture-of-experts": lambda deployment, _: deployment.model.moe is not None,
    "dense": lambda deployment, _: deployment.model.moe is None,
    "expert-parallel": lambda deployment, _: deployment.recipe.expert_parallel_size > 1,
    "low-concurrency": lambda _, concurrency: concurrency <= LOW_CONCURRENCY,
}


def group_masks(
    names: Sequence[str], rows: ServingRows, predictions: pd.DataFrame
) -> dict[str, pd.Series]:
    """Return a mask over the rows of ``predictions`` for each group, by name of the group.

    Raises:
        PinnError: If a name is not a key of ``GROUPS``.
    """
    unknown = set(names) - set(GROUPS)
    if unknown:
        known = ", ".join(GROUPS)
        raise PinnError(f"the groups {', '.join(sorted(unknown))} are unknown: use any of {known}")
    of_rows = list(zip(rows.row_id, rows.deployment, rows.concurrency, strict=True))
    members = {
        name: {row_id: GROUPS[name](rows.deployments[i], load) for row_id, i, load in of_rows}
        for name in names
    }
    return {name: predictions["row_id"].map(of).eq(True) for name, of in members.items()}
