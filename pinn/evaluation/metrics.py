"""Error measures of predicted times, and the table they are kept in."""

from __future__ import annotations

import numpy as np
import pandas as pd

RESULT_COLUMNS = ("split", "held_out", "method", "metric", "n", "median", "mean", "p90", "bias")


def error_summary(predicted: np.ndarray, measured: np.ndarray) -> dict[str, float]:
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
        predictions: One row per (split, row_id, method) with the columns ``held_out``, ``tpot_s``,
            ``ttft_s`` predicted and ``tpot_measured_s``, ``ttft_measured_s``. A method that cannot
            predict a row has NaN there and is scored on the others.
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
            for metric in ("tpot", "ttft"):
                scored = part[part[f"{metric}_s"].notna()]
                if len(scored):
                    summary = error_summary(
                        scored[f"{metric}_s"].to_numpy(), scored[f"{metric}_measured_s"].to_numpy()
                    )
                    key = {"split": split, "held_out": held_out, "method": method}
                    rows.append(key | {"metric": metric} | summary)
    return pd.DataFrame(rows, columns=list(RESULT_COLUMNS))
