"""Readers of line-based files: JSON lines mixed with other lines, and tables of runs."""

import csv
import io
import re
from dataclasses import dataclass, field

from pinn.common import Json
from pinn.common.documents import MOST_COLUMNS, parse_json
from pinn.errors import PinnError


@dataclass(frozen=True)
class SkippedLine:
    """Line of a file that was skipped.

    Attributes:
        number: Number of the line, counted from 1.
        reason: Reason for skipping it, such as ``no JSON object``.
    """

    number: int
    reason: str


@dataclass
class Lines:
    """Parsed lines of a text.

    Attributes:
        values: Parsed values, one per readable line.
        numbers: Line number of each value, from 1.
        skipped: Lines that could not be parsed, except blank lines.
    """

    values: list[Json] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    skipped: list[SkippedLine] = field(default_factory=list)

    def keep(self, number: int, value: Json) -> None:
        """Record a line that was parsed, with its value."""
        self.values.append(value)
        self.numbers.append(number)

    def skip(self, number: int, reason: str) -> None:
        """Record a skipped line, with the reason for skipping it."""
        self.skipped.append(SkippedLine(number, reason))


def json_lines(text: str) -> Lines:
    """Return the JSON objects at the beginning of lines; Infinity is accepted as a number."""
    found = Lines()
    if not (text.startswith("{") or "\n{" in text):
        return found
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith("{"):
            if line.strip():
                found.skip(number, "no JSON object")
            continue
        try:
            found.keep(number, parse_json(line, "line"))
        except PinnError as error:
            is_malformed = isinstance(error.__cause__, ValueError)
            found.skip(number, "malformed JSON, perhaps cut off" if is_malformed else str(error))
    return found


#: Pattern of a CSV table's header: column names spelled like JSON keys. A text with a different
#: first line is not read as a table.
_HEADER = re.compile(r"[\w.\-]*(?:,[\w.\-]*){3,}\s*")
#: Maximum number of cells in a table of runs. A larger table is assumed to contain something else.
_MOST_CELLS = 1_000_000


def csv_rows(text: str) -> Lines:
    """Return the rows of a CSV table as mappings if its column names look like JSON keys."""
    found = Lines()
    header = text.split("\n", 1)[0]
    if not _HEADER.fullmatch(header) or text.count(",") > _MOST_CELLS:
        return found
    names = header.strip().split(",")
    if len(set(names)) < len(names) or len(names) > MOST_COLUMNS:
        return found
    rows = csv.reader(io.StringIO(text, newline=""))
    next(rows)
    try:
        for cells in rows:
            if cells and len(cells) != len(names):
                found.skip(rows.line_num, f"{len(cells)} values for {len(names)} columns")
            elif cells:
                pairs = zip(names, map(_cell, cells), strict=True)
                found.keep(rows.line_num, {n: cell for n, cell in pairs if cell is not None})
    except csv.Error as error:
        found.skip(rows.line_num, f"malformed CSV ({error})")
    return found


def _cell(text: str) -> Json:
    """Return a CSV cell's text as a JSON value; None for an empty cell."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None
