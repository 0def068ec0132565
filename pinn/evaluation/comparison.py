"""Two sides compared, metric by metric, and who ranks first."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Shaped

from pinn.errors import PinnError
from pinn.evaluation.metrics import GROUPS, percent_errors

# Which method is first, and which are tied with it: a bootstrap over measured deployments.
#
# Rows of one deployment differ only in load and share their error, so deployments are drawn, not
# rows. Four models stay four models however often they are drawn: the intervals say how much the
# median depends on the deployments at hand, not how other models would come out.

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
    rows = []
    for split, of_split in predictions.groupby("split", sort=False):
        for metric in metrics:
            table = _ranking_errors(of_split, metric)
            if table.shape[1] < 2 or table.empty:
                continue
            of_rows = groups.reindex(table.index)
            if of_rows.isna().any():
                raise PinnError(f"{split}: no group for row {of_rows.index[of_rows.isna()][0]!r}")
            about = {"split": split, "metric": metric}
            rows += [about | row for row in _ranked(table, of_rows.to_numpy(), ineligible, draws)]
    return pd.DataFrame(rows, columns=list(RANKING_COLUMNS))


def _ranking_errors(of_split: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Absolute percentage errors, one row per row id and one column per method."""
    if f"{metric}_s" not in of_split:
        return pd.DataFrame()
    sizes = of_split.assign(size=percent_errors(of_split, metric).abs())
    wide = sizes.pivot_table(index="row_id", columns="method", values="size", sort=False)
    return wide.dropna(axis=1, how="all").dropna()


def _ranked(
    table: pd.DataFrame, groups: np.ndarray, ineligible: Collection[str], draws: int
) -> list[dict[Hashable, Any]]:
    errors = table.to_numpy()
    medians = np.median(errors, axis=0)
    eligible = np.array([name not in ineligible for name in table.columns])
    if not eligible.any():
        return []
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
    return pd.DataFrame(columns).sort_values("median", kind="stable").to_dict("records")


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


# Two evaluations of the same splits, metric by metric, with a verdict per split.

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
    rows = []
    for split, metric in common:
        medians = [_by_part(side, split, metric) for side in (a, b)]
        known = _of_rows(a, b, split, metric, draws) or _of_results(*medians)
        parts = _parts(*medians)
        lower = int((parts["b"] < parts["a"]).sum())
        of_key = {"split": split, "metric": metric, "parts": len(parts), "parts_b_lower": lower}
        rows.append(of_key | known | {"difference": known["b"] - known["a"]})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _keys(side: Scores) -> list[tuple[str, str]]:
    pairs = side.results[["split", "metric"]].drop_duplicates()
    return list(pairs.itertuples(index=False, name=None))


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
    of_a, of_b = np.median(values, axis=0).tolist()
    verdict = B_BETTER if high < 0 else A_BETTER if low > 0 else TIED
    ends = {"low": low, "high": high}
    return {"n": len(table), "a": of_a, "b": of_b, "verdict": verdict} | ends


def _errors(predictions: pd.DataFrame, split: str, metric: str) -> pd.Series:
    rows = predictions[predictions["split"] == split].set_index("row_id")
    if f"{metric}_s" not in rows:
        return pd.Series(dtype=float)
    return percent_errors(rows, metric).abs()


def _of_results(a: pd.DataFrame, b: pd.DataFrame) -> dict[str, Any]:
    """From medians alone, by part."""
    whole_a, whole_b = (medians.to_dict("index")["all"] for medians in (a, b))
    of_a, of_b = whole_a["median"], whole_b["median"]
    signs = np.sign(_parts(a, b)["b"] - _parts(a, b)["a"])
    if whole_a["n"] != whole_b["n"]:
        verdict = OTHER_ROWS
    elif of_b < of_a and (signs < 0).all():
        verdict = B_BETTER
    elif of_b > of_a and (signs > 0).all():
        verdict = A_BETTER
    else:
        verdict = TIED if of_a == of_b and (signs == 0).all() else MIXED
    return {"n": int(whole_a["n"]), "a": of_a, "b": of_b, "verdict": verdict}


def _by_part(side: Scores, split: str, metric: str) -> pd.DataFrame:
    rows = side.results
    return rows[(rows["split"] == split) & (rows["metric"] == metric)].set_index("held_out")


def _parts(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Medians of both in every left-out part; named groups of rows are none."""
    both = pd.DataFrame({"a": a["median"], "b": b["median"]}).dropna()
    names = both.index.astype(str)
    return both[(names != "all") & ~names.str.startswith(tuple(GROUPS))]
