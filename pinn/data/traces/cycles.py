"""The target that beta is fitted to: the busy-loop cycle, from one step's start to the next's.

Between two sampled steps i < j of a segment lie j - i cycles of the engine's busy loop, so their
mean is (start_j - start_i) / (j - i): a *single* cycle where j = i + 1, a *window* else. Each step
begins at most one interval. Intervals that say nothing of busy steps are set aside, each for the
first reason that holds:

==============================  ================================================================
reason                          rule
==============================  ================================================================
last of its segment             no later step of the same process is there
two servers in one              servers with equal marks wrote in turn (see segments)
clock does not advance          the later step does not start later
window too long                 more than ``max_steps`` steps: its ends say little of its middle
idle server                     an end has nothing scheduled, or all that ran at its start ended and
                                nothing waited, or, where journeys tell, no request was in the
                                engine for some of it
few requests                    a window without journeys with fewer than ``min_requests`` at an
                                end: the server may have been idle inside
warm-up                         begins in the first ``warm_up_steps`` steps of a segment or after an
                                idle server
preemption                      a request lost its place at one of its ends or, where journeys tell,
                                inside
stalled                         ``stall_factor`` times the median cycle without prompt tokens at its
                                ends: something else than the steps took the time
==============================  ================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

SINGLE, WINDOW = "single", "window"

#: What is known of an interval's batches: every request of every step; the summary of its only
#: step; or its two ends, whose mean times its steps is an estimate. Which step the summary stands
#: for depends on whether the scheduler runs ahead (see ``ahead``).
BATCHES = KNOWN, SUMMARY, ENDS = "known", "summary", "ends"

REASONS = (
    "last of its segment",
    "two servers in one",
    "clock does not advance",
    "window too long",
    "idle server",
    "few requests",
    "warm-up",
    "preemption",
    "stalled",
)

_COLUMNS = (
    "segment", "step_id", "start_s", "is_ambiguous", "prefill_requests", "decode_requests",
    "prefill_tokens", "running_depth", "waiting_depth", "finished", "preempted",
)  # fmt: skip


@dataclass(frozen=True)
class CycleRules:
    """Thresholds of the rules above: assumptions, generous to what a server can do by itself."""

    max_steps: int = 64
    min_requests: int = 2
    warm_up_steps: int = 20
    stall_factor: float = 10.0


@dataclass(frozen=True)
class JourneyEvidence:
    """What journeys add, each over the canonical steps in order.

    Attributes:
        agrees: Whether journeys and summary tell the same of the step's batch.
        is_certain: Whether every step until the next sampled one is known request by request.
        idle_until: Whether the engine was empty for some of the time until the next sampled step.
        preempts_until: Whether a request was preempted until then.
    """

    agrees: Bool[np.ndarray, " steps"]
    is_certain: Bool[np.ndarray, " steps"]
    idle_until: Bool[np.ndarray, " steps"]
    preempts_until: Bool[np.ndarray, " steps"]

    @staticmethod
    def none(count: int) -> JourneyEvidence:
        """No journeys at all."""
        return JourneyEvidence(*(np.zeros(count, dtype=bool) for _ in range(4)))


def cycle_table(
    steps: pd.DataFrame,
    rules: CycleRules | None = None,
    journeys: JourneyEvidence | None = None,
) -> pd.DataFrame:
    """One row per step: the interval that it begins.

    Args:
        steps: Canonical steps in their order.
        rules: Thresholds.
        journeys: What the journeys tell, if there are any.

    Returns:
        Columns ``segment``, ``step_id``, ``end_step_id``, ``start_s``, ``steps``, ``step_s`` (mean
        seconds per step), ``kind`` (single or window), ``batches`` (known, summary or ends) and
        ``set_aside`` (the reason, null where the interval is good). All but the first two are null
        for the last step of a segment.
    """
    rules = rules or CycleRules()
    count = len(steps)
    journeys = journeys or JourneyEvidence.none(count)
    here = {name: steps[name].to_numpy() for name in _COLUMNS}
    following = np.minimum(np.arange(1, count + 1, dtype=np.uint32), max(count - 1, 0))
    is_last = np.ones(count, dtype=bool)
    is_last[:-1] = np.diff(here["segment"]) != 0
    length = here["step_id"][following] - here["step_id"]
    elapsed = here["start_s"][following] - here["start_s"]
    with np.errstate(divide="ignore", invalid="ignore"):
        step_s = np.where(is_last, np.nan, elapsed / length)
    is_known = journeys.agrees & journeys.agrees[following] & journeys.is_certain

    idle = _idle(here, following) | journeys.idle_until
    tests = (
        is_last,
        here["is_ambiguous"],
        (elapsed <= 0) | (length <= 0),
        length > rules.max_steps,
        idle,
        _few(here, following, rules) & (length > 1) & ~is_known,
        _warm_up(here, idle, is_last, rules.warm_up_steps),
        _preempts(here, following) | journeys.preempts_until,
        _stalled(here, following, step_s, is_last | idle | (length <= 0), rules.stall_factor),
    )
    # The first reason wins: it is written last. Codes, not texts: files hold millions of steps.
    reason = np.full(count, -1, dtype=np.int8)
    for code in reversed(range(len(REASONS))):
        reason[tests[code]] = code
    single = length == 1
    kind = np.where(single, np.int8(0), np.int8(1))
    batches = np.where(is_known, np.int8(0), np.where(single, np.int8(1), np.int8(2)))
    return pd.DataFrame(
        {
            "segment": here["segment"],
            "step_id": here["step_id"],
            "end_step_id": _masked(here["step_id"][following], is_last),
            "start_s": here["start_s"],
            "steps": _masked(length, is_last),
            "step_s": step_s,
            "kind": _named(kind, (SINGLE, WINDOW)),
            "batches": _named(batches, BATCHES),
            "set_aside": _named(reason, REASONS),
        },
        copy=False,
    )


def _named(codes: np.ndarray, names: Sequence[str]) -> pd.Categorical:
    kind = pd.CategoricalDtype(list(names))
    return pd.Categorical.from_codes(codes, dtype=kind)  # type: ignore[call-overload]


def _masked(values: np.ndarray, missing: np.ndarray) -> pd.arrays.IntegerArray:
    """Whole numbers, null where they are missing."""
    return pd.arrays.IntegerArray(values.astype(np.int64), missing.copy())


def _requests(here: dict[str, np.ndarray]) -> np.ndarray:
    return here["prefill_requests"] + here["decode_requests"]


def _idle(here: dict[str, np.ndarray], following: np.ndarray) -> np.ndarray:
    """Nothing scheduled at an end, or all that ran at the start ended at once."""
    requests = _requests(here)
    left = np.where(np.isnan(here["running_depth"]), requests, here["running_depth"])
    left -= np.nan_to_num(here["finished"]).astype(left.dtype)
    left += np.nan_to_num(here["waiting_depth"]).astype(left.dtype)
    return (requests == 0) | (requests[following] == 0) | (left <= 0)


def _few(here: dict[str, np.ndarray], following: np.ndarray, rules: CycleRules) -> np.ndarray:
    requests = _requests(here)
    return np.minimum(requests, requests[following]) < rules.min_requests


def _preempts(here: dict[str, np.ndarray], following: np.ndarray) -> np.ndarray:
    preempted = np.nan_to_num(here["preempted"])
    return (preempted > 0) | (preempted[following] > 0)


def _warm_up(
    here: dict[str, np.ndarray], idle: np.ndarray, is_last: np.ndarray, warm_up: int
) -> np.ndarray:
    """Steps soon after the segment's first possible one or after the end of an idle interval."""
    count = len(idle)
    step = here["step_id"]
    first = np.ones(count, dtype=bool)
    first[1:] = is_last[:-1]
    # A process numbers its steps from 0; one whose file begins in the middle is warm already.
    from_zero = first & (step < warm_up)
    after_idle = np.zeros(count, dtype=bool)
    after_idle[1:] = idle[:-1] & ~is_last[:-1]
    begins = np.where(from_zero, 0, np.where(after_idle, step, -warm_up))
    segment_base = np.where(first | after_idle, begins, np.iinfo(np.int64).min)
    # Carry the latest beginning forward inside the segment: positions grow, so does their maximum.
    rows = np.arange(count, dtype=np.uint32)
    position = np.maximum.accumulate(np.where(first | after_idle, rows, 0))
    return step - segment_base[position] < warm_up


