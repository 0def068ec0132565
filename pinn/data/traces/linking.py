"""Ties requests to the segments and steps around them, and draws from them what cycles need."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from pinn.data.traces.batches import SegmentJourneys, segment_journeys
from pinn.data.traces.cycles import JourneyEvidence
from pinn.data.traces.requests import STATE_COLUMNS
from pinn.data.traces.segments import CLOCK_STEP_S

#: Journeys are taken as those of all requests where they agree with this share of the summaries. An
#: assumption: a request that was not written spoils every step of its stay.
COMPLETE_SHARE = 0.9


def with_segments(requests: pa.Table, steps: pd.DataFrame) -> pa.Table:
    """Fill the segment of each request: that of its server and clock which it was queued in.

    Between two segments of one clock, the middle of the gap divides.

    Args:
        requests: Canonical requests.
        steps: Canonical steps, in order.
    """
    queued = _floats(requests, "queued_s")
    offset = _floats(requests, "wall_s") - queued
    server = requests["server"].to_numpy()
    segment = np.full(requests.num_rows, -1, dtype=np.int32)
    groups = steps.groupby("segment", sort=True)
    ends = groups.agg(server=("server", "first"), first=("start_s", "min"), last=("start_s", "max"))
    ends["offset"] = (steps["wall_s"] - steps["start_s"]).groupby(steps["segment"]).median()
    for owner, of_server in ends.groupby("server"):
        for number, here in of_server.iterrows():
            same_clock = (of_server["offset"] - here["offset"]).abs() <= CLOCK_STEP_S
            clock = of_server[same_clock] if np.isfinite(here["offset"]) else of_server
            before = clock.loc[clock["last"] < here["first"], "last"].max()
            after = clock.loc[clock["first"] > here["last"], "first"].min()
            low = -np.inf if np.isnan(before) else (before + here["first"]) / 2
            high = np.inf if np.isnan(after) else (after + here["last"]) / 2
            far = np.abs(offset - here["offset"]) > CLOCK_STEP_S  # False where one is unknown
            inside = (server == owner) & (queued >= low) & (queued < high) & ~far
            segment[inside & (segment < 0)] = number
    column = pa.array(segment, mask=segment < 0)
    return requests.set_column(requests.schema.get_field_index("segment"), "segment", column)


def with_states(requests: pa.Table, steps: pd.DataFrame, cycles: pd.DataFrame) -> pa.Table:
    """Add the state of the engine that each request met when it was queued.

    Args:
        requests: Canonical requests with segments.
        steps: Canonical steps.
        cycles: Their intervals, row by row.
    """
    segment = _floats(requests, "segment")
    queued = _floats(requests, "queued_s")
    values = {name: np.full(requests.num_rows, np.nan) for name in STATE_COLUMNS}
    good = cycles["step_s"].where(cycles["set_aside"].isna())
    step_s = good.groupby(steps["segment"]).ffill().to_numpy()
    all_steps = steps["segment"].to_numpy()
    start = steps["start_s"].to_numpy()
    for number in np.unique(segment[np.isfinite(segment)]):
        low, high = np.searchsorted(all_steps, (number, number + 1))
        mine = np.flatnonzero((segment == number) & np.isfinite(queued))
        at = low + np.searchsorted(start[low:high], queued[mine], side="right") - 1
        mine, at = mine[at >= low], at[at >= low]
        for name in ("waiting_depth", "running_depth", "kv_usage"):
            values[f"state_{name}"][mine] = steps[name].to_numpy(float)[at]
        values["state_step_s"][mine] = step_s[at]
        values["state_age_s"][mine] = queued[mine] - start[at]
    for name, column in values.items():
        requests = requests.append_column(name, pa.array(column, mask=np.isnan(column)))
    return requests


def journeys_by_segment(
    requests: pa.Table, steps: pd.DataFrame, token_budget: int | None
) -> dict[int, SegmentJourneys]:
    """Journeys of the segments in which they are complete.

    Args:
        requests: Canonical requests with segments.
        steps: Canonical steps.
        token_budget: ``max_num_batched_tokens`` of the server.
    """
    found = {}
    by_segment = _by_segment(requests)
    for number, of_segment in steps.groupby("segment"):
        mine = by_segment.get(int(str(number)), requests.slice(0, 0))
        journeys = segment_journeys(of_segment, mine, token_budget)
        if journeys is not None and journeys.agrees.mean() >= COMPLETE_SHARE:
            found[int(str(number))] = journeys
    return found


def journey_evidence(
    requests: pa.Table, steps: pd.DataFrame, journeys: dict[int, SegmentJourneys]
) -> JourneyEvidence:
    """What the journeys tell of each step and of the time until the next.

    Args:
        requests: Canonical requests with segments.
        steps: Canonical steps.
        journeys: Of the segments in which they are complete.
    """
    evidence = JourneyEvidence.none(len(steps))
    all_steps, by_segment = steps["segment"].to_numpy(), _by_segment(requests)
    for number, of_segment in journeys.items():
        rows = slice(*np.searchsorted(all_steps, (number, number + 1)))
        mine = by_segment[number]
        step = steps["step_id"].to_numpy()[rows]
        following = np.append(step[1:], step[-1] + 1)
        evidence.agrees[rows] = of_segment.agrees
        evidence.is_certain[rows] = of_segment.batches.is_certain(step, following)
        lists = mine["preempted_steps"].combine_chunks()
        preempted = np.sort(lists.flatten().to_numpy())
        evidence.preempts_until[rows] = np.searchsorted(preempted, step) < np.searchsorted(
            preempted, following
        )
        evidence.idle_until[rows] = _idle_until(mine, steps["start_s"].to_numpy()[rows])
    return evidence


def _by_segment(requests: pa.Table) -> dict[int, pa.Table]:
    """The requests of each segment; those without one are left out."""
    segment = np.nan_to_num(_floats(requests, "segment"), nan=-1).astype(np.int64)
    order = np.argsort(segment, kind="stable")
    ordered = requests.take(pa.array(order)).combine_chunks()
    numbers, begins = np.unique(segment[order], return_index=True)
    ends = np.append(begins[1:], len(order))
    return {
        int(number): ordered.slice(begin, end - begin)
        for number, begin, end in zip(numbers, begins, ends, strict=True)
        if number >= 0
    }


def _idle_until(requests: pa.Table, start: np.ndarray) -> np.ndarray:
    """Whether no request was in the engine for some of the time from each start to the next."""
    begin, end = _floats(requests, "queued_s"), _floats(requests, "finished_s")
    known = np.isfinite(begin) & np.isfinite(end)
    order = np.argsort(begin[known])
    begin, end = begin[known][order], np.maximum.accumulate(end[known][order])
    gaps = np.flatnonzero(begin[1:] > end[:-1])
    gap_begin, gap_end = end[gaps], begin[gaps + 1]
    following = np.append(start[1:], start[-1:])
    # A gap overlaps if it begins before the next start and ends after this one.
    return np.searchsorted(gap_begin, following) > np.searchsorted(gap_end, start, side="right")


def _floats(table: pa.Table, name: str) -> np.ndarray:
    return table[name].cast(pa.float64()).to_numpy(zero_copy_only=False)
