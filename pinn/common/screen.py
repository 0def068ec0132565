"""Terminal output: tables, and text in lines of at most 80 columns."""

from __future__ import annotations

import html
import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: ``WIDTH``: width of terminal output. ``WIDEST``: width of wide tables of details. Both are in
#: characters.
WIDTH, WIDEST = 80, 100
#: Spaces at the end of a line, before and after codes of text styles.
_TRAILING = re.compile(r" +((?:\x1b\[[\d;]*m)*) *$", re.MULTILINE)


class PrintedResult:
    """Result that a notebook and the Python prompt display as the text that ``print`` prints."""

    def __repr__(self) -> str:
        """Return the printed text, without the final newline."""
        return str(self).rstrip("\n")


def page(width: int = WIDTH) -> Console:
    """Return a console that prints tables and text verbatim, without interpreting markup.

    A table whose numbers need more columns is printed wider, never truncated. Lines have no
    trailing spaces.
    """
    from rich.console import Console

    class Page(Console):
        def print(self, *objects: Any, **settings: Any) -> None:
            with self.capture() as printed:
                super().print(*objects, **{"crop": False, **settings})
            self.file.write(_TRAILING.sub(r"\1", printed.get()))

    return Page(width=width, highlight=False, markup=False)


def say(text: str) -> None:
    """Print lines of text, and wrap long lines between words.

    >>> say("  8 skipped: " + "of another engine, " * 5)
      8 skipped: of another engine, of another engine, of another engine, of another
        engine, of another engine,
    """
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        further = f"{indent}  " if indent else ""
        folded = textwrap.wrap(
            line, WIDTH, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
        )
        print("\n".join(folded))


def skipped_lines(counts: Mapping[str, int], verb: str = "skipped") -> list[str]:
    """Return a line of text for each reason why input was skipped, with the number of items."""
    return [f"{count:8} {verb}: {reason}" for reason, count in counts.items()]


def printed(function: Callable[..., None], *arguments: object, **named: object) -> str:
    """Call a function and return the text that it prints to standard output."""
    text = io.StringIO()
    with redirect_stdout(text):
        function(*arguments, **named)
    return text.getvalue()


def as_typed(command: str) -> str:
    r"""Indent a command, and break long lines with backslashes as in a shell.

    A trailing comment that does not fit gets a separate line.

    >>> print(as_typed("pinn plan --model " + "x" * 60 + " --gpu H100"))
      pinn plan \
        --model xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx \
        --gpu H100
    >>> print(as_typed("vllm serve --model " + "x" * 50 + "  # 2 of them, prefill"))
      vllm serve --model xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
        # 2 of them, prefill
    """
    command, mark, comment = command.partition("  # ")
    lines, rest = [], f"  {command}"
    while len(rest) > WIDTH:
        cut = rest.rfind(" --", 4, WIDTH - 1)
        cut = rest.find(" --", WIDTH) if cut < 0 else cut
        if cut < 0:
            break
        lines.append(f"{rest[:cut]} \\")
        rest = f"    {rest[cut + 1 :]}"
    if mark and len(rest) + len(mark) + len(comment) <= WIDTH:
        rest, mark = f"{rest}{mark}{comment}", ""
    return "\n".join([*lines, rest, *([f"    # {comment}"] if mark else [])])


@dataclass(frozen=True)
class Column:
    """Column of a table.

    Attributes:
        heading: Short heading.
        is_text: Whether the column is aligned and sorted as text.
        least: Minimum width in characters in a terminal; None for no limit.
        most: Maximum width in characters in a terminal, beyond which a cell is wrapped; None for no
            limit.
        folds: Whether cells of the column are wrapped if the terminal is too narrow.
    """

    heading: str
    is_text: bool = False
    least: int | None = None
    most: int | None = None
    folds: bool = True


@dataclass(frozen=True)
class Row:
    """Row of a table; a row with ``strong`` is emphasized on an HTML page."""

    cells: Sequence[str]
    strong: bool = False


@dataclass(frozen=True)
class Grid:
    """Table for a terminal, Markdown and HTML.

    Attributes:
        columns: Columns from left to right.
        caption: Text above the table; on an HTML page also the number of measurements, the data and
            the split.
        rows: Rows from top to bottom.
        gap: Number of spaces between columns in a terminal.
    """

    columns: Sequence[Column]
    caption: str = ""
    rows: list[Row] = field(default_factory=list)
    gap: int = 2

    @classmethod
    def of(cls, *headings: str | Column, caption: str = "", text: int = 1) -> Grid:
        """Return a table with headings and no rows; the first ``text`` columns contain text.

        >>> grid = Grid.of("model", "ms")
        >>> grid.add("a", "1.5")
        >>> print(grid.markdown())
        | model | ms |
        |---|---:|
        | a | 1.5 |
        """
        named = enumerate(headings)
        return cls([h if isinstance(h, Column) else Column(h, i < text) for i, h in named], caption)

    def add(self, *cells: str, strong: bool = False) -> None:
        """Append a row of cells."""
        self.rows.append(Row(cells, strong))

    def _lines(self) -> list[Sequence[str]]:
        """Yield the headings of the table, then its rows."""
        return [[column.heading for column in self.columns], *(row.cells for row in self.rows)]

    def markdown(self) -> str:
        """Return the table as lines of Markdown, without the caption."""
        marks = "|".join("---" if column.is_text else "---:" for column in self.columns)
        heading, *lines = (f"| {' | '.join(line)} |" for line in self._lines())
        return "\n".join([heading, f"|{marks}|", *lines])

    def html(self) -> str:
        """Return the table as HTML for notebooks."""
        cells = [[f"<td>{html.escape(text)}</td>" for text in line] for line in self._lines()]
        head, *body = map("".join, cells)
        rows = "".join(f"<tr>{line}</tr>" for line in body)
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def __rich__(self) -> Table:
        """Return the table for a console, without rules and with numbers right-aligned."""
        from rich.cells import cell_len
        from rich.table import Table

        left = self.gap - 1
        table = Table(
            title=self.caption or None, title_justify="left", box=None, pad_edge=False,
            padding=(0, 1, 0, left), show_header=any(c.heading for c in self.columns),
        )  # fmt: skip
        for i, column in enumerate(self.columns):
            whole = not column.folds or not (column.is_text or column.most)
            lines = "\n".join([column.heading, *(row.cells[i] for row in self.rows)]).split("\n")
            widest = max(map(cell_len, lines))
            table.add_column(
                column.heading, justify="left" if column.is_text else "right",
                min_width=max(widest, column.least or 0) if whole else column.least,
                max_width=column.most, no_wrap=not column.folds, overflow="fold",
            )  # fmt: skip
        for row in self.rows:
            table.add_row(*row.cells)
        return table
