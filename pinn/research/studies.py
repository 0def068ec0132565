"""Robustness studies summed up: what a change of rows, datasheet or seed does to an error."""

from __future__ import annotations

import re

import pandas as pd

STUDY_COLUMNS = (
    "split", "metric", "method", "change", "runs", "unchanged", "lowest", "median", "highest",
    "largest_change",
)  # fmt: skip

#: Between a method's name and what was changed.
_MARK = "; "


def is_study(method: str) -> bool:
    """Whether a name is that of a changed method, such as ``network; seed 1``."""
    return _MARK in method


def studies(results: pd.DataFrame) -> pd.DataFrame:
    """Median errors with a change beside the median error without it.

    Args:
        results: Of ``summarize``; a changed method is called ``METHOD; CHANGE`` or, with several
            draws, ``METHOD; CHANGE, draw N`` (or ``METHOD; seed N``).

    Returns:
        One row per split, metric, method and change with ``STUDY_COLUMNS``: medians of the
        absolute percentage error over all rows of the split, and the largest distance of any run
        from the unchanged method, in points.
    """
    whole = results[results["held_out"] == "all"]
    changed = whole[whole["method"].map(is_study)]
    rows = []
    if changed.empty:
        return pd.DataFrame(columns=list(STUDY_COLUMNS))
    names = changed["method"].str.split(_MARK, n=1, expand=True)
    named = changed.assign(base=names[0], change=names[1].map(_without_number))
    keys = ["split", "metric", "base", "change"]
    for (split, metric, base, change), part in named.groupby(keys, sort=False):
        of_base = (whole["split"] == split) & (whole["metric"] == metric)
        unchanged = whole.loc[of_base & (whole["method"] == base), "median"]
        plain = float(unchanged.iloc[0]) if len(unchanged) else float("nan")
        medians = part["median"]
        spread = (medians.min(), medians.median(), medians.max(), (medians - plain).abs().max())
        rows.append((split, metric, base, change, len(part), plain, *spread))
    return pd.DataFrame(rows, columns=list(STUDY_COLUMNS))


def _without_number(change: str) -> str:
    """What is drawn several times, without the number of the draw."""
    return re.sub(
        r",? ?\b(draw|seed) \d+$", lambda m: " seeds" if m[1] == "seed" else "", change
    ).strip()
