"""Write the page and its pictures."""

from collections.abc import Sequence
from pathlib import Path

from pinn.common import files, pages
from pinn.common.screen import Grid
from pinn.evaluation import folds, metrics
from pinn.evaluation.report import contents, figures
from pinn.evaluation.report.contents import METHOD, Picture, Section, Tables

# What a page says first: how far off the network is on what it never saw, and who comes next.

#: Kind of split -> what was unseen.
_UNSEEN = {
    "leave-one-model-out": "unseen models",
    "leave-one-gpu-out": "unseen GPUs",
    "leave-one-gpu-and-its-kernels-out": "unseen GPUs and kernels",
}
_COVERED = _UNSEEN | {folds.RUN_ERRORS_SPLIT: "serving runs of unseen models"}

#: Methods that are this package's own, or that saw what they predict: no peers.
_NO_PEERS = ("network", "teacher", "global vector", "blackbox, per configuration")


def summary(tables: Tables) -> list[tuple[str, str]]:
    """Up to five lines: label and text; one line where the network was not evaluated."""
    splits = [split for split in _UNSEEN if not tables.split(split).empty]
    if not splits:
        return [("Left out", f"no predictions of the method {METHOD!r}: see the sections below.")]
    parts = []
    for split in splits:
        rows = tables.split(split)
        what = _UNSEEN[split].removeprefix("unseen ")
        parts.append(f"each of {rows['held_out'].nunique()} {what} in turn ({len(rows)} rows)")
    lines = [("Left out", "; ".join(parts) + ". Errors below are medians.")]
    for metric in ("tpot", "ttft", "e2e"):
        found = [f"{_UNSEEN[split]}: {_compared(tables, split, metric)}" for split in splits]
        lines.append((metric.upper(), "; ".join(found) + "."))
    covered = _covered(tables)
    return [*lines, ("90 % intervals", covered)] if covered else lines


def origin(tables: Tables) -> str:
    """Which predictions were taken from a checkpoint's own folds; empty where none were."""
    if metrics.CHECKPOINT_COLUMN not in tables.predictions:
        return ""
    kept = tables.predictions.dropna(subset=metrics.CHECKPOINT_COLUMN)
    if kept.empty:
        return ""
    of_splits = [
        f"{split} ({', '.join(part['method'].unique())})"
        for split, part in kept.groupby("split", sort=False)
    ]
    return (
        "Not fitted anew but predicted by the folds of the published checkpoint (SHA-256 "
        f"{kept[metrics.CHECKPOINT_COLUMN].iloc[0][:12]}), which left the same parts out: "
        f"{'; '.join(of_splits)}."
    )


def _compared(tables: Tables, split: str, metric: str) -> str:
    """Median error of the network and of the best peer on rows that both predict."""
    rows = tables.predictions
    rows = rows[(rows["split"] == split) & rows["model"].notna()]
    error = metrics.percent_errors(metrics.with_e2e(rows), metric).abs()
    wide = rows.assign(error=error).pivot_table(index="row_id", columns="method", values="error")
    if METHOD not in wide:
        return "-"
    own = f"{wide[METHOD].median():.1f} %"
    peers = [name for name in wide if not str(name).startswith(_NO_PEERS)]
    if not peers:
        return own
    best = wide[peers].median().idxmin()
    both = wide[[METHOD, best]].dropna()
    there = f"{both[METHOD].median():.1f} %"
    on_its_rows = "" if there == own else f", the network {there} on its {len(both)} rows"
    return f"{own} (the best peer, {best}: {both[best].median():.1f} %{on_its_rows})"


def _covered(tables: Tables) -> str:
    """By the intervals of the checkpoint whose predictions are shown, else by this page's own."""
    rows = tables.stated
    if rows.empty:
        rows = tables.coverage
        if rows.empty:
            return ""
        rows = rows[(rows["level"] - 0.9).abs() < 1e-9]
    rows = rows[rows["part"] == "all"]
    found = []
    for split, part in rows.groupby("split", sort=False):
        shares = ", ".join(
            f"{row['metric'].upper()} {100 * row['coverage']:.0f} %"
            for row in part.to_dict("records")
        )
        found.append(f"{_COVERED.get(str(split), split)}: cover {shares}")
    return "; ".join(found) + ("." if found else "")


# The sections of a page, drawn from an evaluation's tables.

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
            Section("All splits", "Every split and method.", contents.result_grids(tables)),
            ]  # fmt: skip


