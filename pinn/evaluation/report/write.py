"""Writing of an evaluation's page and its figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from pinn.common import files, pages
from pinn.common.screen import Grid
from pinn.evaluation import folds, metrics
from pinn.evaluation.report import contents, figures
from pinn.evaluation.report.contents import METHOD, Picture, Tables

#: Pictures and tables of the page's sections, by title of the section.
Sections = Mapping[str, Sequence[Picture | Grid]]

# First lines of a page: held-out errors of the network and of the best other estimator.

#: Plural nouns for the parts that a split method holds out, by method.
_UNSEEN = {
    "leave-one-model-out": "models",
    "leave-one-gpu-out": "GPUs",
    "leave-one-gpu-and-its-kernels-out": "GPUs and kernels",
}
_COVERED = {split: f"unseen {what}" for split, what in _UNSEEN.items()}
_COVERED |= {folds.RUN_ERRORS_SPLIT: "serving runs of unseen models"}

#: Name prefixes of methods that do not count as other estimators (peers): methods of this package,
#: and methods trained on the rows that they predict.
_NO_PEERS = ("network", "teacher", "global vector", "blackbox, per configuration")


def summary(tables: Tables) -> list[tuple[str, str]]:
    """Return up to five (label, text) lines that summarize the network's held-out errors.

    If the network was not evaluated, there is only one line.
    """
    shown = {split: rows for split in _UNSEEN if len(rows := tables.of_network(split))}
    if not shown:
        return [("Held out", f"no predictions of the method {METHOD!r}: see the sections below.")]
    parts = (
        f"each of {rows['held_out'].nunique()} {_UNSEEN[split]} in turn ({len(rows)} rows)"
        for split, rows in shown.items()
    )
    lines = [("Held out", "; ".join(parts) + ". Errors below are medians.")]
    for metric in ("tpot", "ttft", "e2e"):
        found = [f"unseen {_UNSEEN[s]}: {_compared(tables.of_split(s), metric)}" for s in shown]
        lines.append((metric.upper(), "; ".join(found) + "."))
    covered = _covered(tables)
    return [*lines, ("90 % intervals", f"{covered}.")] if covered else lines


def _compared(rows: pd.DataFrame, metric: str) -> str:
    """Return a sentence comparing the network's median error with the best other estimator's."""
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
    """Return a sentence about the coverage of 90 % intervals in each split.

    The intervals are those of the shown checkpoint or, without one, those calibrated in this
    evaluation.
    """
    rows = tables.stated
    if rows.empty:
        rows = tables.coverage[(tables.coverage["level"] - 0.9).abs() < 1e-9]
    rows = rows[rows["part"] == "all"]
    shares = rows["metric"].str.upper() + (100 * rows["coverage"]).map(" {:.0f} %".format)
    return "; ".join(
        f"{_COVERED.get(str(split), split)}: cover {', '.join(part)}"
        for split, part in shares.groupby(rows["split"], sort=False)
    )


def _shipped(tables: Tables) -> dict[str, str]:
    """Return a sentence that names the splits predicted in cross-validation, and the checkpoint.

    The checkpoint is identified by its SHA-256.
    """
    mark = metrics.CHECKPOINT_COLUMN
    kept = tables.predictions.reindex(columns=["split", "method", mark]).dropna(subset=mark)
    methods = kept.groupby("split", sort=False)["method"].unique().map(", ".join)
    splits = "; ".join(f"{split} ({names})" for split, names in methods.items())
    return {"splits": splits, "checkpoint": next(iter(kept[mark]), "")[:12]}


# Sections of a page, made from an evaluation's tables.

#: Titles of the page's sections, by split method.
_TITLES = {
    "leave-one-model-out": "Held-out models",
    "leave-one-gpu-out": "Held-out GPUs",
    "leave-one-gpu-and-its-kernels-out": "Held-out GPUs and their kernels",
}


def make_sections(tables: Tables) -> Sections:
    """Return the figures and tables of each section of the page, by section title."""
    found = {
        title: _left_out(tables, split)
        for split, title in _TITLES.items()
        if (tables.predictions["split"] == split).any()
    }
    return found | {
        "Errors and load": _loads(tables, "leave-one-model-out"),
        "Ranking": contents.ranking_grids(tables),
        "Decisions": contents.decision_grids(tables),
        "Intervals": [*_calibration(tables), *contents.coverage_grid(tables)],
        "All splits": contents.result_grids(tables),
    }


def _left_out(tables: Tables, split: str) -> list[Picture | Grid]:
    rows = tables.of_network(split)
    count = tables.of_split(split)["row_id"].nunique()
    about = f"{split}, {count} vLLM deployments, each measured under one load"
    dots: list[Picture | Grid] = []
    agreement: list[Picture | Grid] = []
    medians: list[Picture | Grid] = []
    for metric in ("tpot", "ttft"):
        dots += contents.picture(
            f"accuracy-{split}-{metric}",
            figures.accuracy_figure(tables, split, metric),
            f"Errors of {metric.upper()}: each dot is a row, marker shapes distinguish GPUs, and "
            f"bars are medians. Errors above {figures.EDGE:.0f} % are drawn at the edge; the "
            f"dotted line marks 10 %. {about}.",
        )
        agreement += contents.picture(
            f"agreement-{split}-{metric}",
            figures.agreement_figure(rows, metric),
            f"{metric.upper()} predicted by the method {METHOD!r} versus measured "
            f"{metric.upper()}. The line marks equality, the band 10 % error. n = {len(rows)}; "
            f"{about}.",
        )
        medians += contents.held_out_grid(tables, split, metric)
    return [*dots, *agreement, *medians]


def _loads(tables: Tables, split: str) -> list[Picture]:
    rows = tables.of_network(split)
    caption = (
        f"Signed errors of the method {METHOD!r}, clipped at 100 %. Dots are rows, marker shapes "
        f"distinguish models, wide bars are medians, and the band marks 10 %. n = {len(rows)} "
        f"rows of "
        f"{split}."
    )
    return contents.picture("loads", figures.load_figure(rows), caption)


def _calibration(tables: Tables) -> list[Picture]:
    rows = tables.coverage
    counts = rows[rows["part"] == "all"].groupby("split")["n"].max()
    caption = (
        "Share of rows inside their intervals, by nominal coverage. Each part of the data is "
        "evaluated with intervals calibrated without it. Markers are parts of the data; the line "
        "is all rows. "
        f"{', '.join(f'{split} n = {count}' for split, count in counts.items())}."
    )
    return contents.picture("calibration", figures.calibration_figure(tables), caption)


# Writing the page and its pictures.

#: Names, without suffix, of the page's pictures that the docs show.
DOCS_PICTURES = ("accuracy-leave-one-model-out-tpot", "agreement-leave-one-model-out-tpot")


def write_report(folder: Path, evidence: str, images: Path | None = None) -> Path:
    """Write ``report.html``, which is self-contained, and its figures as PNG files.

    Args:
        folder: Folder of an evaluation; figures are written to its subfolder ``figures``.
        evidence: Description of the data, shown below every table.
        images: Folder for copies of the figures in ``DOCS_PICTURES``; None for no copies.

    Returns:
        Path of the page.

    Raises:
        PinnError: If the folder has no results.
    """
    tables = contents.read_tables(folder)
    sections = make_sections(tables)
    pictures = [i for items in sections.values() for i in items if isinstance(i, Picture)]
    _write_pictures(pictures, folder / "figures")
    if images is not None:
        _write_pictures([one for one in pictures if one.name in DOCS_PICTURES], images)
    page = folder / "report.html"
    files.write_whole(page, render(tables, sections, evidence))
    return page


def render(tables: Tables, sections: Sections, evidence: str) -> str:
    """Return an evaluation's page as HTML text."""
    return pages.template("pinn.evaluation.report", "page.html.j2").render(
        summary=summary(tables), shipped=_shipped(tables), sections=sections, evidence=evidence
    )


def _write_pictures(pictures: Sequence[Picture], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for one in pictures:
        files.write_whole(folder / f"{one.name}.png", one.content)
