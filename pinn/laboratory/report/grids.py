"""Tables of a page."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pinn.common.plots import short
from pinn.common.screen import Grid
from pinn.laboratory.metrics import decision_grid
from pinn.laboratory.report.tables import METHOD, Tables


def result_grids(tables: Tables) -> list[Grid]:
    """Every method of every split on all its rows, one table per split."""
    whole = tables.results[tables.results["held_out"] == "all"]
    grids = []
    for split, part in whole.groupby("split", sort=False):
        caption = (
            f"{split}: absolute percentage errors over all rows, each predicted by a method that "
            "did not see its held-out part; bias is the median signed error."
        )
        grid = Grid.of(
            "metric", "method", "rows", "median %", "mean %", "p90 %", "bias %", "Pearson r",
            "p99 inversions", caption=caption, text=2,
        )  # fmt: skip
        ordered = part.sort_values(["metric", "median"], ascending=[False, True], kind="stable")
        for row in ordered.to_dict("records"):
            grid.add(
                row["metric"].upper(), row["method"], str(row["n"]),
                *(_percent(row[c]) for c in ("median", "mean", "p90", "bias")),
                _number(row.get("pearson_r"), 3), _number(row.get("inversions"), 0),
                strong=row["method"] == METHOD,
            )  # fmt: skip
        grids.append(grid)
    return grids


def held_out_grid(tables: Tables, split: str, metric: str) -> list[Grid]:
    """Median errors by method, one column per left-out part; nothing where there are none."""
    rows = tables.results
    rows = rows[(rows["split"] == split) & (rows["metric"] == metric)]
    parts = tables.predictions.loc[tables.predictions["split"] == split, "held_out"].unique()
    rows = rows[rows["held_out"].isin(["all", *parts])]
    if rows.empty:
        return []
    medians = rows.pivot_table(index="method", columns="held_out", values="median")
    counts = rows.groupby("held_out")["n"].max()
    columns = ["all", *(name for name in medians.columns if name != "all")]
    caption = f"{split}: median absolute percentage error of {metric.upper()} by left-out part."
    grid = Grid.of("method", *(f"{short(c)} (n {counts[c]})" for c in columns), caption=caption)
    for name, row in medians.sort_values("all").iterrows():
        grid.add(str(name), *(_percent(row[c]) for c in columns), strong=name == METHOD)
    return [grid]


def ranking_grids(tables: Tables) -> list[Grid]:
    """Who is first, per split and metric, with the bootstrap's intervals."""
    grids = []
    for (split, metric), part in tables.ranking.groupby(["split", "metric"], sort=False):
        first = part.iloc[0]
        caption = (
            f"{split}, {str(metric).upper()}: median error over {first['n']} rows that every "
            f"method predicts, with 95 % intervals of a bootstrap over {first['groups']} groups "
            "of rows; behind: points behind the first method on the same draws."
        )
        grid = Grid.of("method", "median %", "95 % interval", "behind", "verdict", caption=caption)
        for row in part.to_dict("records"):
            grid.add(
                row["method"], _percent(row["median"]), f"{row['low']:.1f} to {row['high']:.1f}",
                f"{row['behind_low']:+.1f} to {row['behind_high']:+.1f}", row["verdict"],
                strong=str(row["verdict"]).endswith("first"),
            )  # fmt: skip
        grids.append(grid)
    return grids


def decision_grids(tables: Tables) -> list[Grid]:
    """What picking deployments by predictions costs, one table per split."""
    grids = []
    for split, part in tables.decisions.groupby("split", sort=False):
        caption = (
            f"{split}: share of the best measured throughput per GPU that picks by predictions "
            f"lose, over {part['decisions'].max()} decisions; a pick whose measured TPOT is more "
            "than 5 % beyond its limit loses everything and counts as missed."
        )
        best_first = part.sort_values("loss", kind="stable")
        grids.append(decision_grid(best_first, ("mean loss %", "missed %"), caption))
    return grids


def coverage_grid(tables: Tables) -> list[Grid]:
    """Coverage and width of the 90 % intervals of every left-out part."""
    coverage = tables.left_out_coverage()
    if coverage.empty:
        return []
    caption = (
        "90 % intervals, each left-out part judged by intervals calibrated without it; width is "
        "the median of upper minus lower end over the prediction."
    )
    headings = ("split", "left out", "metric", "rows", "covered %", "width %")
    grid = Grid.of(*headings, caption=caption, text=2)
    rows = coverage[np.isclose(coverage["level"], 0.9)]
    for row in rows.to_dict("records"):
        grid.add(
            row["split"], row["name"], row["metric"].upper(), str(row["n"]),
            f"{100 * row['coverage']:.1f}", f"{100 * row['width']:.0f}",
            strong=row["part"] == "all",
        )  # fmt: skip
    return [grid]


def _percent(value: float) -> str:
    return "-" if pd.isna(value) else f"{value:.1f}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None or pd.isna(value) else f"{value:.{digits}f}"
