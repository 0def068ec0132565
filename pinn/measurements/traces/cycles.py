"""Scheduler cycles: times from one step's start to the next, to which beta is fitted.

Beta are the coefficients of a step's time. A segment is a part of a trace in which one server
process numbers its steps. Between two sampled steps i < j of a segment, the engine's busy loop has
j - i cycles. Their mean time is (start_j - start_i) / (j - i), where start_i and start_j are the
steps' start times. The interval is a *single* cycle if j = i + 1, else a *window*. Each step begins
at most one interval. An interval is set aside (not used) if its time may not be that of busy steps,
for the first reason that applies (journeys are the event records of requests):

==============================  ================================================================
reason                          rule
==============================  ================================================================
last of its segment             the process has no later step
two servers in one              servers with equal resource attributes wrote alternately (segments)
clock does not advance          the later step does not start later
window too long                 more than ``max_steps`` steps, too many to infer the middle
idle server                     no request is scheduled at an end; or all running requests ended at
                                the start and none waited; or, by journeys, the engine was empty
                                for a part of the interval
few requests                    a window without journeys with fewer than ``min_requests`` at an
                                end: the server may have been idle inside
warm-up                         begins in the first ``warm_up_steps`` steps of a segment or after an
                                idle server
preemption                      a request was preempted at an end or, by journeys, inside
stalled                         ``stall_factor`` times the median cycle without prompt tokens at its
                                ends: something other than steps took the time
==============================  ================================================================
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
from jaxtyping import Bool, Float

from pinn.measurements.traces.batches import JourneyBatches, segment_journeys
from pinn.measurements.traces.requests import STATE_COLUMNS
from pinn.measurements.traces.steps import CLOCK_STEP_S

KINDS = SINGLE, WINDOW = "single", "window"

#: Knowledge of the batches in an interval between sampled steps. ``known``: all requests of every
#: step are known. ``summary``: its only step has a summary. ``ends``: its two ends have summaries,
#: whose mean estimates its steps. If steps are scheduled ahead, the interval's time is that of the
#: steps one earlier (see ``is_ahead``).
BATCHES = KNOWN, SUMMARY, ENDS = "known", "summary", "ends"

REASONS = (
    "last of its segment", "two servers in one", "clock does not advance", "window too long",
    "idle server", "few requests", "warm-up", "preemption", "stalled",
)  # fmt: skip

#: Thresholds for excluding intervals, assumed with a wide margin.
RULES = {"max_steps": 64, "min_requests": 2, "warm_up_steps": 20, "stall_factor": 10.0}


@dataclass(frozen=True)
class JourneyEvidence:
    """Facts from requests' event records about each sampled step and the time until the next one.

    Attributes:
        agrees: Whether the step's batch by event records agrees with the step's summary.
        is_certain: Whether the requests of every step before the next sampled one are known.
        idle_until: Whether the engine was idle at some time before the next sampled step.
        preempts_until: Whether a request was preempted before the next sampled step.
    """

    agrees: Bool[np.ndarray, " steps"]
    is_certain: Bool[np.ndarray, " steps"]
    idle_until: Bool[np.ndarray, " steps"]
    preempts_until: Bool[np.ndarray, " steps"]

    @staticmethod
    def none(count: int) -> "JourneyEvidence":
        """Return the facts about ``count`` sampled steps of a trace without records of requests."""
        return JourneyEvidence(*(np.zeros(count, dtype=bool) for _ in range(4)))


def cycle_table(steps: pd.DataFrame, journeys: JourneyEvidence | None = None) -> pd.DataFrame:
    """Return the intervals between sampled steps: one row per step, which begins an interval.

    Args:
        steps: Table of sampled steps, in order.
        journeys: Facts from the event records of requests; None if the trace has none.

    Returns:
        Columns ``segment``, ``step_id``, ``end_step_id``, ``start_s``, ``steps`` (their number),
        ``step_s`` (mean seconds per step), ``kind`` (single or window), ``batches`` (known, summary
        or ends) and ``set_aside`` (the reason, null for usable intervals). The last step of a
        segment begins no interval, so its ``end_step_id``, ``steps`` and ``step_s`` are null.
    """
    count = len(steps)
    journeys = journeys or JourneyEvidence.none(count)
    here = {name: values.to_numpy() for name, values in steps.items()}
    requests = here["prefill_requests"] + here["decode_requests"]
    following = np.minimum(np.arange(1, count + 1, dtype=np.uint32), max(count - 1, 0))
    is_last = np.ones(count, dtype=bool)
    is_last[:-1] = np.diff(here["segment"]) != 0
    length = here["step_id"][following] - here["step_id"]
    elapsed = here["start_s"][following] - here["start_s"]
    with np.errstate(divide="ignore", invalid="ignore"):
        step_s = np.where(is_last, np.nan, elapsed / length)
    is_known = journeys.agrees & journeys.agrees[following] & journeys.is_certain

    # The server is idle if no request is scheduled at either end of the interval, or if none runs
    # or waits after the step at its start.
    left = np.where(np.isnan(here["running_depth"]), requests, here["running_depth"])
    left -= np.nan_to_num(here["finished"]).astype(left.dtype)
    left += np.nan_to_num(here["waiting_depth"]).astype(left.dtype)
    idle = (requests == 0) | (requests[following] == 0) | (left <= 0) | journeys.idle_until
    few = np.minimum(requests, requests[following]) < RULES["min_requests"]
    preempted, no_prompt = np.nan_to_num(here["preempted"]) > 0, here["prefill_tokens"] == 0
    tests = (
        is_last,
        here["is_ambiguous"],
        (elapsed <= 0) | (length <= 0),
        length > RULES["max_steps"],
        idle,
        few & (length > 1) & ~is_known,
        _warm_up(here["step_id"], idle, is_last),
        preempted | preempted[following] | journeys.preempts_until,
        _stalled(no_prompt & no_prompt[following], step_s, is_last | idle | (length <= 0)),
    )
    # Assign reasons in reverse order, so that the first applicable one remains. Store them as int8
    # codes to save memory, because files have millions of steps.
    reason = np.full(count, -1, dtype=np.int8)
    for code in reversed(range(len(REASONS))):
        reason[tests[code]] = code
    window = (length != 1).astype(np.int8)
    batches = np.where(is_known, np.int8(0), 1 + window)
    columns = {
        "segment": here["segment"],
        "step_id": here["step_id"],
        "end_step_id": _masked(here["step_id"][following], is_last),
        "start_s": here["start_s"],
        "steps": _masked(length, is_last),
        "step_s": step_s,
        "kind": _named(window, KINDS),
        "batches": _named(batches, BATCHES),
        "set_aside": _named(reason, REASONS),
    }
    return pd.DataFrame(columns, copy=False)


def _named(codes: np.ndarray, names: tuple[str, ...]) -> pd.Categorical:
    kind = pd.CategoricalDtype(list(names))
    return pd.Categorical.from_codes(codes, dtype=kind)  # type: ignore[call-overload]


def _masked(values: np.ndarray, missing: np.ndarray) -> pd.arrays.IntegerArray:
    """Return an integer column with nulls where ``missing`` is true."""
    return pd.arrays.IntegerArray(values.astype(np.int64), missing.copy())


def _warm_up(step: np.ndarray, idle: np.ndarray, is_last: np.ndarray) -> np.ndarray:
    """Return a mask of warm-up steps: soon after a process starts or an idle server resumes."""
    count, warm_up = len(idle), RULES["warm_up_steps"]
    first = np.ones(count, dtype=bool)
    first[1:] = is_last[:-1]
    # A process numbers its steps from 0. If a segment's first sampled step has a high number, the
    # process is already warm.
    from_zero = first & (step < warm_up)
    after_idle = np.zeros(count, dtype=bool)
    after_idle[1:] = idle[:-1] & ~is_last[:-1]
    begins = np.where(from_zero, 0, np.where(after_idle, step, -warm_up))
    segment_base = np.where(first | after_idle, begins, np.iinfo(np.int64).min)
    # A running maximum yields, for each row, the latest row at which the process started or became
    # busy.
    rows = np.arange(count, dtype=np.uint32)
    position = np.maximum.accumulate(np.where(first | after_idle, rows, 0))
    return step - segment_base[position] < warm_up


def _stalled(no_prompt: np.ndarray, step_s: np.ndarray, left_out: np.ndarray) -> np.ndarray:
    good = ~left_out & np.isfinite(step_s)
    if not good.any():
        return np.zeros(len(step_s), dtype=bool)
    return good & no_prompt & (step_s > RULES["stall_factor"] * np.median(step_s[good]))


def accounting(cycles: pd.DataFrame) -> dict[str, int]:
    """Return the number of intervals by their use, or by the reason for setting them aside.

    The numbers add up to the number of sampled steps, each of which has a row.
    """
    good = cycles["set_aside"].isna()
    named = {"single cycles": SINGLE, "windows": WINDOW}
    counts = {name: int((good & (cycles["kind"] == kind)).sum()) for name, kind in named.items()}
    reasons = cycles["set_aside"].value_counts()
    return counts | {f"set aside: {r}": int(reasons[r]) for r in REASONS if reasons.get(r, 0)}


def medians_by_decodes(steps: pd.DataFrame, cycles: pd.DataFrame) -> pd.DataFrame:
    """Return the median time of single cycles for each number of decodes at their start.

    Args:
        steps: Table of sampled steps.
        cycles: Intervals of the steps, row by row.

    Returns:
        Columns ``decode_requests``, ``cycles`` (number of cycles) and ``median_step_s`` (seconds).
    """
    good = (cycles["set_aside"].isna() & (cycles["kind"] == SINGLE)).to_numpy()
    groups = cycles["step_s"][good].groupby(steps["decode_requests"].to_numpy()[good])
    medians = pd.DataFrame({"cycles": groups.size(), "median_step_s": groups.median()})
    return medians.rename_axis("decode_requests").reset_index()


# Assignment of requests to segments and steps, and facts about cycles from requests' events.

#: The event records of requests count as complete if they agree with the summaries of at least this
#: share of steps. The value is an assumption: if one request is missing, all steps in which it ran
#: disagree.
COMPLETE_SHARE = 0.9


def with_segments(requests: pa.Table, steps: pd.DataFrame) -> pa.Table:
    """Return the table of requests with the segment in which each was queued, by server and clock.

    A segment is a part of a trace in which one server process numbers its steps. The boundary
    between two segments with the same clock is the middle of the gap between them.

    Args:
        requests: Table of requests.
        steps: Table of sampled steps, in order.
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
            # The comparison is false if a clock's offset is unknown (NaN), so that a request with
            # an unknown offset is not excluded.
            far = np.abs(offset - here["offset"]) > CLOCK_STEP_S
            inside = (server == owner) & (queued >= low) & (queued < high) & ~far
            segment[inside & (segment < 0)] = number
    column = pa.array(segment, mask=segment < 0)
    return requests.set_column(requests.schema.get_field_index("segment"), "segment", column)


