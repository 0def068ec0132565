"""Who ranks first: a bootstrap over measured deployments tells ties from differences.

Rows of one deployment differ only in load and share their error, so deployments are drawn, not
rows. Four models stay four models however often they are drawn: the intervals say how much the
median depends on the deployments at hand, not how other models would come out.
"""

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float, Shaped

from pinn.evaluation.metrics import percent_errors

RANKING_COLUMNS = (
    "split", "metric", "method", "n", "groups", "median", "low", "high", "behind", "behind_low",
    "behind_high", "eligible", "verdict",
)  # fmt: skip

FIRST, RANKING_TIED, BEHIND, INELIGIBLE = "first", "tied first", "behind", "not for an unseen pair"

#: Of the bootstrap: the ends of a 90 % interval then rest on 50 draws each.
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
        predictions: As ``cross_validate`` returns them; ``METRIC_s`` and ``METRIC_measured_s``.
        groups: Row id -> what is drawn with replacement, such as its deployment.
        metrics: To rank by.
        ineligible: Methods that are shown but cannot be first.
        draws: Of the bootstrap.

    Returns:
        Table with ``RANKING_COLUMNS``: the median error, its 95 % interval, and how far it lies
        behind the first eligible method's on the same draws, in points. A method is tied first if
        that interval reaches 0. Rows that any method cannot predict count for none.
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
    """Split -> metric -> methods that are first or tied first, of a table of :func:`rank`."""
    leading = ranking[ranking["verdict"].isin([FIRST, RANKING_TIED])]
    found: dict[str, dict[str, list[str]]] = {}
    for (split, metric), part in leading.groupby(["split", "metric"], sort=False):
        found.setdefault(str(split), {})[str(metric)] = part["method"].tolist()
    return found


def paired_errors(of_split: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return absolute percentage errors ``[row ids, methods]`` of rows that all methods predict."""
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
    """Medians of every column over draws of whole groups."""
    names, index = np.unique(groups, return_inverse=True)
    members = [np.flatnonzero(index == i) for i in range(len(names))]
    draw = np.random.default_rng(0)
    chosen = draw.integers(len(names), size=(draws, len(names)))
    return np.array(
        [np.median(errors[np.concatenate([members[i] for i in some])], axis=0) for some in chosen]
    )
