"""The sections of a page, drawn from an evaluation's tables."""

from __future__ import annotations

from pinn.common.screen import Grid
from pinn.laboratory.report import grids
from pinn.laboratory.report.figures import (
    EDGE,
    accuracy_figure,
    agreement_figure,
    calibration_figure,
    load_figure,
)
from pinn.laboratory.report.tables import METHOD, Picture, Section, Tables, picture

#: Kind of split -> title of its section.
LEFT_OUT = {
    "leave-one-model-out": "Left-out models",
    "leave-one-gpu-out": "Left-out GPUs",
    "leave-one-gpu-and-its-kernels-out": "Left-out GPUs and their kernels",
}

_METRICS = ("tpot", "ttft")


def make_sections(tables: Tables) -> list[Section]:
    """Everything that can be shown; a section without figures and tables says why."""
    found = [
        _left_out(tables, split, title)
        for split, title in LEFT_OUT.items()
        if (tables.predictions["split"] == split).any()
    ]
    return [*found, _loads(tables), _ranking(tables), _decisions(tables), _intervals(tables),
            Section("All splits", "Every split and method.", grids.result_grids(tables)),
            ]  # fmt: skip


def _left_out(tables: Tables, split: str, title: str) -> Section:
    rows = tables.split(split)
    about = f"{split}, {_count(tables, split)} measured vLLM deployments under one load each"
    dots: list[Picture] = []
    agreement: list[Picture] = []
    for metric in _METRICS:
        dots += picture(
            f"accuracy-{split}-{metric}",
            accuracy_figure(tables, split, metric),
            f"Errors of {metric.upper()}: one dot per row, markers tell GPUs, bars are medians; "
            f"errors above {EDGE:.0f} % lie at the edge, the dotted line is at 10 %. {about}.",
        )
        agreement += picture(
            f"agreement-{split}-{metric}",
            agreement_figure(rows, metric),
            f"{metric.upper()} of the method {METHOD!r} against the measured one: the line is "
            f"equality, the band 10 %. n = {len(rows)}; {about}.",
        )
    items: list[Picture | Grid] = [*dots, *agreement]
    for metric in _METRICS:
        items += grids.held_out_grid(tables, split, metric)
    text = (
        "Each part was predicted by methods that never saw it: none of its rows and, where the "
        "split says so, none of its kernels."
    )
    return Section(title, text, items)


def _count(tables: Tables, split: str) -> int:
    rows = tables.predictions
    return rows.loc[(rows["split"] == split) & rows["model"].notna(), "row_id"].nunique()


def _loads(tables: Tables) -> Section:
    split = "leave-one-model-out"
    rows = tables.split(split)
    caption = (
        f"Signed errors of the method {METHOD!r}, cut at 100 %: dots are rows, markers tell "
        f"models, wide bars are medians, the band is 10 %. n = {len(rows)} rows of {split}."
    )
    items = picture("loads", load_figure(tables, split), caption)
    text = "Whether errors grow with requests in flight or with lengths."
    return Section("Errors and load", text, items, f"no predictions of {METHOD!r} in {split}.")


def _ranking(tables: Tables) -> Section:
    text = (
        "Methods by median error. Tied first: on the bootstrap's draws the interval of the "
        "difference to the first reaches 0. Draws are whole deployments, since their rows share "
        "their error; they do not make new models."
    )
    return Section("Ranking", text, grids.ranking_grids(tables))


def _decisions(tables: Tables) -> Section:
    text = (
        "Of the measured deployments of a model on a GPU under one prompt and output length, the "
        "one with the best predicted throughput per GPU within a limit of TPOT (10, 15, 20, 30 or "
        "50 ms) is picked and priced by its measurement. 'Expected' weighs each throughput by the "
        "chance that the limit is held, under the law of the errors on other models or GPUs."
    )
    return Section("Decisions", text, grids.decision_grids(tables))


def _intervals(tables: Tables) -> Section:
    rows = tables.coverage
    n = {} if rows.empty else rows[rows["part"] == "all"].groupby("split")["n"].max().to_dict()
    counts = ", ".join(f"{split} n = {count}" for split, count in n.items())
    caption = (
        "Share of rows inside intervals of each level; every left-out part is judged by intervals "
        f"calibrated without it. Markers tell left-out parts, the line all rows. {counts}."
    )
    items = picture("calibration", calibration_figure(tables), caption)
    text = (
        "Intervals whose widths are learned on left-out models and GPUs: number format, experts, "
        "distance from measured kernels, load. So few groups promise coverage on average, not for "
        "each model. They are calibrated on the predictions of this page; a published checkpoint's "
        "own, which the summary goes by where its predictions are shown, on left-out GPUs and "
        "serving runs too."
    )
    missing = "no left-out predictions of the network that kernels taught."
    return Section("Intervals", text, [*items, *grids.coverage_grid(tables)], missing)
