"""Comparison of median latency errors between methods of one evaluation, or two evaluations.

A bootstrap over measured deployments separates ties from differences. Rows of one deployment differ
only in load and have similar errors, so deployments are resampled, not rows. Resampling adds no
models: the bootstrap intervals show how much the median error depends on the sampled deployments,
not how errors would differ for other models.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Shaped

from pinn.errors import PinnError
from pinn.evaluation.metrics import GROUPS, percent_errors

# Ranking of an evaluation's prediction methods by median error.

RANKING_COLUMNS = (
    "split", "metric", "method", "n", "groups", "median", "low", "high", "behind", "behind_low",
    "behind_high", "eligible", "verdict",
)  # fmt: skip

FIRST, RANKING_TIED, BEHIND, INELIGIBLE = "first", "tied first", "behind", "not for an unseen pair"

#: Number of bootstrap resamples; 25 of them lie beyond each end of a 95 % interval.
DRAWS = 1000


def rank(
    predictions: pd.DataFrame,
    groups: pd.Series,
    metrics: Sequence[str],
    ineligible: Collection[str] = (),
    draws: int = DRAWS,
) -> pd.DataFrame:
    """Rank methods by the median absolute percentage error in every split.

    Args:
        predictions: Predictions as ``read_cells`` returns them. For each metric, ``METRIC_s`` is
            the predicted and ``METRIC_measured_s`` the measured latency, in seconds.
        groups: Group of each row, by row id, such as its deployment; groups are resampled as a
            whole.
        metrics: Latency metrics, such as ``tpot``; methods are ranked by each metric separately.
        ineligible: Methods that are listed but cannot rank first.
        draws: Number of bootstrap resamples.

    Returns:
        Table with ``RANKING_COLUMNS``: the median error, its 95 % interval, and its difference from
        the first eligible method's median in percentage points, with an interval over the same
        resamples. A method is tied first if that interval includes 0. Only rows that every method
        predicts are used.
    """
    found = []
    for split, of_split in predictions.groupby("split", sort=False):
        for metric in metrics:
            table = paired_errors(of_split, metric)
            if table.shape[1] < 2 or table.empty:
                continue
            of_rows = groups.reindex(table.index).to_numpy()
            ranked = _ranked(table, of_rows, ineligible, draws)
            found.append(ranked.assign(split=split, metric=metric))
    if not found:
        return pd.DataFrame(columns=list(RANKING_COLUMNS))
    return pd.concat(found, ignore_index=True)[list(RANKING_COLUMNS)]


def leaders(ranking: pd.DataFrame) -> dict[str, dict[str, list[str]]]:
    """Return the methods that rank or tie first in a :func:`rank` table, by split and metric."""
    leading = ranking[ranking["verdict"].isin([FIRST, RANKING_TIED])]
    found: dict[str, dict[str, list[str]]] = {}
    for (split, metric), part in leading.groupby(["split", "metric"], sort=False):
        found.setdefault(str(split), {})[str(metric)] = part["method"].tolist()
    return found


def paired_errors(of_split: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a metric's absolute percentage errors, with a row per row id and a column per method.

    Rows that any method does not predict are omitted.
    """
    if f"{metric}_s" not in of_split:
        return pd.DataFrame()
    sizes = of_split.assign(size=percent_errors(of_split, metric).abs())
    wide = sizes.pivot_table(index="row_id", columns="method", values="size", sort=False)
    return wide.dropna(axis=1, how="all").dropna()


def _ranked(
    table: pd.DataFrame, groups: np.ndarray, ineligible: Collection[str], draws: int
) -> pd.DataFrame:
    errors = table.to_numpy()
    medians = np.median(errors, axis=0)
    eligible = np.array([name not in ineligible for name in table.columns])
    first = int(np.where(eligible, medians, np.inf).argmin())
    drawn = bootstrap_medians(errors, groups, draws)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    behind = drawn - drawn[:, [first]]
    behind_low, behind_high = np.quantile(behind, [0.025, 0.975], axis=0)
    verdict = np.where(behind_low <= 0, RANKING_TIED, BEHIND).astype(object)
    verdict[first] = FIRST
    columns = {
        "method": table.columns,
        "n": len(table),
        "groups": len(np.unique(groups)),
        "median": medians,
        "low": low,
        "high": high,
        "behind": medians - medians[first],
        "behind_low": behind_low,
        "behind_high": behind_high,
        "eligible": eligible,
        "verdict": np.where(eligible, verdict, INELIGIBLE),
    }
    return pd.DataFrame(columns).sort_values("median", kind="stable")


def bootstrap_medians(
    errors: Float[np.ndarray, "n columns"], groups: Shaped[np.ndarray, " n"], draws: int
) -> Float[np.ndarray, "draws columns"]:
    """Return the median of each column of errors in each bootstrap resample, as a matrix.

    Its shape is ``[draws, columns]``. Every resample samples whole groups with replacement.
    """
    names, index = np.unique(groups, return_inverse=True)
    members = [np.flatnonzero(index == i) for i in range(len(names))]
    draw = np.random.default_rng(0)
    chosen = draw.integers(len(names), size=(draws, len(names)))
    return np.array(
        [np.median(errors[np.concatenate([members[i] for i in some])], axis=0) for some in chosen]
    )


# Comparison of two evaluations, metric by metric, with a verdict per split.