def _stalled(
    here: dict[str, np.ndarray],
    following: np.ndarray,
    step_s: Float[np.ndarray, " steps"],
    left_out: np.ndarray,
    factor: float,
) -> np.ndarray:
    good = ~left_out & np.isfinite(step_s)
    if not good.any():
        return np.zeros(len(step_s), dtype=bool)
    no_prompt = (here["prefill_tokens"] == 0) & (here["prefill_tokens"][following] == 0)
    return good & no_prompt & (step_s > factor * np.median(step_s[good]))


def accounting(cycles: pd.DataFrame) -> dict[str, int]:
    """Steps by what became of the interval they begin; the numbers add up to the steps."""
    good = cycles["set_aside"].isna()
    counts = {
        "single cycles": int((good & (cycles["kind"] == SINGLE)).sum()),
        "windows": int((good & (cycles["kind"] == WINDOW)).sum()),
    }
    reasons = cycles["set_aside"].value_counts()
    return counts | {f"set aside: {r}": int(reasons[r]) for r in REASONS if reasons.get(r, 0)}


def medians_by_decodes(
    steps: pd.DataFrame, cycles: pd.DataFrame, kinds: Sequence[str] = (SINGLE,)
) -> pd.DataFrame:
    """Median cycle by the number of decodes at its start.

    Args:
        steps: Canonical steps.
        cycles: Their intervals, row by row.
        kinds: Intervals to take: single cycles, windows or both.

    Returns:
        Columns ``decode_requests``, ``cycles`` (how many) and ``median_step_s``.
    """
    good = cycles["set_aside"].isna().to_numpy() & cycles["kind"].isin(kinds).to_numpy()
    values = pd.DataFrame(
        {
            "decode_requests": steps["decode_requests"].to_numpy()[good],
            "step_s": cycles["step_s"].to_numpy()[good],
        }
    )
    groups = values.groupby("decode_requests")["step_s"]
    return pd.DataFrame({"cycles": groups.size(), "median_step_s": groups.median()}).reset_index()
