"""CSV tables of strangers: bounded, no column twice, every row as wide as its header."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from pinn.errors import PinnError
from pinn.specs.documents import read_text
from pinn.specs.limits import MOST_COLUMNS, MOST_CSV_BYTES, check_size


def check_columns(path: Path) -> None:
    """Refuse a CSV file that names a column twice; one without a header has none.

    Raises:
        PinnError: With the column.
    """
    CsvTable(path)


class CsvTable:
    """A table, its header read.

    Attributes:
        names: The columns, in their order; empty of an empty file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        text = read_text(path, MOST_CSV_BYTES, "CSV")
        self._rows = csv.reader(io.StringIO(text, newline=""))
        self.names = tuple(name.strip() for name in next(self._lines(), ()))
        check_size(len(self.names), MOST_COLUMNS, f"{path}: columns", "leave out what is not read")
        twice = [name for name in self.names if name and self.names.count(name) > 1]
        if twice:
            raise PinnError(f"{path}: the column {twice[0]!r} occurs twice: leave one out")

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and cells of each row that is not blank.

        Raises:
            PinnError: If a row has more or fewer cells than the header, or is no CSV.
        """
        for cells in self._lines():
            if not cells:
                continue
            if len(cells) != len(self.names):
                raise PinnError(
                    f"{self._path}, line {self._rows.line_num}: {len(cells)} values under "
                    f"{len(self.names)} columns: correct the row"
                )
            yield self._rows.line_num, cells

    def _lines(self) -> Iterator[list[str]]:
        try:
            yield from self._rows
        except csv.Error as error:
            raise PinnError(
                f"{self._path}, line {self._rows.line_num}: malformed CSV ({error}): correct it"
            ) from error
