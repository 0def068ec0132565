"""Recorded loads as CSV: a simple format, BLIS's TraceV2, Azure's or BurstGPT's, or similar.

| column | meaning |
|---|---|
| arrival_s, arrival_ms or arrival_time_us | time of sending; the earliest arrival counts as 0 |
| prompt_tokens, server_input_tokens or input_tokens | prompt length; the server's count wins |
| output_tokens | number of generated tokens |
| prefix_group, prefix_tokens (or prefix_length) | prompts of a group share their first tokens |
| prompt_id | equal ids are equal prompts |
| session_id, round_index | a later round repeats the prompt and output of the previous round |
| think_time_s | seconds from the previous response to this round; replaces its arrival |
| timeout_s, or deadline_us (a time like arrival) | when the client disconnects; empty or 0: never |
| transferred_tokens | first prompt tokens whose keys and values come over the network |

If a file has other names for arrival, prompt or output, the columns in :data:`OTHER_NAMES` are
accepted. Azure's traces of 2023 and 2024 (github.com/Azure/AzurePublicDataset) have the columns
``TIMESTAMP,ContextTokens,GeneratedTokens``. BurstGPT's traces (github.com/HPMLL/BurstGPT) have
``Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type``;
their times are seconds, and failed requests have a response of 0 tokens. If a file has other column
names, rows that are not requests are rejected and counted. In all other files they are errors.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from pinn.common import documents
from pinn.common.documents import MOST_REQUEST_TOKENS, MOST_REQUESTS
from pinn.errors import PinnError
from pinn.simulator.workloads import arrivals, workload
from pinn.simulator.workloads.workload import Reading, Workload
from pinn.units import MICROSECOND, MILLISECOND, NANOSECOND

_ARRIVAL = {"arrival_s": 1.0, "arrival_ms": MILLISECOND, "arrival_time_us": MICROSECOND}
_PROMPT = ("server_input_tokens", "prompt_tokens", "input_tokens")
_PREFIX = ("prefix_tokens", "prefix_length")
_LABELS = ("prefix_group", "prompt_id", "session_id")
_OUTPUT = "output_tokens"
_OTHERS = (_OUTPUT, "think_time_s", "timeout_s", "deadline_us", "transferred_tokens")
_READ = frozenset({*_ARRIVAL, *_PROMPT, *_PREFIX, *_LABELS, *_OTHERS})

#: Alternative names of columns, in lower case with underscores, by meaning of the column.
OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "the arrival time": (
        "timestamp", "arrival", "arrival_time", "arrived_at", "arrival_timestamp", "request_time",
        "request_timestamp", "start_time", "sent_at", "time",
    ),
    "the prompt length": (
        "context_tokens", "request_tokens", "input_length", "input_len", "prompt_length",
        "prompt_len", "num_prompt_tokens", "num_input_tokens", "num_prefill_tokens",
        "prefill_tokens",
    ),
    "the output length": (
        "generated_tokens", "response_tokens", "completion_tokens", "output_length", "output_len",
        "num_output_tokens", "num_generated_tokens", "num_decode_tokens", "decode_tokens",
        "generation_tokens",
    ),
}  # fmt: skip
_ROLES: Mapping[str, tuple[str, ...]] = {
    "the arrival time": (*_ARRIVAL,),
    "the prompt length": _PROMPT,
    "the output length": (_OUTPUT,),
}
_ENDINGS = {
    "s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": MILLISECOND, "us": MICROSECOND, "ns": NANOSECOND
}  # fmt: skip
#: Columns that identify a file as BurstGPT's, whose times are in seconds although it states no
#: unit.
_BURSTGPT = {"request_tokens", "response_tokens"}
_MOMENT = re.compile(
    r"^(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:\.\d{1,9})?)\d*\s*(?:Z|UTC|([+-])(\d\d):?(\d\d))?$"
)


def read_csv_trace(path: Path, most: int | None = None) -> Workload:
    """Read the requests of a trace and the times at which they were sent.

    Args:
        path: CSV file of the trace.
        most: Maximum number of requests to read; None for all.

    Raises:
        PinnError: If the file cannot be read, lacks a column or has a value that is not a number.
    """
    columns = _Columns(path, most)
    reading = columns.adopt()
    follows_file = columns.numbers("think_time_s", math.nan)
    clock = columns.first(_ARRIVAL, "the arrival time")
    later = columns.follows(~np.isnan(follows_file))
    moments = columns.numbers(clock, None if (later < 0).all() else math.nan)
    columns.refuse(moments < 0, lambda i: f"{clock} must be 0 or more, got {moments[i]:g}")
    arrival = _arrivals(columns, moments * _ARRIVAL[clock], later, clock)
    order = np.argsort(arrival, kind="stable")
    columns.first(_PROMPT, "the prompt length")
    prompt = np.zeros(len(columns), np.int64)
    for name in reversed(_PROMPT):
        given = columns.whole(name, 0)
        prompt = np.where(given > 0, given, prompt)
    columns.first([_OUTPUT], "the output length")
    output = columns.whole(_OUTPUT)
    timeout = _timeouts(columns, arrival)
    offset = np.where(later >= 0, follows_file, arrival - arrival.min())
    place = np.argsort(order)
    return Workload(
        path.stem,
        prompt[order],
        output[order],
        offset[order],
        **_sharing(columns, order, prompt[order], output[order]),
        follows=np.where(later >= 0, place[np.maximum(later, 0)], -1)[order],
        transferred_tokens=columns.whole("transferred_tokens", 0)[order],
        timeout_s=timeout[order],
        reading=reading,
    )


def _arrivals(
    columns: "_Columns", arrival: np.ndarray, later: np.ndarray, clock: str
) -> Float[np.ndarray, " n"]:
    """Return each request's sending time in seconds, which determines their order.

    A round that waits for the previous response gets the sending time of the previous round.
    """
    missing = f"{clock} is missing, expected the arrival time of a request"
    columns.refuse(np.isnan(arrival) & (later < 0), lambda _: missing)
    for i in np.flatnonzero(later >= 0).tolist():
        arrival[i] = arrival[later[i]]
    return arrival


class _Columns:
    """Columns of a CSV file that a trace may have."""

    def __init__(self, path: Path, most: int | None) -> None:
        table = documents.CsvTable(path)
        self.path, self.names = path, _own_names(path, table.names)
        known = {name for names in OTHER_NAMES.values() for name in names}
        places = [
            (name, i)
            for i, name in enumerate(self.names)
            if name in _READ or known & {_plain(name), _unit(name)[0]}
        ]
        self._cells: dict[str, list[str]] = {name: [] for name, _ in places}
        self._lines: list[int] = []
        for line, cells in table.rows():
            if most is not None and len(self._lines) == MOST_REQUESTS:
                break
            arrivals.check_requests(len(self._lines), str(path))
            self._lines.append(line)
            for name, place in places:
                self._cells[name].append(cells[place])
        if not self._lines:
            raise PinnError(
                f"{path} has no requests, expected a header line and a line for each request"
            )

    def __len__(self) -> int:
        return len(self._lines)

    def adopt(self) -> Reading | None:
        """Rename the columns of other formats, drop rows that are not requests, and count rows.

        Return None if the file already has the column names of the simple format.
        """
        taken = {own[0]: self._other(role, own) for role, own in _ROLES.items()}
        foreign = {own: name for own, name in taken.items() if name is not None}
        if not foreign:
            return None
        for own, name in foreign.items():
            self._cells[own] = self._seconds(name) if own in _ARRIVAL else self._cells[name]
        return self._drop(foreign)

    def _other(self, role: str, own: Sequence[str]) -> str | None:
        """Return the name of the file's column for a role, such as the arrival time.

        Return None if the file uses a name of the simple format (``own``), or has no such column.
        """
        if any(name in self.names for name in own):
            return None
        names = [n for n in self.names if {_plain(n), _unit(n)[0]} & set(OTHER_NAMES[role])]
        if len(names) > 1:
            fault = f"{' and '.join(names)} could each be the column of {role}"
            raise PinnError(f"{self.path}: {fault}: rename the column to be used to {own[0]}")
        return names[0] if names else None

    def _seconds(self, name: str) -> list[str]:
        """Return a column of times in seconds; the unit is in the column's name or its cells."""
        cells = self._cells[name]
        unit = _unit(name)[1]
        first = next(filter(None, cells), "")
        if unit is None and _MOMENT.match(first):
            return [_moment_s(cell) for cell in cells]
        if unit is None and {_plain(each) for each in self.names} >= _BURSTGPT:
            unit = 1.0
        if unit is None:
            raise PinnError(
                f"{self.path}: {name} is {first!r:.40}, whose unit is unknown: "
                "rename the column to arrival_s, arrival_ms or arrival_time_us"
            )
        return [_scaled(cell, unit) for cell in cells]

    def _drop(self, foreign: Mapping[str, str]) -> Reading:
        """Drop rows whose renamed columns describe no request; count them by reason."""
        rows, kept = len(self), np.full(len(self), True)
        refused: Counter[str] = Counter()
        for own, name in foreign.items():
            values = np.array([_number(cell) for cell in self._cells[own]])
            if own in _ARRIVAL:
                pauses = self._cells.get("think_time_s", [""] * rows)
                cells = zip(self._cells[name], pauses, strict=True)
                waits = np.array([cell == "" != pause for cell, pause in cells])
                bad = kept & ~((values >= 0) | waits)
            else:
                bad = kept & ~((values >= 1) & (values == np.rint(values)))
            if bad.any():
                refused[f"without {name}"] += int(bad.sum())
            kept &= ~bad
        reading = Reading(rows, dict(refused))
        if not kept.any():
            raise PinnError(f"{self.path} has no usable request: {reading}")
        places = np.flatnonzero(kept).tolist()
        self._lines = [self._lines[i] for i in places]
        self._cells = {name: [cells[i] for i in places] for name, cells in self._cells.items()}
        return reading

    def refuse(self, bad: np.ndarray, reason: Callable[[int], str]) -> None:
        """Raise an error that names the line of the first row in a mask, and the reason."""
        rows = np.flatnonzero(bad)
        if len(rows):
            raise PinnError(f"{self.path}, line {self._lines[rows[0]]}: {reason(int(rows[0]))}")

    def first(self, names: Iterable[str], meaning: str) -> str:
        """Return the first of several column names that the file has."""
        for name in names:
            if name in self._cells:
                return name
        expected = f"expected a column {' or '.join(names)}, got {', '.join(self.names)}"
        raise PinnError(f"{self.path} lacks the column of {meaning}: {expected}")

    def numbers(self, name: str, default: float | None = None) -> np.ndarray:
        """Return a column of numbers, with a default for a missing column or an empty cell."""
        column = self._cells.get(name, [""] * len(self))
        return np.array([self._number(i, text, name, default) for i, text in enumerate(column)])

    def whole(self, name: str, default: int | None = None) -> np.ndarray:
        """Return a column of whole numbers of at least 0, such as tokens; others are errors."""
        found = self.numbers(name, default)
        bad = (found != np.rint(found)) | (found < 0) | (found > MOST_REQUEST_TOKENS)
        rule = f"{name} must be a whole number from 0 to {MOST_REQUEST_TOKENS:,}"
        self.refuse(bad, lambda i: f"{rule}, got {self._cells[name][i]!r:.60}")
        return found.astype(np.int64)

    def labels(self, name: str) -> np.ndarray:
        """Return a column of labels as whole numbers; -1 for a missing column or an empty cell."""
        texts = self._cells.get(name, [""] * len(self))
        known = {text: i for i, text in enumerate(sorted(set(texts) - {""}))}
        return np.array([known.get(text, -1) for text in texts])

    def follows(self, waits: Bool[np.ndarray, " n"]) -> np.ndarray:
        """Return, for each row, the earlier row of its session that it waits for; -1 for none."""
        latest: dict[int, int] = {}
        found = np.full(len(self), -1)
        for i, session in enumerate(self.labels("session_id").tolist()):
            if waits[i]:
                found[i] = latest.get(session, -1) if session >= 0 else -1
            latest[session] = i
        remedy = "leave think_time_s empty in the first turn, and give session_id"
        self.refuse(waits & (found < 0), lambda _: f"think_time_s needs an earlier turn: {remedy}")
        return found

    def _number(self, i: int, text: str, name: str, default: float | None) -> float:
        if text == "" and default is not None:
            return float(default)
        if math.isfinite(value := _number(text)):
            return value
        where = f"{self.path}, line {self._lines[i]}"
        if not text:
            raise PinnError(f"{where}: {name} is missing, expected a number")
        raise PinnError(f"{where}: {name} must be a finite number, got {text!r:.60}")


