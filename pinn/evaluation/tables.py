"""Tables of an evaluation for a terminal or a page, generated from saved files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import TypeVar

import pandas as pd

from pinn.common.screen import WIDEST, Column, Grid, page
from pinn.evaluation.comparison import leaders
from pinn.evaluation.metrics import GROUPS
from pinn.measurements.runs.measured_runs import FIGURES

#: Definition of the errors in all tables of this module.
CAPTION = "absolute percentage error; bias: median signed error; n: number of rows"

#: Explanation of the columns of a table of decisions.
DECISIONS_CAPTION = (
    "Deployments with the best predicted throughput per GPU within a TPOT limit. Loss: shortfall "
    "from the best measured throughput in percent, or 100 % if the measured TPOT exceeds the "
    "limit by over 5 % (missed)."
)

#: Headings of the columns in the overview table, by prediction method.
_KNOWN = {
    "network": "pinn", "aisimulate": "AIS", "aiconfigurator": "AIC", "roofline": "roofline",
}  # fmt: skip

#: Groups of rows whose errors are also printed by held-out model. In saved tables, this applies to
#: every group.
DETAILED = ("expert-parallel",)


_Heading = TypeVar("_Heading", bound=str | Column)


def frame_grid(
    rows: pd.DataFrame,
    columns: Mapping[_Heading, str],
    caption: str = "",
    text: int = 1,
    strong: Iterable[bool] = (),
) -> Grid:
    """Return columns of a DataFrame as a grid, with ``-`` for missing values.

    Args:
        rows: DataFrame to show.
        columns: Column of the DataFrame by heading, as ``name`` or, with a Python format,
            ``name:format``.
        caption: Caption of the grid.
        text: Number of text columns, from the left.
        strong: Whether each row is emphasized; empty for no emphasis.

    >>> rows = pd.DataFrame({"a": ["x"], "b": [1.25]})
    >>> print(frame_grid(rows, {"A": "a", "B": "b:+.1f"}).markdown().splitlines()[-1])
    | x | +1.2 |
    """
    grid = Grid.of(*columns, caption=caption, text=text)
    named = [spec.partition(":") for spec in columns.values()]
    values = rows.reindex(columns=[name for name, _, _ in named])
    marks = chain(strong, repeat(False))
    for row, mark in zip(values.itertuples(index=False), marks, strict=False):
        each = zip(row, named, strict=True)
        cells = ("-" if pd.isna(value) else format(value, form) for value, (_, _, form) in each)
        grid.add(*cells, strong=bool(mark))
    return grid


def print_overview(results: pd.DataFrame, ranking: pd.DataFrame) -> None:
    """Print the median TPOT and TTFT errors of the methods ``_KNOWN``, and mark the best methods.

    Args:
        results: Table with ``pinn.evaluation.metrics.RESULT_COLUMNS``.
        ranking: Table as ``pinn.evaluation.comparison.rank`` returns it.
    """
    table = Grid.of("median error, %", "of", "rows", *_KNOWN.values(), text=2)
    first = leaders(ranking)
    whole, last = results[results["held_out"] == "all"], ""
    for (split, metric), part in whole.groupby(["split", "metric"], sort=False):
        medians = part.set_index("method")["median"]
        marked = dict.fromkeys(first.get(str(split), {}).get(str(metric), ()), "*")
        cells = (f"{medians[n]:.1f}{marked.get(n, ' ')}" if n in medians else "- " for n in _KNOWN)
        table.add("" if split == last else str(split), str(metric), str(part["n"].max()), *cells)
        last = str(split)
    page().print(table)
    print("* best, or tied with the best; AIS: AISimulate 0.13; AIC: AIConfigurator 0.12")


def print_results(results: pd.DataFrame, evidence: str = "") -> None:
    """Print a table of errors per split and metric, one row per held-out model or GPU and method.

    Args:
        results: Table with ``pinn.evaluation.metrics.RESULT_COLUMNS``.
        evidence: Description of the data, printed below each table.
    """
    caption = f"{CAPTION}; evaluated on {evidence}" if evidence else CAPTION
    columns = {"held out": "held_out", "method": "method", "n": "n"}
    columns |= {name: f"{name}:.1f" for name in ("median", "mean", "p90", "bias")}
    console = page(WIDEST)
    for (split, metric), part in results.groupby(["split", "metric"], sort=False):
        shown = part[part["held_out"].map(_is_shown)]
        shown = shown.sort_values("held_out", key=lambda names: names.map(_order), kind="stable")
        repeated = shown["held_out"] == shown["held_out"].shift()
        shown = shown.assign(held_out=shown["held_out"].mask(repeated, ""))
        console.print(frame_grid(shown, columns, f"{split}: {str(metric).upper()}", text=2))
        console.print(f"{caption}\n")


def screen_grid(part: pd.DataFrame) -> Grid:
    """Return an 80-column table of three methods' errors by held-out model or GPU."""
    known = [method for method in _KNOWN if method in set(part["method"])]
    methods = (known or list(dict.fromkeys(part["method"])))[:3]
    return error_grid("held out", part, methods, models_only=True)


