"""Results tables as text; everything printed is read from the saved table."""

from __future__ import annotations

import pandas as pd
from rich.console import Console
from rich.table import Table

from pinn.evaluation.groups import GROUPS
from pinn.specs.files.screen import WIDEST, page

#: Unit of every error in the table.
CAPTION = "absolute percentage error; bias is the median signed error; n rows"

#: What decisions are and what their columns say.
DECISIONS_CAPTION = (
    "picks of the deployment with the best predicted throughput per GPU within a TPOT limit; "
    "throughput lost by measurement, percent, a pick that misses the limit by over 5 % losing all; "
    "share of such misses; loss for each model"
)

#: Methods of the overview, and how many of those that lead it names.
_KNOWN, _LEADING = ("network", "aiconfigurator", "roofline"), 2

#: Parts whose rows are printed by held-out model too; the saved table has this for every part.
DETAILED = ("expert-parallel",)


def print_overview(results: pd.DataFrame, ranking: pd.DataFrame) -> None:
    """Print what came out: the median error of the methods that people know, and who is first.

    Args:
        results: Table with ``pinn.evaluation.metrics.RESULT_COLUMNS``.
        ranking: As ``pinn.evaluation.ranking.rank`` returns it.
    """
    table = Table(box=None, pad_edge=False)
    for heading in ("median error, %", "of", "rows", *_KNOWN, "first or tied"):
        words = heading in ("median error, %", "of", "first or tied")
        table.add_column(heading, justify="left" if words else "right")
    leading = ranking[ranking["verdict"].isin(["first", "tied first"])]
    whole = results[results["held_out"] == "all"]
    for (split, metric), part in whole.groupby(["split", "metric"], sort=False):
        medians = part.set_index("method")["median"]
        cells = (f"{medians[name]:.1f}" if name in medians else "-" for name in _KNOWN)
        here = leading[(leading["split"] == split) & (leading["metric"] == metric)]["method"]
        named = ", ".join(here.iloc[:_LEADING]) + (" ..." if len(here) > _LEADING else "")
        table.add_row(str(split), str(metric), str(part["n"].max()), *cells, named)
    page().print(table)


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
    console = console or page(WIDEST)
    for (split, metric), part in results.groupby(["split", "metric"], sort=False):
        table = Table(title=f"{split}: {str(metric).upper()}", caption=caption)
        for heading in ("held out", "method", "n", "median", "mean", "p90", "bias"):
            left = heading in ("held out", "method")
            table.add_column(heading, justify="left" if left else "right", no_wrap=not left)
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


def print_decisions(table: pd.DataFrame, console: Console | None = None) -> None:
    """Print one table per kind of split: a row per method, the mean loss for each model too.

    Args:
        table: As ``pinn.evaluation.decisions.decision_table`` returns it.
        console: Where to; None for the terminal.
    """
    console = console or page(WIDEST)
    for split, part in table.groupby("split", sort=False):
        by_model = part.pivot(index="method", columns="held_out", values="loss")
        shown = Table(title=f"{split}: decisions", caption=DECISIONS_CAPTION)
        shown.add_column("method", no_wrap=True)
        models = [name for name in by_model.columns if name != "all"]
        for heading in ("decisions", "mean loss", "missed", *(m.split("/")[-1] for m in models)):
            shown.add_column(heading, justify="right")
        for row in part[part["held_out"] == "all"].to_dict("records"):
            of_models = (f"{by_model.loc[row['method'], m]:.1f}" for m in models)
            numbers = (f"{row[name]:.1f}" for name in ("loss", "missed"))
            shown.add_row(str(row["method"]), str(row["decisions"]), *numbers, *of_models)
        console.print(shown)


def _is_shown(held_out: str) -> bool:
    part, nested, _ = held_out.partition(": ")
    return not nested or part in DETAILED


def _all_last(names: pd.Series) -> pd.Series:
    """Held-out models or GPUs first, then the named parts, then all."""
    parts = tuple(GROUPS)
    rank = names.map(lambda name: 2 if name == "all" else int(name.startswith(parts)))
    return rank.astype(str) + names
