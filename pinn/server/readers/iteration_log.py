"""Lines of a log: vLLM's iterations, and traces of BLIS."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pinn.common.documents import MOST_LINE_BYTES, check_columns, read_yaml
from pinn.common.files import ReadReport, file_sha256
from pinn.errors import PinnError
from pinn.server.readers.lines import check_file
from pinn.units import MICROSECOND, MILLISECOND

# Reads the lines that stock vLLM logs with ``--enable-logging-iteration-details``.
#
# Such a line names an iteration, its context (prefill) and generation (decode) requests and
# tokens, and its elapsed time: ``Iteration(12): 1 context requests, 512 context tokens, 32
# generation requests, 32 generation tokens, iteration elapsed time: 15.20 ms``. The elapsed time
# covers the model's execution in one step, not the busy-loop cycle.

ITERATION_SCHEMA = pa.schema(
    {
        "step_id": pa.int64(),
        "prefill_requests": pa.int64(),
        "prefill_tokens": pa.int64(),
        "decode_requests": pa.int64(),
        "decode_tokens": pa.int64(),
        "elapsed_s": pa.float64(),
        "logged_s": pa.float64(),
    }
)

# No count has more digits than an integer column holds.
_MARK = re.compile(r"\bIteration\s*\(\s*(-?\d{1,15})\s*\)", re.IGNORECASE)
_COUNTS = {
    "prefill_requests": re.compile(r"\b(\d{1,15})\s+context\s+requests?\b", re.IGNORECASE),
    "prefill_tokens": re.compile(r"\b(\d{1,15})\s+context\s+tokens?\b", re.IGNORECASE),
    "decode_requests": re.compile(r"\b(\d{1,15})\s+generation\s+requests?\b", re.IGNORECASE),
    "decode_tokens": re.compile(r"\b(\d{1,15})\s+generation\s+tokens?\b", re.IGNORECASE),
}
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


# Reads TraceV2 of the BLIS simulator: a header (YAML) and one CSV row per request.

_REQUIRED = ("request_id", "input_tokens", "output_tokens", "arrival_time_us")
_TIMES = ("arrival", "send", "first_chunk", "last_chunk", "deadline")
_UNITS = {"us": MICROSECOND, "microseconds": MICROSECOND, "microsecond": MICROSECOND}


@dataclass(frozen=True)
class BlisTrace:
    """A trace and its header.

    Attributes:
        header: As read, with ``server`` (model, tensor_parallel and more).
        requests: One row per request: ``request_id``, ``input_tokens`` (the server's count where it
            gives one), ``output_tokens``, ``prefix_group``, ``prefix_length``, ``num_chunks``,
            ``status``, ``finish_reason``; in seconds ``arrival_s``, ``send_s``, ``first_chunk_s``,
            ``last_chunk_s``; and, null unless the request succeeded, ``ttft_s``, ``e2e_s`` and
            ``itl_s``, from its sending.
        report: Counts of rows.
    """

    header: dict[str, Any]
    requests: pd.DataFrame
    report: ReadReport


def read_blis_trace(header: Path, data: Path) -> BlisTrace:
    """Read a trace.

    Args:
        header: The YAML file.
        data: The CSV file; optional columns may be missing.

    Raises:
        PinnError: If a file is missing or malformed, or the header names another unit of time.
    """
    values = _header(header)
    if not data.is_file():
        raise PinnError(f"no TraceV2 data at {data}: give the CSV file beside the header")
    check_columns(data)
    try:
        raw = pd.read_csv(data, dtype="str", keep_default_na=False, encoding="utf-8-sig")
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise PinnError(f"{data} is no CSV table: {error}") from error
    missing = [c for c in _REQUIRED if c not in raw.columns]
    if missing:
        raise PinnError(f"{data} lacks the column(s) {', '.join(missing)}")
    rows, refused = _usable(raw)
    report = ReadReport(
        data.name, str(values["trace_version"]), file_sha256(data), len(raw), len(rows),
        dict(refused),
    )  # fmt: skip
    return BlisTrace(values, _canonical(rows), report)


def _header(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise PinnError(f"no TraceV2 header at {path}: give the YAML file beside the CSV")
    values = read_yaml(path)
    if not isinstance(values, dict) or "trace_version" not in values:
        raise PinnError(f"{path} is no TraceV2 header: it has no trace_version")
    unit = str(values.get("time_unit", "us")).lower()
    if unit not in _UNITS:
        raise PinnError(f"{path}: time_unit {unit!r} is unknown: use one of {', '.join(_UNITS)}")
    return values


def _usable(raw: pd.DataFrame) -> tuple[pd.DataFrame, Counter[str]]:
    numbers = {c: _number(raw, c) for c in ("input_tokens", "output_tokens", "arrival_time_us")}
    rules = {
        "no request_id": raw["request_id"].str.strip() == "",
        "input_tokens is no positive number": ~(numbers["input_tokens"] > 0),
        "output_tokens is no number": ~(numbers["output_tokens"] >= 0),
        "arrival_time_us is no number": ~(numbers["arrival_time_us"] >= 0),
        "request_id occurs twice": raw["request_id"].duplicated(),
    }
    refused: Counter[str] = Counter()
    keep = pd.Series(True, index=raw.index)
    for reason, bad in rules.items():
        if (keep & bad).any():
            refused[reason] = int((keep & bad).sum())
        keep &= ~bad
    return raw[keep].reset_index(drop=True), refused


def _canonical(raw: pd.DataFrame) -> pd.DataFrame:
    server_count = _number(raw, "server_input_tokens")
    rows = pd.DataFrame(
        {
            "request_id": raw["request_id"],
            "input_tokens": server_count.where(server_count > 0, _number(raw, "input_tokens")),
            "output_tokens": _number(raw, "output_tokens"),
            "prefix_group": _text(raw, "prefix_group"),
            "prefix_length": _number(raw, "prefix_length").fillna(0),
            "num_chunks": _number(raw, "num_chunks"),
            "status": _text(raw, "status"),
            "finish_reason": _text(raw, "finish_reason"),
        }
    ).astype({"input_tokens": "int64", "output_tokens": "int64", "prefix_length": "int64"})
    for name in _TIMES:
        time_us = _number(raw, "deadline_us" if name == "deadline" else f"{name}_time_us")
        # 0 stands for a moment that never came; only the first arrival may be at 0.
        known = time_us if name == "arrival" else time_us.where(time_us > 0)
        rows[f"{name}_s"] = known * MICROSECOND
    sent = rows["send_s"].fillna(rows["arrival_s"])
    whole = rows["status"].isin(["", "ok", "success", "completed"])
    rows["ttft_s"] = (rows["first_chunk_s"] - sent).where(whole)
    rows["e2e_s"] = (rows["last_chunk_s"] - sent).where(whole)
    further = (rows["output_tokens"] - 1).where(rows["output_tokens"] > 1)
    rows["itl_s"] = (rows["e2e_s"] - rows["ttft_s"]) / further
    for name in ("ttft_s", "e2e_s", "itl_s"):
        rows[name] = rows[name].where(rows[name] >= 0)
    return rows


def _number(raw: pd.DataFrame, column: str) -> pd.Series:
    if column not in raw.columns:
        return pd.Series(np.nan, index=raw.index)
    numbers = pd.to_numeric(raw[column], errors="coerce").astype("float64")
    return numbers.where(np.isfinite(numbers))


def _text(raw: pd.DataFrame, column: str) -> pd.Series:
    return raw[column] if column in raw.columns else pd.Series("", index=raw.index)
