"""What a page is made of: sections of figures and tables, each with its caption."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from pinn.export.plot_style import png


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        name: Of the PNG file, without its suffix.
        caption: Says what is shown, n, data and split.
        content: The PNG's bytes.
    """

    name: str
    caption: str
    content: bytes

    @property
    def png(self) -> str:
        """The picture as text, for a page that needs no other file."""
        return base64.b64encode(self.content).decode()


@dataclass(frozen=True)
class Row:
    """A line of a table; ``strong`` ones stand out."""

    cells: Sequence[str]
    strong: bool = False


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        caption: Says what is shown, n, data and split; what it rests on is added to each.
        headings: Of the columns.
        rows: Its lines.
        text_columns: How many columns, from the left, hold text.
    """

    caption: str
    headings: Sequence[str]
    rows: Sequence[Row]
    text_columns: int = 1
    png: str = ""


@dataclass(frozen=True)
class Section:
    """Part of a page.

    Attributes:
        title: Heading.
        text: Below it.
        items: Figures and tables.
        missing: Why there are none, where there are none.
    """

    title: str
    text: str
    items: Sequence[Picture | Grid] = field(default_factory=tuple)
    missing: str = "it was not evaluated."

    @property
    def anchor(self) -> str:
        """Where links point."""
        return self.title.lower().replace(" ", "-")


def picture(name: str, figure: Figure | None, caption: str) -> list[Picture]:
    """A figure as a list of one, or of none."""
    return [] if figure is None else [Picture(name, caption, png(figure))]
