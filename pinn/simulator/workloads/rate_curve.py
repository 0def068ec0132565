"""Curve of request rates over time in a CSV file, such as one day of a service's metrics."""

import math
from itertools import pairwise
from pathlib import Path

from pinn.common.documents import CsvTable
from pinn.errors import PinnError

#: Length in seconds of each time column's unit, by column.
_TIMES = {"time_s": 1.0, "time_min": 60.0, "time_h": 3600.0}
_RATE = "rate"


def read_rate_curve(path: Path) -> list[tuple[float, float]]:
    """Return the stages of a curve as (requests per second, seconds).

    Each rate applies until the time of the next row. The last rate applies as long as the rate
    before it.

    Raises:
        PinnError: If a column is missing, a value is not a number, there are fewer than two rows,
            or times do not increase.
    """
    if not path.is_file():
        raise PinnError(
            f"the curve of rates {path} does not exist: give a CSV file with the columns time_s "
            "and rate"
        )
    table = CsvTable(path)
    times = [name for name in _TIMES if name in table.names]
    if len(times) != 1 or _RATE not in table.names:
        wanted = f"rate (requests/s) and one of {', '.join(_TIMES)}"
        names = ", ".join(table.names)
        raise PinnError(f"{path} must have the columns {wanted}, got {names}")
    places = table.names.index(times[0]), table.names.index(_RATE)
    rows = [tuple(_number(path, line, cells[i]) for i in places) for line, cells in table.rows()]
    if len(rows) < 2:
        raise PinnError(f"{path} has {len(rows)} rows, expected at least two for a curve of rates")
    unit_s = _TIMES[times[0]]
    durations_s = [(later[0] - row[0]) * unit_s for row, later in pairwise(rows)]
    for i, duration_s in enumerate(durations_s):
        if duration_s <= 0:
            got = f"{rows[i + 1][0]:g} after {rows[i][0]:g}"
            raise PinnError(f"{path}: {times[0]} must rise from row to row, got {got}")
    durations_s.append(durations_s[-1])
    return [(row[1], duration_s) for row, duration_s in zip(rows, durations_s, strict=True)]


def _number(path: Path, line: int, cell: str) -> float:
    """Return the finite number that a cell of the CSV file contains."""
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise PinnError(f"{path}, line {line}: the cell must be a number, got {cell!r:.60}")
    return value