def _left_out(tables: Tables, split: str, title: str) -> Section:
    rows = tables.split(split)
    measured = tables.predictions[tables.predictions["model"].notna()]
    count = measured.loc[measured["split"] == split, "row_id"].nunique()
    about = f"{split}, {count} measured vLLM deployments under one load each"
    dots: list[Picture | Grid] = []
    agreement: list[Picture | Grid] = []
    medians: list[Picture | Grid] = []
    for metric in _METRICS:
        dots += contents.picture(
            f"accuracy-{split}-{metric}",
            figures.accuracy_figure(tables, split, metric),
            f"Errors of {metric.upper()}: one dot per row, markers tell GPUs, bars are medians; "
            f"errors above {figures.EDGE:.0f} % lie at the edge, the dotted line at 10 %. {about}.",
        )
        agreement += contents.picture(
            f"agreement-{split}-{metric}",
            figures.agreement_figure(rows, metric),
            f"{metric.upper()} of the method {METHOD!r} against the measured one: the line is "
            f"equality, the band 10 %. n = {len(rows)}; {about}.",
        )
        medians += contents.held_out_grid(tables, split, metric)
    text = (
        "Each part was predicted by methods that never saw it: none of its rows and, where the "
        "split says so, none of its kernels."
    )
    return Section(title, text, [*dots, *agreement, *medians])


def _loads(tables: Tables) -> Section:
    split = "leave-one-model-out"
    rows = tables.split(split)
    caption = (
        f"Signed errors of the method {METHOD!r}, cut at 100 %: dots are rows, markers tell "
        f"models, wide bars are medians, the band is 10 %. n = {len(rows)} rows of {split}."
    )
    items = contents.picture("loads", figures.load_figure(tables, split), caption)
    text = "Whether errors grow with requests in flight or with lengths."
    return Section("Errors and load", text, items, f"no predictions of {METHOD!r} in {split}.")


def _ranking(tables: Tables) -> Section:
    text = (
        "Methods by median error. Tied first: on the bootstrap's draws the interval of the "
        "difference to the first reaches 0. Draws are whole deployments, since their rows share "
        "their error; they do not make new models."
    )
    return Section("Ranking", text, contents.ranking_grids(tables))


def _decisions(tables: Tables) -> Section:
    text = (
        "Of the measured deployments of a model on a GPU under one prompt and output length, the "
        "one with the best predicted throughput per GPU within a limit of TPOT (10, 15, 20, 30 or "
        "50 ms) is picked and priced by its measurement. 'Expected' weighs each throughput by the "
        "chance that the limit is held, under the law of the errors on other models or GPUs."
    )
    return Section("Decisions", text, contents.decision_grids(tables))


def _intervals(tables: Tables) -> Section:
    rows = tables.coverage
    n = {} if rows.empty else rows[rows["part"] == "all"].groupby("split")["n"].max().to_dict()
    counts = ", ".join(f"{split} n = {count}" for split, count in n.items())
    caption = (
        "Share of rows inside intervals of each level; every left-out part is judged by intervals "
        f"calibrated without it. Markers tell left-out parts, the line all rows. {counts}."
    )
    items = contents.picture("calibration", figures.calibration_figure(tables), caption)
    text = (
        "One width for each metric and kind of GPU, calibrated on left-out models and GPUs. So few "
        "groups promise coverage on average, not for each model. They are calibrated on the "
        "predictions of this page; a published checkpoint's own, which the summary goes by where "
        "its predictions are shown, on left-out GPUs and serving runs too."
    )
    missing = "no left-out predictions of the network that kernels taught."
    return Section("Intervals", text, [*items, *contents.coverage_grid(tables)], missing)


# The page and its pictures.

TITLE = "How good the predictions are"

#: Pictures for the docs.
DOCS_PICTURES = ("accuracy-leave-one-model-out-tpot", "agreement-leave-one-model-out-tpot")


def write_report(folder: Path, evidence: str, images: Path | None = None) -> Path:
    """Write ``report.html``, which needs no other file, and the same pictures as PNG files.

    Args:
        folder: Of an evaluation; ``figures`` in it gets the pictures.
        evidence: What every table rests on.
        images: Another folder that gets those in ``DOCS_PICTURES``.

    Returns:
        The page.

    Raises:
        PinnError: If the folder holds no results.
    """
    tables = contents.read_tables(folder)
    sections = make_sections(tables)
    pictures = [i for section in sections for i in section.items if isinstance(i, Picture)]
    _write_pictures(pictures, folder / "figures")
    if images is not None:
        _write_pictures([one for one in pictures if one.name in DOCS_PICTURES], images)
    page = folder / "report.html"
    files.write_whole(page, render(tables, sections, evidence))
    return page


def render(tables: Tables, sections: Sequence[Section], evidence: str) -> str:
    """The page as HTML."""
    introduction = (
        f"Everything here rests on {evidence}. Errors are absolute percentage errors of means; "
        "splits are fixed, and all methods predict the same rows."
    )
    return pages.template("pinn.evaluation.report", "page.html.j2").render(
        title=TITLE,
        summary=summary(tables),
        introduction=introduction,
        origin=origin(tables),
        sections=sections,
        evidence=evidence,
    )


def _write_pictures(pictures: Sequence[Picture], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for one in pictures:
        files.write_whole(folder / f"{one.name}.png", one.content)
