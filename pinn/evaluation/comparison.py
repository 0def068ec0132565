"""Two evaluations of the same splits, metric by metric, with a verdict per split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pinn.errors import PinnError
from pinn.evaluation.groups import GROUPS
from pinn.evaluation.ranking import DRAWS, bootstrap_medians

COLUMNS = (
    "split", "metric", "n", "a", "b", "difference", "low", "high", "parts", "parts_b_lower",
    "verdict",
)  # fmt: skip

#: Verdicts. Without predictions of both, only what every left-out part agrees on is one.
A_BETTER, B_BETTER, TIED, MIXED = "A better", "B better", "tied", "parts disagree"
OTHER_ROWS = "not comparable: other rows"


@dataclass(frozen=True)
class Scores:
    """What is known of one side.

    Attributes:
        results: One method's rows of ``pinn.evaluation.metrics.summarize``.
        predictions: The same method's predictions; None where only the results are known.
        groups: Row id -> deployment, whose rows share their error; None with the predictions.
    """

    results: pd.DataFrame
    predictions: pd.DataFrame | None = None
    groups: pd.Series | None = None


def compare(a: Scores, b: Scores, draws: int = DRAWS) -> pd.DataFrame:
    """Compare the medians of the absolute percentage errors.

    With predictions of both, on the rows that both predict: B is better if the 95 % interval of the
    difference of the medians, over draws of whole deployments, lies below 0. Without them, if B's
    median is lower over all rows and in every left-out part.

    Args:
        a: One side.
        b: The other.
        draws: Of the bootstrap.

    Returns:
        Table with ``COLUMNS``, one row per split and metric that both have; medians and
        ``difference`` (b - a) in percent, its interval NaN without predictions.

    Raises:
        PinnError: If the two have no split and metric in common.
    """
    mine, other = _keys(a), _keys(b)
    common = [key for key in mine if key in other]
    if not common:
        raise PinnError(
            f"no split and metric in common: A has {_names(mine)}, B has {_names(other)}; give two "
            "evaluations of the same splits"
        )
    rows = [_of_rows(a, b, *key, draws) or _of_results(a, b, *key) for key in common]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _keys(side: Scores) -> list[tuple[str, str]]:
    pairs = side.results[["split", "metric"]].drop_duplicates()
    return list(zip(pairs["split"].tolist(), pairs["metric"].tolist(), strict=True))


def _names(keys: list[tuple[str, str]]) -> str:
    return ", ".join(f"{split} ({metric})" for split, metric in keys) or "no errors"


def _of_rows(a: Scores, b: Scores, split: str, metric: str, draws: int) -> dict[str, Any] | None:
    """From predictions on common rows; None where they are not known."""
    if a.predictions is None or b.predictions is None or a.groups is None:
        return None
    errors = [_errors(rows, split, metric) for rows in (a.predictions, b.predictions)]
    table = pd.concat(errors, axis=1, join="inner", keys=["a", "b"]).dropna()
    if table.empty or not table.index.isin(a.groups.index).all():
        return None
    values = table.to_numpy()
    drawn = bootstrap_medians(values, a.groups.reindex(table.index).to_numpy(), draws)
    low, high = np.quantile(drawn[:, 1] - drawn[:, 0], [0.025, 0.975])
    of_a, of_b = np.median(values, axis=0)
    verdict = B_BETTER if high < 0 else A_BETTER if low > 0 else TIED
    found = _row(split, metric, len(table), of_a, of_b, _parts(a, b, split, metric), verdict)
    return found | {"low": low, "high": high}


def _errors(predictions: pd.DataFrame, split: str, metric: str) -> pd.Series:
    rows = predictions[predictions["split"] == split].set_index("row_id")
    if f"{metric}_s" not in rows:
        return pd.Series(dtype=float)
    return 100 * (rows[f"{metric}_s"] / rows[f"{metric}_measured_s"] - 1).abs()


def _of_results(a: Scores, b: Scores, split: str, metric: str) -> dict[str, Any]:
    """From medians alone."""
    of_a, of_b = (_by_part(side, split, metric).to_dict("index")["all"] for side in (a, b))
    parts = _parts(a, b, split, metric)
    lower = int((parts["b"] < parts["a"]).sum())
    higher = int((parts["b"] > parts["a"]).sum())
    difference = of_b["median"] - of_a["median"]
    if of_a["n"] != of_b["n"]:
        verdict = OTHER_ROWS
    elif difference < 0 and lower == len(parts):
        verdict = B_BETTER
    elif difference > 0 and higher == len(parts):
        verdict = A_BETTER
    else:
        verdict = TIED if difference == 0 and lower == higher == 0 else MIXED
    return _row(split, metric, int(of_a["n"]), of_a["median"], of_b["median"], parts, verdict)


def _by_part(side: Scores, split: str, metric: str) -> pd.DataFrame:
    rows = side.results
    return rows[(rows["split"] == split) & (rows["metric"] == metric)].set_index("held_out")


def _parts(a: Scores, b: Scores, split: str, metric: str) -> pd.DataFrame:
    """Medians of both in every left-out part; named groups of rows are none."""
    both = pd.DataFrame(
        {"a": _by_part(a, split, metric)["median"], "b": _by_part(b, split, metric)["median"]}
    ).dropna()
    return both[[_is_part(str(name)) for name in both.index]]


def _is_part(name: str) -> bool:
    return name != "all" and not name.startswith(tuple(GROUPS))


def _row(
    split: str, metric: str, n: int, a: float, b: float, parts: pd.DataFrame, verdict: str
) -> dict[str, Any]:
    return {
        "split": split,
        "metric": metric,
        "n": n,
        "a": float(a),
        "b": float(b),
        "difference": float(b - a),
        "low": float("nan"),
        "high": float("nan"),
        "parts": len(parts),
        "parts_b_lower": int((parts["b"] < parts["a"]).sum()),
        "verdict": verdict,
    }