def _plain(name: str) -> str:
    """Convert a name to lower case with underscores: ``context_tokens`` for ``ContextTokens``."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", parted.lower()).strip("_")


def _own_names(path: Path, names: Sequence[str]) -> list[str]:
    """Convert column names to pinn's spelling: ``prompt_tokens`` for ``Prompt Tokens``."""
    found = [
        plain if (plain := _plain(name)) in _READ and plain not in names else name for name in names
    ]
    for name in _READ:
        if found.count(name) > 1:
            raise PinnError(f"{path} has two columns named {name}: rename one of the two")
    return found


def _unit(name: str) -> tuple[str, float | None]:
    """Split a column's name into the name without unit, and the unit in seconds or None."""
    plain, _, ending = _plain(name).rpartition("_")
    return (plain, _ENDINGS[ending]) if ending in _ENDINGS else (_plain(name), None)


def _number(text: str) -> float:
    """Return the number that a text contains, or NaN if it is not a finite number."""
    with suppress(ValueError):
        value = float(text)
        return value if math.isfinite(value) else math.nan
    return math.nan


def _scaled(cell: str, unit: float) -> str:
    value = _number(cell) * unit
    return "" if math.isnan(value) else repr(value)


def _moment_s(cell: str) -> str:
    """Return the Unix time in seconds of a date with time, as a string; else an empty string."""
    found = _MOMENT.match(cell)
    if found is None:
        return ""
    day, clock, sign, hours, minutes = found.groups()
    with suppress(ValueError):
        moment = np.datetime64(f"{day}T{clock}", "ns").astype(np.int64) / 1e9
        ahead = (int(hours or 0) * 60 + int(minutes or 0)) * 60
        return repr(float(moment) - (-ahead if sign == "-" else ahead))
    return ""


