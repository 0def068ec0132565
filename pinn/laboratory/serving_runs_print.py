"""Errors on serving runs as they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from rich.console import Console

from pinn.common.screen import WIDEST, Column, Grid, page
from pinn.training.data.measured_runs import FIGURES

# Tables of scored serving runs for the terminal; all of them are functions of saved tables.

_HEADINGS = {figure: figure.removesuffix("_s").replace("_", " ") for figure in FIGURES}


def print_scores(scores: pd.DataFrame, console: Console | None = None) -> None:
    """One row per run and stage: every figure's error; files have what was measured too."""
    console = console or page(WIDEST)
    for method, of_method in scores.groupby("method", sort=False):
        run, stage = Column("run", True, most=24), Column("stage", True)
        columns = [run, stage, *map(Column, ("req/s", *_HEADINGS.values(), "failed"))]
        table = Grid(columns, f"{method}: error in %", gap=1)
        for (name, number), rows in of_method.groupby(["run", "stage"], sort=False):
            table.add(str(name), str(number), *_cells(rows))
        console.print(table)


def _cells(rows: pd.DataFrame) -> list[str]:
    by_figure = {row["figure"]: row for row in rows.to_dict("records")}
    first = next(iter(by_figure.values()))
    cells = ["" if pd.isna(first["rate_per_s"]) else f"{first['rate_per_s']:g}"]
    for figure in FIGURES:
        known = figure in by_figure
        cells.append(f"{by_figure[figure]['error_percent']:+.1f}" if known else "-")
    measured, predicted = first["failed_measured"], first["failed_predicted"]
    shown = measured > 0 or predicted > 0
    cells.append(f"{100 * predicted:.1f}, was {100 * measured:.1f}" if shown else "")
    return cells


def print_summary(
    summary: pd.DataFrame,
    inversions: Mapping[str, Sequence[tuple[str, str]]],
    console: Console | None = None,
) -> None:
    """Median, mean and largest error of every figure; per method the pairs ranked wrongly."""
    console = console or page(WIDEST)
    shown = summary[summary["part"].isin(["all", "stages", "overloaded"])]
    headings = ("method", "part", "figure", "n", "median", "mean", "largest")
    table = Grid.of(*headings, caption="absolute error in %", text=3)
    for row in shown.to_dict("records"):
        sizes = (f"{row[name]:.1f}" for name in ("median", "mean", "max"))
        about = (str(row["method"]), str(row["part"]), _HEADINGS[row["figure"]])
        table.add(*about, str(row["n"]), *sizes)
    console.print(table)
    for method, pairs in inversions.items():
        console.print(
            f"{method}: {len(pairs)} pairs of runs whose p99 E2E differs by more than 20 % are "
            "ranked wrongly"
        )
        for slower, faster in pairs:
            console.print(f"  {slower} is slower than {faster}")
