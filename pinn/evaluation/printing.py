"""Results tables as text; everything printed is read from the saved table."""

from __future__ import annotations

import pandas as pd
from rich.console import Console
from rich.table import Table

from pinn.evaluation.groups import GROUPS

#: Unit of every error in the table.
CAPTION = "absolute percentage error; bias is the median signed error; n rows"

#: Parts whose rows are printed by held-out model too; the saved table has this for every part.
DETAILED = ("expert-parallel",)


def print_results(
    results: pd.DataFrame, console: Console | None = None, evidence: str = ""
) -> None:
    """Print one table per kind of split and metric: a row per held-out part and method.

    Args:
        results: Table with ``pinn.evaluation.metrics.RESULT_COLUMNS``.
        console: Where to; None for the terminal.
        evidence: What every table rests on, said below each.
    """
    caption = f"{CAPTION}; rests on {evidence}" if evidence else CAPTION
    console = console or Console(width=120, markup=False)
    for (split, metric), part in results.groupby(["split", "metric"], sort=False):
        table = Table(title=f"{split}: {str(metric).upper()}", caption=caption)
        for heading in ("held out", "method", "n", "median", "mean", "p90", "bias"):
            left = heading in ("held out", "method")
            table.add_column(heading, justify="left" if left else "right", no_wrap=True)
        previous = None
        kept = part[part["held_out"].map(_is_shown)]
        ordered = kept.sort_values("held_out", key=_all_last, kind="stable")
        for row in ordered.to_dict("records"):
            held_out = str(row["held_out"])
            if previous not in (None, held_out):
                table.add_section()
            numbers = (f"{row[name]:.1f}" for name in ("median", "mean", "p90", "bias"))
            shown = held_out if held_out != previous else ""
            table.add_row(shown, str(row["method"]), str(row["n"]), *numbers)
            previous = held_out
        console.print(table)


def _is_shown(held_out: str) -> bool:
    part, nested, _ = held_out.partition(": ")
    return not nested or part in DETAILED


def _all_last(names: pd.Series) -> pd.Series:
    """Held-out models or GPUs first, then the named parts, then all."""
    parts = tuple(GROUPS)
    rank = names.map(lambda name: 2 if name == "all" else int(name.startswith(parts)))
    return rank.astype(str) + names
