"""Lines that stock vLLM logs with ``--enable-logging-iteration-details``.

Such a line names an iteration, its context (prefill) and generation (decode) requests and tokens,
and its elapsed time: ``Iteration(12): 1 context requests, 512 context tokens, 32 generation
requests, 32 generation tokens, iteration elapsed time: 15.20 ms``. The elapsed time covers the
model's execution in one step, not the busy-loop cycle.
"""

import re
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa

from pinn.common.documents import MOST_LINE_BYTES
from pinn.common.files import ReadReport, file_sha256
from pinn.errors import PinnError
from pinn.server.readers.lines import check_file
from pinn.units import MILLISECOND

# No count has more digits than an integer column holds.
_MARK = re.compile(r"\bIteration\s*\(\s*(-?\d{1,15})\s*\)", re.IGNORECASE)
_COUNTS = {
    f"{phase}_{what}": re.compile(rf"\b(\d{{1,15}})\s+{word}\s+{what}?\b", re.IGNORECASE)
    for phase, word in (("prefill", "context"), ("decode", "generation"))
    for what in ("requests", "tokens")
}
ITERATION_SCHEMA = pa.schema(
    {
        **dict.fromkeys(("step_id", *_COUNTS), pa.int64()),
        **dict.fromkeys(("elapsed_s", "logged_s"), pa.float64()),
    }
)

#: Date and time before a line, without a year: ``INFO 02-18 15:03:04 [core.py:77]``.
_LOGGED = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_ELAPSED = re.compile(r"elapsed(?:\s+time)?\s*[:=]?\s*([\d.]+)\s*ms", re.IGNORECASE)


def read_iteration_log(path: Path) -> tuple[pa.Table, ReadReport]:
    """Read a log file; lines about other things are refused as such.

    Returns:
        One row per iteration: its number, requests and tokens, ``elapsed_s``, and ``logged_s``, the
        time before the line to the second, from an arbitrary day. And the counts.

    Raises:
        PinnError: If the file is missing or sparse, or no line is about an iteration.
    """
    check_file(path, "give the file that vLLM's log was written to")
    rows, refused, read = [], Counter[str](), 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in iter(partial(file.readline, MOST_LINE_BYTES), ""):
            read += 1
            mark = _MARK.search(line)
            if mark is None:
                refused["no iteration details"] += 1
                continue
            row = "idle step of a data-parallel rank" if "(dummy)" in line else _row(mark[1], line)
            if isinstance(row, str):
                refused[row] += 1
            else:
                rows.append(row)
    if not rows:
        raise PinnError(
            f"{path}: none of {read} lines has iteration details: start vLLM with "
            "--enable-logging-iteration-details"
        )
    report = ReadReport(path.name, "", file_sha256(path), read, len(rows), dict(refused))
    return pa.Table.from_pylist(rows, schema=ITERATION_SCHEMA), report


def _row(number: str, line: str) -> dict[str, float | None] | str:
    """The row, or the reason why there is none."""
    row: dict[str, float | None] = {"step_id": int(number), "logged_s": _logged_s(line)}
    for name, pattern in _COUNTS.items():
        found = pattern.search(line)
        if found is None:
            return f"iteration without {name.replace('_', ' ')}"
        row[name] = int(found[1])
    elapsed = _ELAPSED.search(line)
    try:
        row["elapsed_s"] = float(elapsed[1]) * MILLISECOND if elapsed else 0.0
    except ValueError:
        row["elapsed_s"] = 0.0
    return row if row["elapsed_s"] else "iteration without elapsed time"


def _logged_s(line: str) -> float | None:
    """Seconds from the beginning of the year (of 31-day months) to the line's time."""
    found = _LOGGED.search(line)
    if found is None:
        return None
    month, day, hour, minute, second = map(int, found.groups())
    return float((((month * 31 + day) * 24 + hour) * 60 + minute) * 60 + second)