def states(
    requests: pa.Table, steps: pd.DataFrame, cycles: pd.DataFrame
) -> dict[str, pa.DoubleArray]:
    """Return the engine's state at the time when each request was queued, by column.

    Args:
        requests: Table of requests, with their segments.
        steps: Table of sampled steps.
        cycles: Intervals of the steps, row by row.
    """
    names = ["segment", "queued_s"]
    queued = pd.DataFrame({name: _floats(requests, name) for name in names}).dropna()
    good = cycles["step_s"].where(cycles["set_aside"].isna())
    depths = ["waiting_depth", "running_depth", "kv_usage"]
    state = steps[["segment", "start_s", *depths]].astype(float)
    state["step_s"] = good.groupby(steps["segment"]).ffill()
    met = pd.merge_asof(
        queued.reset_index().sort_values("queued_s"),
        state.sort_values("start_s", kind="stable"),
        left_on="queued_s", right_on="start_s", by="segment",
    ).set_index("index")  # fmt: skip
    met["age_s"] = met["queued_s"] - met["start_s"]
    met = met.reindex(range(requests.num_rows)).add_prefix("state_")
    return {name: pa.array(met[name].to_numpy(), from_pandas=True) for name in STATE_COLUMNS}


def journeys_by_segment(
    requests: pa.Table, steps: pd.DataFrame, token_budget: int | None
) -> dict[int, JourneyBatches]:
    """Return the batches of each segment whose requests' event records are complete.

    Args:
        requests: Table of requests, with their segments.
        steps: Table of sampled steps.
        token_budget: ``max_num_batched_tokens`` of the server.
    """
    found = {}
    by_segment = _by_segment(requests)
    for number, of_segment in steps.groupby("segment"):
        mine = by_segment.get(int(str(number)))
        if mine is not None:
            journeys = segment_journeys(of_segment, mine, token_budget)
            if journeys.agrees.mean() >= COMPLETE_SHARE:
                found[int(str(number))] = journeys
    return found


