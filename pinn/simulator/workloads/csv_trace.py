"""Recorded requests: a simple CSV, or BLIS's TraceV2 (header YAML and CSV).

| column | meaning |
|---|---|
| arrival_s, arrival_ms or arrival_time_us | when it was sent; the earliest one counts as 0 |
| prompt_tokens, server_input_tokens or input_tokens | prompt length; the server's count wins |
| output_tokens | tokens generated |
| prefix_group, prefix_tokens (or prefix_length) | prompts of a group share their first tokens |
| prompt_id | equal ids are equal prompts |
| session_id, round_index | a later round repeats the prompt and output of the one before |
| timeout_s, or deadline_us on the clock of arrival | when the client hangs up; empty or 0: never |
| transferred_tokens | first prompt tokens whose keys and values come over the network |

Other columns are read over.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from pinn.common.documents import MOST_REQUEST_TOKENS, CsvTable
from pinn.errors import PinnError
from pinn.simulator.workloads import arrivals, workload
from pinn.units import MICROSECOND, MILLISECOND

_ARRIVAL = {"arrival_s": 1.0, "arrival_ms": MILLISECOND, "arrival_time_us": MICROSECOND}
_PROMPT = ("server_input_tokens", "prompt_tokens", "input_tokens")
_PREFIX = ("prefix_tokens", "prefix_length")
_LABELS = ("prefix_group", "prompt_id", "session_id")
_OTHERS = ("output_tokens", "timeout_s", "deadline_us", "transferred_tokens")
_READ = frozenset({*_ARRIVAL, *_PROMPT, *_PREFIX, *_LABELS, *_OTHERS})


def read_csv_trace(path: Path) -> workload.Workload:
    """The requests of a trace, sent when they were sent.

    Raises:
        PinnError: If the file cannot be read, lacks a column or holds a value that is no number.
    """
    columns = _Columns(path)
    clock = columns.first(_ARRIVAL, "the arrival time")
    moments = columns.numbers(clock)
    columns.refuse(moments < 0, lambda i: f"{clock} is {moments[i]:g}: it must be 0 or later")
    arrival = moments * _ARRIVAL[clock]
    order = np.argsort(arrival, kind="stable")
    columns.first(_PROMPT, "the prompt length")
    prompt = np.zeros(len(columns), np.int64)
    for name in reversed(_PROMPT):
        given = columns.whole(name, 0)
        prompt = np.where(given > 0, given, prompt)
    output = columns.whole("output_tokens")
    timeout = _timeouts(columns, arrival)
    arrival = arrival - arrival.min()
    return workload.Workload(
        path.stem,
        prompt[order],
        output[order],
        arrival[order],
        **_sharing(columns, order, prompt[order], output[order]),
        transferred_tokens=columns.whole("transferred_tokens", 0)[order],
        timeout_s=timeout[order],
    )


class _Columns:
    """A CSV file by columns; those that a trace may have."""

    def __init__(self, path: Path) -> None:
        self.path = path
        table = CsvTable(path)
        self.names = table.names
        places = [(name, i) for i, name in enumerate(self.names) if name in _READ]
        self._cells: dict[str, list[str]] = {name: [] for name, _ in places}
        self._lines: list[int] = []
        for line, cells in table.rows():
            arrivals.check_requests(len(self._lines), str(path))
            self._lines.append(line)
            for name, place in places:
                self._cells[name].append(cells[place])
        if not self._lines:
            raise PinnError(f"{path}: it has 0 requests; it needs a header line and at least one")

    def __len__(self) -> int:
        return len(self._lines)

    def refuse(self, bad: np.ndarray, reason: Callable[[int], str]) -> None:
        """Stop at the first row that a mask selects, with its line and the reason."""
        rows = np.flatnonzero(bad)
        if len(rows):
            raise PinnError(f"{self.path}, line {self._lines[rows[0]]}: {reason(int(rows[0]))}")

    def first(self, names: Iterable[str], meaning: str) -> str:
        """The first of some columns that the file has."""
        for name in names:
            if name in self.names:
                return name
        raise PinnError(
            f"{self.path}: {meaning} is missing: expected a column {' or '.join(names)}, got "
            f"{', '.join(self.names)}"
        )

    def numbers(self, name: str, default: float | None = None) -> np.ndarray:
        """A column of numbers; the default stands for a missing column or an empty cell."""
        if name not in self._cells and default is not None:
            return np.full(len(self), float(default))
        column = self._cells.get(name) or [""] * len(self)
        return np.array([self._number(i, text, name, default) for i, text in enumerate(column)])

    def whole(self, name: str, default: int | None = None) -> np.ndarray:
        """A column of whole numbers from 0 on."""
        found = self.numbers(name, default)
        self.refuse(
            (found != np.rint(found)) | (found < 0) | (found > MOST_REQUEST_TOKENS),
            lambda i: (
                f"{name} is {self._cells[name][i]!r:.60}, it must be a whole number from 0 to "
                f"{MOST_REQUEST_TOKENS:,}"
            ),
        )
        return found.astype(np.int64)

    def labels(self, name: str) -> np.ndarray:
        """A column of names as numbers; -1 for a missing column or an empty cell."""
        texts = self._cells.get(name, [""] * len(self))
        known = {text: i for i, text in enumerate(sorted(set(texts) - {""}))}
        return np.array([known.get(text, -1) for text in texts])

    def _number(self, i: int, text: str, name: str, default: float | None) -> float:
        if text == "":
            if default is None:
                raise PinnError(f"{self.path}, line {self._lines[i]}: {name} is missing")
            return default
        try:
            value = float(text)
        except ValueError:
            value = np.nan
        if not np.isfinite(value):
            raise PinnError(
                f"{self.path}, line {self._lines[i]}: {name} is {text!r:.60}, no finite number"
            )
        return value


def _timeouts(columns: _Columns, arrival: np.ndarray) -> np.ndarray:
    patience = columns.numbers("timeout_s", 0.0)
    columns.refuse(
        patience < 0,
        lambda i: f"timeout_s is {patience[i]:g}: leave it empty, or 0, for a client that waits",
    )
    deadline = columns.numbers("deadline_us", 0.0) * MICROSECOND
    patience = np.where(deadline > 0, deadline - arrival, patience)
    columns.refuse(
        (deadline > 0) & (patience <= 0),
        lambda _: "deadline_us lies before the arrival: it counts on the same clock",
    )
    return np.where(patience > 0, patience, np.inf)


def _sharing(
    columns: _Columns, order: np.ndarray, prompt: np.ndarray, output: np.ndarray
) -> dict[str, Any]:
    name = next((n for n in _PREFIX if n in columns.names), _PREFIX[0])
    prefix = columns.whole(name, 0)
    of_row = prompt[np.argsort(order)]
    columns.refuse(
        prefix > of_row,
        lambda i: f"{name} is {prefix[i]}, longer than the prompt of {of_row[i]} tokens",
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
