"""Errors of two evaluations of the same splits, metric by metric, with a verdict per split."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from pinn.errors import PinnError
from pinn.evaluation.metrics import GROUPS
from pinn.evaluation.ranking import DRAWS, bootstrap_medians, paired_errors

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


def compare_errors(a: Scores, b: Scores, draws: int = DRAWS) -> pd.DataFrame:
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
        rows.append((split, metric, *known[:3], known.b - known.a, known.low, known.high,
                     len(parts), lower, known.verdict))  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS))


class _Medians(NamedTuple):
    """Median errors of both sides over ``n`` rows, and the ends of their difference's interval."""

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
    return ", ".join(f"{split} ({metric})" for split, metric in keys) or "no errors"


def _of_rows(a: Scores, b: Scores, split: str, metric: str, draws: int) -> _Medians | None:
    """From predictions on common rows; None where they are not known."""
    if a.predictions is None or b.predictions is None or a.groups is None:
        return None
    sides = [a.predictions.assign(method="a"), b.predictions.assign(method="b")]
    both = pd.concat(sides, ignore_index=True)
    table = paired_errors(both[both["split"] == split], metric)
    if table.shape[1] < 2 or table.empty or not table.index.isin(a.groups.index).all():
        return None
    values = table.to_numpy()
    drawn = bootstrap_medians(values, a.groups.reindex(table.index).to_numpy(), draws)
    low, high = np.quantile(drawn[:, 1] - drawn[:, 0], [0.025, 0.975])
    of_a, of_b = np.median(values, axis=0).tolist()
    verdict = B_BETTER if high < 0 else A_BETTER if low > 0 else TIED
    return _Medians(len(table), of_a, of_b, verdict, float(low), float(high))


def _of_results(a: pd.DataFrame, b: pd.DataFrame) -> _Medians:
    """From medians alone, by part."""
    of_a, of_b = (float(medians["median"].loc["all"]) for medians in (a, b))
    n_a, n_b = (int(medians["n"].loc["all"]) for medians in (a, b))
    signs = np.sign(_parts(a, b)["b"] - _parts(a, b)["a"])
    if n_a != n_b:
        verdict = OTHER_ROWS
    elif of_b < of_a and (signs < 0).all():
        verdict = B_BETTER
    elif of_b > of_a and (signs > 0).all():
        verdict = A_BETTER
    else:
        verdict = TIED if of_a == of_b and (signs == 0).all() else MIXED
    return _Medians(n_a, of_a, of_b, verdict)


def _by_part(side: Scores, split: str, metric: str) -> pd.DataFrame:
    rows = side.results
    return rows[(rows["split"] == split) & (rows["metric"] == metric)].set_index("held_out")


def _parts(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Medians of both in every left-out part; named groups of rows are none."""
    both = pd.DataFrame({"a": a["median"], "b": b["median"]}).dropna()
    names = both.index.astype(str)
    return both[(names != "all") & ~names.str.startswith(tuple(GROUPS))]