def journey_evidence(
    requests: pa.Table, steps: pd.DataFrame, token_budget: int | None
) -> JourneyEvidence:
    """Return facts from requests' event records about sampled steps and the time between them.

    Args:
        requests: Table of requests, with their segments.
        steps: Table of sampled steps.
        token_budget: ``max_num_batched_tokens`` of the server.
    """
    evidence = JourneyEvidence.none(len(steps))
    all_steps, by_segment = steps["segment"].to_numpy(), _by_segment(requests)
    for number, of_segment in journeys_by_segment(requests, steps, token_budget).items():
        rows = slice(*np.searchsorted(all_steps, (number, number + 1)))
        mine = by_segment[number]
        step = steps["step_id"].to_numpy()[rows]
        following = np.append(step[1:], step[-1] + 1)
        evidence.agrees[rows] = of_segment.agrees
        evidence.is_certain[rows] = of_segment.is_certain(step, following)
        preempted = np.sort(mine["preempted_steps"].combine_chunks().flatten().to_numpy())
        before, until = (np.searchsorted(preempted, at) for at in (step, following))
        evidence.preempts_until[rows] = before < until
        evidence.idle_until[rows] = _idle_until(mine, steps["start_s"].to_numpy()[rows])
    return evidence


def _by_segment(requests: pa.Table) -> dict[int, pa.Table]:
    """Return the requests of each segment as a table; requests in no segment are omitted."""
    segment = np.nan_to_num(_floats(requests, "segment"), nan=-1).astype(np.int64)
    order = np.argsort(segment, kind="stable")
    ordered = requests.take(pa.array(order)).combine_chunks()
    numbers, begins, counts = np.unique(segment[order], return_index=True, return_counts=True)
    found = zip(numbers, begins, counts, strict=True)
    return {int(number): ordered.slice(*rows) for number, *rows in found if number >= 0}


