"""Reads TraceV2 of the BLIS simulator: a header (YAML) and one CSV row per request."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pinn.errors import PinnError
from pinn.specs.csv_text import check_columns
from pinn.specs.documents import read_yaml
from pinn.specs.files.read_report import ReadReport, file_sha256
from pinn.units import MICROSECOND

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
