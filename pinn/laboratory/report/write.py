"""Write the page and its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pinn.common.files import write_whole
from pinn.common.pages import template
from pinn.laboratory.folds import CHECKPOINT_COLUMN
from pinn.laboratory.intervals import RUNS_LEFT_OUT
from pinn.laboratory.metrics import percent_errors, with_e2e
from pinn.laboratory.report.sections import make_sections
from pinn.laboratory.report.tables import METHOD, Picture, Section, Tables, read_tables

# What a page says first: how far off the network is on what it never saw, and who comes next.

#: Kind of split -> what was unseen.
_UNSEEN = {
    "leave-one-model-out": "unseen models",
    "leave-one-gpu-out": "unseen GPUs",
    "leave-one-gpu-and-its-kernels-out": "unseen GPUs and kernels",
}
_COVERED = _UNSEEN | {RUNS_LEFT_OUT: "serving runs of unseen models"}

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
    rows = tables.predictions
    if CHECKPOINT_COLUMN not in rows:
        return ""
    kept = rows[rows[CHECKPOINT_COLUMN].notna()]
    if kept.empty:
        return ""
    of_splits = [
        f"{split} ({', '.join(part['method'].unique())})"
        for split, part in kept.groupby("split", sort=False)
    ]
    return (
        "Not fitted anew but predicted by the folds of the published checkpoint (SHA-256 "
        f"{kept[CHECKPOINT_COLUMN].iloc[0][:12]}), which left the same parts out: "
        f"{'; '.join(of_splits)}."
    )


def _compared(tables: Tables, split: str, metric: str) -> str:
    """Median error of the network and of the best peer on rows that both predict."""
    rows = tables.predictions
    rows = rows[(rows["split"] == split) & rows["model"].notna()]
    error = percent_errors(with_e2e(rows), metric).abs()
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


TITLE = "How good the predictions are"

#: Pictures for the docs.
DOCS_PICTURES = (
    "accuracy-leave-one-model-out-tpot", "agreement-leave-one-model-out-tpot", "calibration",
)  # fmt: skip


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
    tables = read_tables(folder)
    sections = make_sections(tables)
    pictures = [i for section in sections for i in section.items if isinstance(i, Picture)]
    _write_pictures(pictures, folder / "figures")
    if images is not None:
        _write_pictures([one for one in pictures if one.name in DOCS_PICTURES], images)
    page = folder / "report.html"
    text = render(tables, sections, evidence)
    write_whole(page, text)
    return page


def render(tables: Tables, sections: Sequence[Section], evidence: str) -> str:
    """The page as HTML."""
    introduction = (
        f"Everything here rests on {evidence}. Errors are absolute percentage errors of means; "
        "splits are fixed, and all methods predict the same rows."
    )
    return template("pinn.laboratory.report", "page.html.j2").render(
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
        write_whole(folder / f"{one.name}.png", one.content)
