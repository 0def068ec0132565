"""What people read: tables, lines of 80 columns in a terminal, and how far long work is."""

from __future__ import annotations

import io
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


# What people read in a terminal: lines of 80 columns, wherever they go.

#: Columns of a page, and of tables of details that would be unreadable in so few.
WIDTH, WIDEST = 80, 100


def page(width: int = WIDTH) -> Console:
    """Where tables and sentences are printed; names of models and paths are taken as they are."""
    from rich.console import Console

    return Console(width=width, highlight=False, markup=False)


def say(text: str) -> None:
    """Print lines, the long ones folded between words.

    >>> say("  8 left out: " + "of another engine, " * 5)
      8 left out: of another engine, of another engine, of another engine, of
        another engine, of another engine,
    """
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        further = f"{indent}  " if indent else ""
        folded = textwrap.wrap(
            line, WIDTH, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
        )
        print("\n".join(folded))


def printed(function: Callable[..., None], *arguments: object, **named: object) -> str:
    """Return what a function prints."""
    text = io.StringIO()
    with redirect_stdout(text):
        function(*arguments, **named)
    return text.getvalue()


def as_typed(command: str) -> str:
    r"""A command indented, and continued as a shell reads it where a line is full.

    A comment behind it has a line of its own where it would be cut.

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


# What a long command is doing, for a line on standard error while it does it.

Item = TypeVar("Item")


def note(text: str) -> None:
    """A line on standard error at once: how the work goes, where output may be data."""
    print(text, file=sys.stderr, flush=True)


#: Commands that take less say nothing.
FIRST_S = 5.0
#: Each further line comes when twice the time has passed, and at least once a minute.
_LONGEST_S = 60.0


_WORK = SimpleNamespace(text="", part="", is_shown=False)


def doing(text: str) -> None:
    """Say what is being done from now on; shown only if it takes long."""
    _WORK.text = text


def still(done: int, total: int, since_s: float) -> str:
    """How long work in equal parts goes on, in words.

    Args:
        done: Parts that are done.
        total: All of them.
        since_s: Moment of ``time.monotonic`` at which the first one began.

    >>> still(3, 3, time.monotonic())
    'the last one'
    """
    if done >= total:
        return "the last one"
    left_s = (time.monotonic() - since_s) * (total - done) / max(done, 1)
    return f"about {left_s / 60:.0f} min still" if left_s > 90 else f"about {left_s:.0f} s still"


def counted(items: Iterable[Item], what: str) -> Iterator[Item]:
    """The items, with how many are done so far as what is being done."""
    total = f" of {len(items):,}" if isinstance(items, Sized) else ""
    for number, item in enumerate(items, 1):
        doing(f"{what} {number:,}{total}")
        yield item
    doing("")


@contextmanager
def shown(command: str, stream: TextIO, first_s: float = FIRST_S) -> Iterator[None]:
    """Write a line now and then while the body runs; inside another such body, as a part of it.

    Args:
        command: Named at the start of the line.
        stream: Written to, terminal or not: whole lines, which a log keeps as they are.
        first_s: When the first line comes, in seconds.
    """
    doing("")
    if _WORK.is_shown:
        before, _WORK.part = _WORK.part, f"{command}, "
        try:
            yield
        finally:
            _WORK.part = before
        return
    done, _WORK.is_shown = threading.Event(), True
    thread = threading.Thread(target=_write, args=(command, stream, first_s, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        _WORK.is_shown = False


def _write(command: str, stream: TextIO, wait_s: float, done: threading.Event) -> None:
    start = time.monotonic()
    while not done.wait(wait_s):
        passed_s = time.monotonic() - start
        what = _WORK.part + (f"{_WORK.text}, " if _WORK.text else "")
        stream.write(f"{command}: {what}{passed_s:.0f} s so far\n")
        stream.flush()
        wait_s = min(passed_s, _LONGEST_S)
