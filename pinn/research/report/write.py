"""Write the page and its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from pinn.research.report.parts import Picture, Section
from pinn.research.report.sections import make_sections
from pinn.research.report.summary import origin, summary
from pinn.research.report.tables import Tables, read_tables
from pinn.specs.files.write import write_whole

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
    environment = Environment(
        loader=PackageLoader("pinn.research.report", "."),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    introduction = (
        f"Everything here rests on {evidence}. Errors are absolute percentage errors of means; "
        "splits are fixed, and all methods predict the same rows."
    )
    return environment.get_template("page.html.j2").render(
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
