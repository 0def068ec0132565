"""Segments: stretches of one server process on one clock, in which step numbers and time both grow.

A file may hold several servers, a server may be restarted (its step numbers begin anew) and its
host rebooted (its monotonic clock begins anew). Intervals between steps mean something only inside
one segment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

#: Monotonic clocks of one boot differ from the epoch by a constant; a larger step is another clock
#: (how much larger is an assumption).
CLOCK_STEP_S = 5.0

#: More falls of the step number than this, in number and as a share of the rows, are no restarts
#: (assumptions).
MAX_RESTARTS = 3
MAX_RESTART_SHARE = 0.01


@dataclass(frozen=True)
class Segments:
    """How rows fall into segments.

    Attributes:
        order: Rows by segment, then start time.
        segment: Segment of each row, in the order of the input.
        is_ambiguous: Whether two servers with equal resource attributes wrote the row's segment in
            turn, so that they cannot be told apart.
    """

    order: Int[np.ndarray, " rows"]
    segment: Int[np.ndarray, " rows"]
    is_ambiguous: Bool[np.ndarray, " rows"]


def find_segments(
    server: Int[np.ndarray, " rows"],
    step_id: Int[np.ndarray, " rows"],
    start_ns: Int[np.ndarray, " rows"],
    wall_ns: Int[np.ndarray, " rows"],
) -> Segments:
    """Tell apart servers, boots and processes.

    Args:
        server: The server by its resource attributes.
        step_id: Step number.
        start_ns: Its start on the server's monotonic clock.
        wall_ns: Epoch time beside it; 0 where unknown.
    """
    clock = clock_groups(server, start_ns, wall_ns)
    order = np.lexsort((step_id, start_ns, clock))
    segment = np.empty(len(order), dtype=np.int64)
    ambiguous = np.zeros(len(order), dtype=bool)
    next_segment = 0
    for rows in np.split(order, np.flatnonzero(np.diff(clock[order])) + 1):
        if len(rows):
            run, ambiguous[rows] = _runs(step_id[rows])
            segment[rows] = next_segment + run
            next_segment += int(run[-1]) + 1
    return Segments(np.lexsort((step_id, start_ns, segment)), segment, ambiguous)


def clock_groups(
    server: Int[np.ndarray, " rows"],
    start_ns: Int[np.ndarray, " rows"],
    wall_ns: Int[np.ndarray, " rows"],
) -> Int[np.ndarray, " rows"]:
    """Number the monotonic clocks: equal for rows of one server and one boot of its host.

    Inside one boot, epoch minus monotonic time is constant but for the drift of the epoch clock.
    """
    offset_s = np.where(wall_ns > 0, (wall_ns - start_ns) * 1e-9, -np.inf)
    order = np.lexsort((offset_s, server))
    with np.errstate(invalid="ignore"):
        jumps = np.diff(offset_s[order]) > CLOCK_STEP_S
    new = (np.diff(server[order]) != 0) | jumps
    groups = np.empty(len(order), dtype=np.int64)
    groups[order] = np.concatenate(([0], np.cumsum(new))) if len(order) else 0
    return groups


def _runs(step_id: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, " n"], bool]:
    """Cut rows in order of time where the step number does not grow.

    A restart makes one cut. Many cuts mean that two servers write the same name in turn.
    """
    falls = np.diff(step_id) <= 0
    is_mixed = falls.sum() > max(MAX_RESTARTS, MAX_RESTART_SHARE * len(step_id))
    if is_mixed:
        return np.zeros(len(step_id), dtype=np.int64), True
    return np.concatenate(([0], np.cumsum(falls))), False