COLUMNS = (
    "split", "metric", "n", "a", "b", "difference", "low", "high", "parts", "parts_b_lower",
    "verdict",
)  # fmt: skip

#: Verdicts of a comparison of two evaluations, A and B. If the predictions of one are not
#: available, A or B counts as better only if its median error is lower for every held-out part,
#: such as each held-out model.
A_BETTER, B_BETTER, TIED, MIXED = "A better", "B better", "tied", "parts disagree"
OTHER_ROWS = "not comparable: different rows"


@dataclass(frozen=True)
class Scores:
    """Error summaries and predictions of one side (A or B) of a comparison.

    Attributes:
        results: Error summaries of one method, as ``pinn.evaluation.metrics.summarize`` returns
            them.
        predictions: Predictions of that method; None if only the error summaries are known.
        groups: Deployment by row id; rows of one deployment have similar errors. None without
            predictions.
    """

    results: pd.DataFrame
    predictions: pd.DataFrame | None = None
    groups: pd.Series | None = None


def compare_errors(a: Scores, b: Scores, draws: int = DRAWS) -> pd.DataFrame:
    """Compare the median absolute percentage errors of two evaluations, A and B.

    With predictions of both sides, only rows that both sides predict are used. B is better if the
    95 % interval of the difference of medians, over resampled deployments, lies below 0. Without
    predictions, B is better if its median is lower over all rows and for every held-out model or
    GPU.

    Args:
        a: Error summaries and predictions of side A.
        b: Error summaries and predictions of side B.
        draws: Number of bootstrap resamples.

    Returns:
        Table with ``COLUMNS``, one row per split and metric that occurs on both sides. Medians and
        ``difference`` (b - a) are in percent. The interval is NaN without predictions.

    Raises:
        PinnError: If the sides have no split and metric in common.
    """
    mine, other = _keys(a), _keys(b)
    common = [key for key in mine if key in other]
    if not common:
        raise PinnError(
            "the evaluations have no split and metric in common: A has "
            f"{_names(mine)}, B has {_names(other)}: give two evaluations of the "
            "same splits"
        )
    rows = []
    for split, metric in common:
        of_a, of_b = (_by_part(side, split, metric) for side in (a, b))
        medians = pd.DataFrame({"a": of_a["median"], "b": of_b["median"]}).dropna()
        medians = medians[~medians.index.astype(str).str.startswith(tuple(GROUPS))]
        parts = medians.drop(index="all")
        known = _of_rows(a, b, split, metric, draws)
        known = known or _of_results(medians, *(int(of["n"].loc["all"]) for of in (of_a, of_b)))
        lower = int((parts["b"] < parts["a"]).sum())
        about = {"split": split, "metric": metric, "parts": len(parts), "parts_b_lower": lower}
        rows.append(about | known._asdict())
    table = pd.DataFrame(rows)
    return table.assign(difference=table["b"] - table["a"])[list(COLUMNS)]


class _Medians(NamedTuple):
    """Median errors of sides A and B over ``n`` rows, the verdict, and the interval of B - A."""

    n: int
    a: float
    b: float
    verdict: str
    low: float = np.nan
    high: float = np.nan


def _keys(side: Scores) -> list[tuple[str, str]]:
    pairs = side.results[["split", "metric"]].drop_duplicates()
    return list(pairs.itertuples(index=False, name=None))


def _names(keys: list[tuple[str, str]]) -> str:
    return ", ".join(f"{split} ({metric})" for split, metric in keys) or "none"


def _by_part(side: Scores, split: str, metric: str) -> pd.DataFrame:
    rows = side.results
    return rows[(rows["split"] == split) & (rows["metric"] == metric)].set_index("held_out")


def _of_rows(a: Scores, b: Scores, split: str, metric: str, draws: int) -> _Medians | None:
    """Compare median errors over the rows that both sides predict; None if there are none."""
    if a.predictions is None or b.predictions is None or a.groups is None:
        return None
    sides = [a.predictions.assign(method="a"), b.predictions.assign(method="b")]
    both = pd.concat(sides, ignore_index=True)
    table = paired_errors(both[both["split"] == split], metric)
    if table.shape[1] < 2 or table.empty or not table.index.isin(a.groups.index).all():
        return None
    values = table.to_numpy()
    drawn = bootstrap_medians(values, a.groups.reindex(table.index).to_numpy(), draws)
    low, high = np.quantile(drawn[:, 1] - drawn[:, 0], [0.025, 0.975]).tolist()
    of_a, of_b = np.median(values, axis=0).tolist()
    verdict = B_BETTER if high < 0 else A_BETTER if low > 0 else TIED
    return _Medians(len(table), of_a, of_b, verdict, low, high)


def _of_results(medians: pd.DataFrame, n_a: int, n_b: int) -> _Medians:
    """Compare median errors in summaries; ``MIXED`` if held-out models or GPUs disagree."""
    verdicts = {-1.0: B_BETTER, 0.0: TIED, 1.0: A_BETTER}
    found = {verdicts[sign] for sign in np.sign(medians["b"] - medians["a"])}
    verdict = MIXED if len(found) > 1 else found.pop()
    of_a, of_b = (float(medians[side].loc["all"]) for side in ("a", "b"))
    return _Medians(n_a, of_a, of_b, verdict if n_a == n_b else OTHER_ROWS)
