"""Error measures of predicted times, and the table they are kept in."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

#: What methods predict, where the rows have it: mean time per output token, to the first token, of
#: a whole request (mean and 99th percentile) and of an engine step.
METRICS = ("tpot", "ttft", "e2e", "e2e_p99", "step")

RESULT_COLUMNS = ("split", "held_out", "method", "metric", "n", "median", "mean", "p90", "bias")


def error_summary(
    predicted: Float[np.ndarray, " n"], measured: Float[np.ndarray, " n"]
) -> dict[str, float]:
    """Absolute percentage error (median, mean, 90th percentile) and bias.

    Bias is the median of the signed percentage error. Percentages of the measured value punish
    predictions that are too long more than those that are too short; bias shows which it is.

    >>> error_summary(np.array([1.1, 0.8]), np.array([1.0, 1.0]))["mean"]
    15.0
    """
    percent = 100 * (predicted / measured - 1)
    size = np.abs(percent)
    return {
        "n": len(size),
        "median": round(float(np.median(size)), 6),
        "mean": round(float(size.mean()), 6),
        "p90": round(float(np.quantile(size, 0.9)), 6),
        "bias": round(float(np.median(percent)), 6),
    }


def summarize(predictions: pd.DataFrame, groups: dict[str, pd.Series]) -> pd.DataFrame:
    """Score every method on every metric, overall and in each group.

    Args:
        predictions: One row per (split, row_id, method) with the columns ``held_out`` and, for
            some of ``METRICS``, ``METRIC_s`` predicted and ``METRIC_measured_s``. A method that
            cannot predict a row has NaN there and is scored on the others.
        groups: Name -> mask over the rows of ``predictions``, such as mixture-of-experts models.

    Returns:
        Table with ``RESULT_COLUMNS``; ``held_out`` is ``all``, a group's name or the held-out one.
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
            for metric in METRICS:
                if f"{metric}_s" not in part:
                    continue
                scored = part[part[f"{metric}_s"].notna()]
                if len(scored):
                    summary = error_summary(
                        scored[f"{metric}_s"].to_numpy(), scored[f"{metric}_measured_s"].to_numpy()
                    )
                    key = {"split": split, "held_out": held_out, "method": method}
                    rows.append(key | {"metric": metric} | summary)
    return pd.DataFrame(rows, columns=list(RESULT_COLUMNS))


def with_correlation(results: pd.DataFrame, predictions: pd.DataFrame) -> pd.DataFrame:
    """Results with Pearson r of predicted and measured times and p99 ranking inversions.

    Both are known for ``all`` and for each held-out part. An inversion is a pair of rows whose
    measured 99th percentiles differ by more than 20 % and whose predicted ones lie the other way
    round; it is counted for the metric ``e2e_p99`` alone.

    Args:
        results: Of :func:`summarize`.
        predictions: What they were summed up from.
    """
    found = {}
    for (split, method), of_method in predictions.groupby(["split", "method"], sort=False):
        for held_out, part in [("all", of_method), *of_method.groupby("held_out")]:
            for metric in METRICS:
                if f"{metric}_s" in part:
                    key = (split, held_out, method, metric)
                    found[key] = _agreement(part, metric)
    keys = zip(*(results[c] for c in ("split", "held_out", "method", "metric")), strict=True)
    agreement = [found.get(key, (np.nan, np.nan)) for key in keys]
    return results.assign(
        pearson_r=[r for r, _ in agreement], inversions=[count for _, count in agreement]
    )


def _agreement(part: pd.DataFrame, metric: str) -> tuple[float, float]:
    """Pearson r, and the inversions where they are counted."""
    scored = part[part[f"{metric}_s"].notna() & part[f"{metric}_measured_s"].notna()]
    predicted = scored[f"{metric}_s"].to_numpy()
    measured = scored[f"{metric}_measured_s"].to_numpy()
    varies = len(scored) > 1 and np.ptp(predicted) > 0 and np.ptp(measured) > 0
    r = float(np.corrcoef(predicted, measured)[0, 1]) if varies else np.nan
    if metric != "e2e_p99":
        return r, np.nan
    slower = measured[:, None] > RANKING_MARGIN * measured[None, :]
    return r, float((slower & (predicted[:, None] < predicted[None, :])).sum())


#: Measured times that differ by less than this factor may come out in either order.
RANKING_MARGIN = 1.2