def _idle_until(requests: pa.Table, start: np.ndarray) -> np.ndarray:
    """Return whether the engine had no requests at some time before the next step."""
    begin, end = _floats(requests, "queued_s"), _floats(requests, "finished_s")
    known = np.isfinite(begin) & np.isfinite(end)
    order = np.argsort(begin[known])
    begin, end = begin[known][order], np.maximum.accumulate(end[known][order])
    gaps = np.flatnonzero(begin[1:] > end[:-1])
    gap_begin, gap_end = end[gaps], begin[gaps + 1]
    following = np.append(start[1:], start[-1:])
    # The gap between two requests counts for a step if it begins before the next step starts, and
    # ends after the step starts.
    return np.searchsorted(gap_begin, following) > np.searchsorted(gap_end, start, side="right")


def _floats(table: pa.Table, name: str) -> np.ndarray:
    return table[name].cast(pa.float64()).to_numpy(zero_copy_only=False)


# Checks of candidate step times against the roofline lower bound.
#
# No step is faster than max(FLOPs / peak FLOP/s, bytes to read / memory bandwidth) of its batch. If
# a trace column's median is below this bound, the column does not contain step times, whatever its
# name. Coefficients fitted to the column would describe impossible hardware.

#: Meanings of columns that look like step times but are not, by column name.
MEANINGS = {
    "reported_duration_s": (
        "step.duration_us is the time of the scheduler's schedule() call, which ends "
        "before the model runs. The step time is the time from one step's start to "
        "the next one's."
    )
}


def check_target(
    column: str, values: Float[np.ndarray, " steps"], floor: Float[np.ndarray, " steps"]
) -> dict[str, str | float | bool]:
    """Check whether a column's values may be step times.

    A column is rejected if the median of value / lower bound is below 1, since most of its values
    are then impossible step times.

    Args:
        column: Name of the column.
        values: Values in seconds; NaN values are dropped.
        floor: Roofline lower bound of each row's batch in seconds; rows without one are dropped.

    Returns:
        ``column``; ``rows``, the number of values checked; ``median_s`` and ``floor_median_s``,
        medians of values and of lower bounds; ``below_floor``, the number of values below their
        bound; ``is_target``, whether the coefficients of a step's time may be fitted to the
        column; and ``explanation``, the reason if not.
    """
    use = np.isfinite(values) & (floor > 0)
    values, floor = values[use], floor[use]
    rows, below = len(values), int((values < floor).sum())
    median, floor_median, ratio = (
        float(np.median(each)) if rows else np.nan for each in (values, floor, values / floor)
    )
    explanation = "" if rows else "the column has no values"
    if ratio < 1:
        explanation = (
            f"the column's median of {median * 1000.0:.3g} ms is shorter than reading the weights "
            f"takes: the median roofline lower bound is {floor_median * 1000.0:.3g} ms, and "
            f"{below} of {rows} rows are below their own bound"
        )
        explanation += f". {MEANINGS[column]}" if column in MEANINGS else ""
    return {
        "column": column, "rows": rows, "median_s": median, "floor_median_s": floor_median,
        "below_floor": below, "is_target": not explanation, "explanation": explanation,
    }  # fmt: skip
