"""Filtering of rows that readers accept, and CSV files that are safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pinn.common import Json
from pinn.common.documents import MOST_CSV_BYTES, read_text
from pinn.common.files import ReadReport, replace_atomically
from pinn.errors import PinnError

if TYPE_CHECKING:
    import pandas as pd

_T = TypeVar("_T")


# Rows of a table that a reader accepts.


class KeptRows:
    """Mask of rows that a reader accepts, and counts of refused rows by first applicable reason.

    Attributes:
        mask: Whether each row is kept, ``[rows]``.
        refused: Number of refused rows, by reason.
    """

    def __init__(self, rows: int) -> None:
        self.mask = np.ones(rows, dtype=bool)
        self.refused: dict[str, int] = {}

    def refuse(self, reason: str, bad: object) -> None:
        """Drop the rows that the mask ``bad`` selects, and count them under a reason."""
        refused = self.mask & np.asarray(bad, dtype=bool)
        if refused.any():
            self.refused[reason] = int(refused.sum())
            self.mask &= ~refused

    def refuse_repeated(self, **key: npt.ArrayLike) -> None:
        """Drop every row that has the same key as an earlier accepted row.

        The reason under which these rows are counted is "written twice".
        """
        import pandas as pd

        repeated = np.zeros(len(self.mask), dtype=bool)
        repeated[self.mask] = pd.DataFrame(key)[self.mask].duplicated()
        self.refuse("written twice", repeated)

    def report(self, source: str, version: str = "", sha256: str = "") -> ReadReport:
        """Return a report of the numbers of rows read, accepted, and refused for each reason."""
        kept = int(self.mask.sum())
        return ReadReport(source, version, sha256, len(self.mask), kept, self.refused)


# CSV files are written completely or not at all, without text cells that look like a formula.

#: First characters of a text cell that make it a formula in a spreadsheet.
_FORMULA = re.compile(r"[=+\-@\t\r]")


def escaped(cell: _T) -> _T | str:
    """Prefix a cell's text with an apostrophe if a spreadsheet would read it as a formula.

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


def escaped_table(table: pa.Table) -> pa.Table:
    """Return a table whose text cells and column names are escaped by :func:`escaped`."""
    names = [escaped(name) for name in table.column_names]
    for i, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            cells = table.column(i).to_pylist()
            safe = {cell: escaped(cell) for cell in set(cells)}
            table = table.set_column(i, field, pa.array([safe[cell] for cell in cells], field.type))
    return table.rename_columns(names)


def read_frame(path: Path, remedy: str, **read: Any) -> pd.DataFrame:
    """Read a user's CSV file as a DataFrame.

    Args:
        path: CSV file.
        remedy: What the user should do, for the error if the file is not a table.
        read: Further keyword arguments of ``read_csv``, such as ``dtype``.

    Raises:
        PinnError: If the file cannot be read, is larger than ``MOST_CSV_BYTES`` or not a table.
    """
    import pandas as pd

    if not path.is_file():
        raise PinnError(f"{path} does not exist: {remedy}")
    text = read_text(path, MOST_CSV_BYTES, "CSV")
    try:
        return pd.read_csv(io.StringIO(text), **read)
    except (ValueError, OverflowError) as error:  # pandas raises ValueError for malformed CSV
        raise PinnError(f"{path} is not a CSV table ({error}): {remedy}") from error


def write_frame(rows: pd.DataFrame, path: Path, **written: Any) -> None:
    """Write a DataFrame as CSV with escaped text, atomically.

    Args:
        rows: DataFrame to write, without its index.
        path: CSV file to write.
        written: Further keyword arguments of ``DataFrame.to_csv``, such as ``float_format``.
    """
    texts = rows.select_dtypes(exclude="number").columns
    safe = rows.assign(**{name: rows[name].map(escaped) for name in texts}).rename(columns=escaped)
    replace_atomically(path, lambda target: safe.to_csv(target, index=False, **written))


def write_rows(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    """Write mappings as CSV with escaped text, atomically.

    Args:
        rows: Rows as mappings of column name to value; the first row sets the columns and their
            order.
        path: CSV file to write.

    Raises:
        ValueError: If a row has a column that the first row lacks.
    """

    def write(target: Path) -> None:
        with target.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            table.writeheader()
            table.writerows({name: escaped(cell) for name, cell in row.items()} for row in rows)

    replace_atomically(path, write)


def write_arrow(table: pa.Table, path: Path, as_json: Callable[[pa.Table], bytes]) -> None:
    """Write a table as CSV, JSON or Parquet, atomically.

    Args:
        table: Table to write; text is escaped in CSV.
        path: File to write; its suffix selects the format.
        as_json: Function that returns a table as a JSON document in bytes.

    Raises:
        PinnError: If the suffix belongs to none of these formats.
    """
    from pyarrow import csv, parquet

    writers: dict[str, Callable[[Path], object]] = {
        ".json": lambda target: target.write_bytes(as_json(table)),
        ".csv": lambda target: csv.write_csv(escaped_table(table), target),
        ".parquet": lambda target: parquet.write_table(table, target),
    }
    if (suffix := path.suffix.lower()) not in writers:
        known = ", ".join(writers)
        raise PinnError(
            f"unknown table format {suffix!r}: give a file name that ends in one of {known}"
        )
    replace_atomically(path, writers[suffix])


def records(table: pd.DataFrame) -> list[dict[str, Json]]:
    """Return the rows of a table as JSON objects, with null for missing values."""
    found: list[dict[str, Json]] = json.loads(table.to_json(orient="records"))
    return found