def error_grid(heading: str, part: pd.DataFrame, methods: list[str], models_only: bool) -> Grid:
    """Return a table of methods' ``median / mean`` errors, by held-out data and group of rows."""
    counts = part.groupby("held_out")["n"].max()
    cells = {
        (row["held_out"], row["method"]): f"{row['median']:.1f} / {row['mean']:.1f}"
        for row in part.to_dict("records")
    }
    table = Grid.of(heading, "rows", *methods)
    for name in sorted(counts.index, key=_order):
        if _is_shown(name) and not (models_only and name.startswith(tuple(GROUPS))):
            table.add(name, str(counts[name]), *(cells.get((name, m), "-") for m in methods))
    return table


def print_decisions(table: pd.DataFrame) -> None:
    """Print each method's mean throughput loss, over all decisions and by model, per split.

    Args:
        table: Table as ``pinn.evaluation.decisions.decision_table`` returns it.
    """
    console = page(WIDEST)
    for split, part in table.groupby("split", sort=False):
        console.print(decision_grid(part, ("mean loss", "missed"), f"{split}: decisions"))
        console.print(f"{DECISIONS_CAPTION}\n")


def decision_grid(part: pd.DataFrame, means: tuple[str, str], caption: str) -> Grid:
    """Return a table with a row per method: mean loss, missed TPOT limits, and loss by model.

    Loss is a share of throughput.

    Args:
        part: Rows of one split.
        means: Headings of the columns of mean loss and of the share of missed limits.
        caption: Caption of the grid.
    """
    losses = part.pivot(index="method", columns="held_out", values="loss").drop(columns="all")
    names = [str(model).split("/")[-1].removesuffix("-Instruct") for model in losses.columns]
    losses.columns = names
    whole = part[part["held_out"] == "all"].join(losses, on="method")
    columns: dict[str | Column, str] = {Column("method", True, folds=False): "method"}
    columns |= {"decisions": "decisions", means[0]: "loss:.1f", means[1]: "missed:.1f"}
    columns |= {model: f"{model}:.1f" for model in names}
    strong = whole["method"].str.startswith("network")
    return replace(frame_grid(whole, columns, caption, strong=strong), gap=1)


#: Headings of columns in printed tables, by latency metric of a serving run.
_FIGURES = {figure: figure.removesuffix("_s").replace("_", " ") for figure in FIGURES}


def print_scores(scores: pd.DataFrame) -> None:
    """Print the errors of every latency metric, one row per serving run and stage.

    Args:
        scores: Table as ``pinn.evaluation.serving_runs.score_runs`` returns it.
    """
    key = ["run", "stage"]
    columns: dict[str | Column, str] = {Column("run", True, most=24): "run"}
    columns |= {Column("stage", True): "stage", "req/s": "rate_per_s:g"}
    columns |= {heading: f"{figure}:+.1f" for figure, heading in _FIGURES.items()}
    columns["failed"] = "failed"
    for method, rows in scores.groupby("method", sort=False):
        errors = rows.pivot(index=key, columns="figure", values="error_percent")
        shown = rows.drop_duplicates(key).join(errors, on=key)
        failed = 100 * shown[["failed_predicted", "failed_measured"]]
        text = failed.apply(lambda of: "{:.1f}, was {:.1f}".format(*of), axis=1)
        shown = shown.assign(failed=text.where(failed.max(axis=1) > 0, ""))
        table = frame_grid(shown, columns, f"{method}: error in %")
        page(WIDEST).print(replace(table, gap=1))


def print_summary(
    summary: pd.DataFrame, inversions: Mapping[str, Sequence[tuple[str, str]]]
) -> None:
    """Print median, mean and maximum error by latency metric, and wrongly ordered pairs of runs."""
    console = page(WIDEST)
    shown = summary[summary["part"].isin(["all", "stages", "overloaded"])]
    columns = {"method": "method", "part": "part", "figure": "figure"}
    columns |= {"n": "n", "median": "median:.1f", "mean": "mean:.1f", "largest": "max:.1f"}
    named = shown.assign(figure=shown["figure"].map(_FIGURES))
    console.print(frame_grid(named, columns, "absolute error in %", text=3))
    for method, pairs in inversions.items():
        console.print(
            f"{method}: {len(pairs)} pairs of runs whose p99 E2E differs by more than 20 % are "
            "ranked wrongly"
        )
        for slower, faster in pairs:
            console.print(f"  {slower} is slower than {faster}")


def _is_shown(held_out: str) -> bool:
    """Return whether the printed table includes the row of a held-out model, GPU or group.

    A model or GPU within a group is included only if the group is in ``DETAILED``.
    """
    part, nested, _ = held_out.partition(": ")
    return not nested or part in DETAILED


def _order(name: str) -> tuple[bool, bool, str]:
    """Return a sort key: held-out models or GPUs first, then named groups, then ``all``."""
    return name == "all", name.startswith(tuple(GROUPS)), name