def _timeouts(columns: _Columns, arrival: np.ndarray) -> np.ndarray:
    patience = columns.numbers("timeout_s", 0.0)
    remedy = "for a client that never times out, give 0 or leave the cell empty"
    columns.refuse(
        patience < 0, lambda i: f"timeout_s must be 0 or more, got {patience[i]:g}: {remedy}"
    )
    deadline = columns.numbers("deadline_us", 0.0) * MICROSECOND
    patience = np.where(deadline > 0, deadline - arrival, patience)
    fault = "deadline_us is before the arrival: give both times on the same clock"
    columns.refuse((deadline > 0) & (patience <= 0), lambda _: fault)
    return np.where(patience > 0, patience, np.inf)


def _sharing(
    columns: _Columns, order: np.ndarray, prompt: np.ndarray, output: np.ndarray
) -> dict[str, Any]:
    name = next((n for n in _PREFIX if n in columns.names), _PREFIX[0])
    prefix = columns.whole(name, 0)
    of_row = prompt[np.argsort(order)]
    columns.refuse(
        prefix > of_row,
        lambda i: f"{name} must be at most the prompt's {of_row[i]} tokens, got {prefix[i]}",
    )
    group, same = (columns.labels(label)[order] for label in ("prefix_group", "prompt_id"))
    found = workload.share_prompts(group, prefix[order], same, prompt)
    latest: dict[int, int] = {}
    for i, session in enumerate(columns.labels("session_id")[order].tolist()):
        before = latest.get(session, -1) if session >= 0 else -1
        if before >= 0 and prompt[i] > prompt[before] + output[before]:
            found["shares_with"][i] = before
            found["shared_tokens"][i] = prompt[before] + output[before]
        latest[session] = i
    return found
