"""Tables of scored serving runs for the terminal; all of them are functions of saved tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from rich.console import Console
from rich.table import Table

from pinn.data.measured_runs import FIGURES, WHOLE_RUN
from pinn.specs.files.screen import WIDEST, page
from pinn.units import MILLISECOND

#: Means whose measured values are shown.
_MEANS = ("e2e_mean_s", "ttft_mean_s", "itl_mean_s")
_HEADINGS = {figure: figure.removesuffix("_s").replace("_", " ") for figure in FIGURES}


def print_scores(scores: pd.DataFrame, console: Console | None = None) -> None:
    """One row per run and stage: every figure's error; files have what was measured too."""
    console = console or page(WIDEST)
    for method, of_method in scores.groupby("method", sort=False):
        table = Table(title=f"{method}: error in %", box=None, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("run", max_width=24, overflow="fold")
        table.add_column("stage")
        for name in ("req/s", *_HEADINGS.values(), "failed"):
            table.add_column(name, justify="right")
        for run, of_run in of_method.groupby("run", sort=False):
            for stage, rows in of_run.groupby("stage", sort=False):
                table.add_row(str(run), str(stage), *_cells(rows))
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
    table = Table(title="absolute error in %", box=None, pad_edge=False)
    for name in ("method", "part", "figure"):
        table.add_column(name)
    for name in ("n", "median", "mean", "largest"):
        table.add_column(name, justify="right")
    for row in shown.to_dict("records"):
        sizes = (f"{row[name]:.1f}" for name in ("median", "mean", "max"))
        about = (str(row["method"]), str(row["part"]), _HEADINGS[row["figure"]])
        table.add_row(*about, str(row["n"]), *sizes)
    console.print(table)
    for method, pairs in inversions.items():
        console.print(
            f"{method}: {len(pairs)} pairs of runs whose p99 E2E differs by more than 20 % are "
            "ranked wrongly"
        )
        for slower, faster in pairs:
            console.print(f"  {slower} is slower than {faster}")


def print_steady_states(table: pd.DataFrame, console: Console | None = None) -> None:
    """Steady-state ITL per run and stage, and the median error of each method."""
    console = console or page(WIDEST)
    methods = [c.removesuffix("_percent") for c in table.columns if c.endswith("_percent")]
    shown = Table(title="mean ITL in the steady state: ms and error in %")
    shown.add_column("run", no_wrap=True, max_width=44)
    for name in ("stage", "req/s", "measured", *methods):
        shown.add_column(name, justify="right")
    for row in table.to_dict("records"):
        cells = [f"{row[f'{m}_s'] / MILLISECOND:.2f} ({row[f'{m}_percent']:+.1f})" for m in methods]
        head = (str(row["run"]), str(row["stage"]), f"{row['rate_per_s']:g}")
        shown.add_row(*head, f"{row['measured_s'] / MILLISECOND:.2f}", *cells)
    console.print(shown)
    for method in methods:
        size = table[f"{method}_percent"].abs()
        console.print(f"{method}: median {size.median():.1f} %, mean {size.mean():.1f} %")


def markdown_scores(scores: pd.DataFrame) -> str:
    """The per-stage table as Markdown: measured means and their errors."""
    lines = [
        "| run | stage | req/s | E2E ms | error % | TTFT ms | error % | ITL ms | error % |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (run, stage), rows in scores.groupby(["run", "stage"], sort=False):
        by_figure = {row["figure"]: row for row in rows.to_dict("records")}
        rate = rows["rate_per_s"].iloc[0]
        cells = [str(run), str(stage), "" if stage == WHOLE_RUN else f"{rate:g}"]
        for figure in _MEANS:
            row = by_figure[figure]
            cells += [f"{row['measured_s'] / MILLISECOND:,.1f}", f"{row['error_percent']:+.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
