"""Tables that people read, and CSV files that a spreadsheet may open."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinn.common.documents import MOST_CSV_BYTES, read_text
from pinn.common.files import replace_atomically
from pinn.errors import PinnError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from rich.table import Table


# A table: a console prints it as it is, a page's template goes through its rows.


@dataclass(frozen=True)
class Cell:
    """A cell: its text, and what it is sorted by where a page can be sorted."""

    text: str
    value: float | str = ""


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        heading: Short.
        is_text: Whether it is aligned and sorted as text.
        meaning: Unit and definition, for a page.
        least: Characters in a terminal, at the least.
        most: Characters in a terminal, beyond which a cell is folded.
        folds: Whether a terminal that is too narrow folds it.
    """

    heading: str
    is_text: bool = False
    meaning: str = ""
    least: int | None = None
    most: int | None = None
    folds: bool = True


@dataclass(frozen=True)
class Row:
    """A line of a table; ``strong`` ones stand out in a page."""

    cells: Sequence[Cell]
    strong: bool = False


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        columns: From left to right.
        caption: Above it; a page's says what is shown, n, data and split.
        rows: Its lines.
        gap: Blanks between columns of a terminal.
    """

    columns: Sequence[Column]
    caption: str = ""
    rows: list[Row] = field(default_factory=list)
    gap: int = 2

    @classmethod
    def of(cls, *headings: str | Column, caption: str = "", text: int = 1) -> Grid:
        """A table without rows; so many columns from the left as ``text`` says hold text.

        >>> grid = Grid.of("model", "ms")
        >>> grid.add("a", "1.5")
        >>> print(grid.markdown())
        | model | ms |
        |---|---:|
        | a | 1.5 |
        """
        named = enumerate(headings)
        return cls([h if isinstance(h, Column) else Column(h, i < text) for i, h in named], caption)

    def add(self, *cells: str | Cell, strong: bool = False) -> None:
        """Add a row."""
        row = [cell if isinstance(cell, Cell) else Cell(cell) for cell in cells]
        self.rows.append(Row(row, strong))

    def markdown(self) -> str:
        """As lines of Markdown, without the caption."""
        marks = "|".join("---" if column.is_text else "---:" for column in self.columns)
        texts = [[column.heading for column in self.columns]]
        texts += [[cell.text for cell in row.cells] for row in self.rows]
        heading, *lines = (f"| {' | '.join(line)} |" for line in texts)
        return "\n".join([heading, f"|{marks}|", *lines])

    def __rich__(self) -> Table:
        """As a console prints it: no lines, numbers to the right."""
        from rich.table import Table

        left = self.gap - 1
        table = Table(
            title=self.caption or None, title_justify="left", box=None, pad_edge=False,
            padding=(0, 1, 0, left), show_header=any(c.heading for c in self.columns),
        )  # fmt: skip
        for column in self.columns:
            table.add_column(
                column.heading, justify="left" if column.is_text else "right",
                min_width=column.least, max_width=column.most, no_wrap=not column.folds,
            )  # fmt: skip
        for row in self.rows:
            table.add_row(*(cell.text for cell in row.cells))
        return table


# Every CSV file that is written: whole or not at all, no text cell that looks like a formula.

#: A cell that begins so is a formula to a spreadsheet, unless it is a number.
_FORMULA = re.compile(r"[=+\-@\t\r]")
_ESCAPED = re.compile(r"'[=+\-@\t\r]")


def escaped(cell: Any) -> Any:
    """A cell with an apostrophe in front if it is text that begins like a formula.

    >>> escaped("=1+1"), escaped("-5"), escaped(-5.0)
    ("'=1+1", '-5', -5.0)
    """
    if not isinstance(cell, str) or not _FORMULA.match(cell):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def plain(cell: Any) -> Any:
    """What :func:`escaped` made of a cell, as it was."""
    return cell[1:] if isinstance(cell, str) and _ESCAPED.match(cell) else cell


def escaped_table(table: pa.Table) -> pa.Table:
    """A table whose text cells and names of columns are escaped."""
    names = [escaped(name) for name in table.column_names]
    return _mapped(table, escaped).rename_columns(names)


def plain_table(table: pa.Table) -> pa.Table:
    """The table of which :func:`escaped_table` made this one."""
    return _mapped(table, plain).rename_columns([plain(name) for name in table.column_names])


def _mapped(table: pa.Table, change: Any) -> pa.Table:
    import pyarrow as pa  # tables for people need none

    for i, column in enumerate(table.schema):
        if pa.types.is_string(column.type):
            cells = table.column(i).to_pylist()
            changed = {cell: change(cell) for cell in set(cells)}
            values = pa.array([changed[cell] for cell in cells], column.type)
            table = table.set_column(i, column, values)
    return table


def escaped_frame(rows: pd.DataFrame) -> pd.DataFrame:
    """A frame whose text cells are escaped."""
    texts = rows.select_dtypes(exclude="number").columns
    return rows.assign(**{name: rows[name].map(escaped) for name in texts}).rename(columns=escaped)


def read_frame(path: Path, remedy: str, **read: Any) -> pd.DataFrame:
    """Read a CSV file of somebody as a frame.

    Args:
        path: The file.
        remedy: What to do where it is none, for the error.
        read: Further arguments of ``read_csv``, such as ``dtype``.

    Raises:
        PinnError: If it cannot be read, is larger than ``MOST_CSV_BYTES`` or no table.
    """
    import pandas as pd

    if not path.is_file():
        raise PinnError(f"{path}: no file there: {remedy}")
    text = read_text(path, MOST_CSV_BYTES, "CSV")
    try:
        return pd.read_csv(io.StringIO(text), **read)
    except ValueError as error:  # parser errors of pandas are
        raise PinnError(f"{path} is no CSV table ({error}): {remedy}") from error


def write_frame(rows: pd.DataFrame, path: Path, **written: Any) -> None:
    """Write a frame as CSV with its text cells escaped; the file appears whole or not at all.

    Args:
        rows: The frame; its index is left out.
        path: The file.
        written: Further arguments of ``DataFrame.to_csv``, such as ``float_format``.
    """
    safe = escaped_frame(rows)
    replace_atomically(path, lambda target: safe.to_csv(target, index=False, **written))


def write_rows(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], path: Path) -> None:
    """Write mappings as CSV with their text escaped; the file appears whole or not at all.

    Args:
        rows: Column to value; columns that a row lacks stay empty.
        columns: In the file's order.
        path: The file.

    Raises:
        ValueError: If a row has a column that is not among them.
    """

    def write(target: Path) -> None:
        with target.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, columns, lineterminator="\n")
            table.writeheader()
            table.writerows({name: escaped(cell) for name, cell in row.items()} for row in rows)

    replace_atomically(path, write)
