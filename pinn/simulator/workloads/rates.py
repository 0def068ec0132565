"""Loads at another rate: scaled times, repeated requests, or fewer requests."""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from pinn.errors import PinnError
from pinn.simulator.workloads import arrivals
from pinn.simulator.workloads.workload import COLUMNS, Workload


def mean_rate_per_s(workload: Workload) -> float:
    """Return the mean requests per second, from the first to the last request.

    Pauses between stages that wait for one another are excluded. All turns of conversations count,
    over the time between the starts of the first and the last conversation.

    Raises:
        PinnError: If the load is a closed loop, or all requests are sent at the same time.
    """
    if workload.concurrency is not None:
        raise PinnError(
            f"the workload {workload.name} is a closed loop of {workload.concurrency} clients, "
            "which has no rate of its own: give --rate, or stages (rate, duration)"
        )
    due = _clock_s(workload)[workload.starts]
    span_s = float(due[-1] - due[0])
    if not span_s > 0:
        raise PinnError(
            f"the workload {workload.name} sends its {len(workload)} requests all "
            "at the same time, so that it has no rate: give at least two arrival "
            "times"
        )
    return (len(due) - 1) / span_s * (len(workload) / len(due))


def check_rate(rate_per_s: float) -> None:
    """Check that a rate is positive and finite.

    Raises:
        PinnError: If the rate is not positive and finite.
    """
    if not 0 < rate_per_s < np.inf:
        raise PinnError(f"the rate must be positive and finite, got {rate_per_s:g} requests/s")


def at_rate(workload: Workload, rate_per_s: float) -> Workload:
    """Return a load's requests at another mean rate, with all times scaled by one factor.

    Stages keep the ratio of their rates. Lengths, shared tokens, client timeouts and pauses within
    conversations do not change.

    Raises:
        PinnError: If the rate is not positive, or the load has no rate.
    """
    check_rate(rate_per_s)
    factor = mean_rate_per_s(workload) / rate_per_s
    return replace(
        workload,
        offset_s=workload.offset_s * np.where(workload.starts, factor, 1.0),
        stage_starts_s=tuple(start * factor for start in workload.stage_starts_s),
        stage_gap_s=workload.stage_gap_s * factor,
    )


def begun_at_random(workload: Workload, rate_per_s: float, seed: int) -> Workload:
    """Add random start times (a Poisson process) to a load without times, at a mean request rate.

    Only single requests and first turns are given a time; later turns wait for the previous
    response.
    """
    starts, offset_s = workload.starts, workload.offset_s.copy()
    count = int(starts.sum())
    rng = arrivals.random_draws(seed)
    gaps_s = arrivals.draw_gaps("poisson", rate_per_s * count / len(workload), count, rng)
    offset_s[starts] = np.cumsum(gaps_s)
    return replace(workload, offset_s=offset_s, timed=True)


def repeated(workload: Workload, count: int) -> Workload:
    """Return a load of ``count`` requests, which repeats the given load as often as needed.

    Each repetition begins when the next request would be due at the mean rate. Prompts share tokens
    only within a repetition.

    Raises:
        PinnError: If there are too many requests, or the load has no rate.
    """
    n = len(workload)
    copies = -(-count // n)
    arrivals.check_requests(copies * n, f"{copies:,} copies of {workload.name}")
    if copies <= 1:
        return thinned(workload, np.arange(n) < count)
    copy = np.repeat(np.arange(copies), n)
    columns: dict[str, Any] = {name: np.tile(getattr(workload, name), copies) for name in COLUMNS}
    starts = workload.stage_starts_s
    for name in ("shares_with", "follows"):
        columns[name] = np.where(columns[name] >= 0, columns[name] + copy * n, -1)
    if workload.stages_wait:
        columns["stage"] += copy * workload.stages
    else:
        clock_s = np.tile(_clock_s(workload), copies)
        sent_s = clock_s + copy * (n / mean_rate_per_s(workload))
        columns["offset_s"] = np.where(columns["follows"] < 0, sent_s, columns["offset_s"])
        columns["stage"], starts = np.zeros(copies * n, np.int64), (0.0,)
    whole = replace(workload, stage_starts_s=starts, **columns)
    return thinned(whole, np.arange(copies * n) < count)


def thinned(workload: Workload, kept: Bool[np.ndarray, " n"]) -> Workload:
    """Return a load of selected requests, at their original times.

    Requests that shared tokens with a dropped request share them with each other, as far as their
    own prompts reach. A kept turn of a conversation needs all turns before it.

    Raises:
        PinnError: If no request is kept, or a turn is kept without the turn before it.
    """
    donor, shared = workload.shares_with, workload.shared_tokens
    if (donor >= 0).any() and not kept.all():
        whole = workload.prompt_tokens + workload.output_tokens
        shared = np.minimum(shared, whole[np.maximum(donor, 0)])
        donor, shared = _shared_among(donor, shared, kept)
    place, before = np.cumsum(kept) - 1, workload.follows
    if (kept & (before >= 0) & ~kept[np.maximum(before, 0)]).any():
        raise PinnError(
            f"a turn of the workload {workload.name} is kept without the turn before: keep all "
            "earlier turns of a conversation, too"
        )
    donor, before = (np.where(o >= 0, place[np.maximum(o, 0)], -1)[kept] for o in (donor, before))
    left, stage = np.unique(workload.stage[kept], return_inverse=True)
    columns: dict[str, Any] = {name: getattr(workload, name)[kept] for name in COLUMNS}
    columns |= {"stage": stage, "shares_with": donor, "shared_tokens": shared[kept]}
    columns |= {"follows": before}
    if not workload.stages_wait:
        columns["stage_starts_s"] = tuple(workload.stage_starts_s[i] for i in left)
    return replace(workload, **columns)


def _clock_s(workload: Workload) -> Float[np.ndarray, " n"]:
    """Return when each single request or first turn is due, in seconds, as if no stage waited."""
    starts_s = workload.stage_starts_s
    if workload.stages_wait:
        offset_s = np.where(workload.starts, workload.offset_s, 0.0)
        starts_s = arrivals.stage_starts([0.0] * workload.stages, offset_s, workload.stage)
    return np.array(starts_s)[workload.stage] + workload.offset_s


def _shared_among(
    donor: np.ndarray, shared: np.ndarray, kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return each request's donor among kept requests, and how many leading tokens they share.

    A request's donor is an earlier request with the same first tokens. A dropped donor is replaced
    by the kept request that shares the most of its first tokens.
    """
    new_donor, stand_in = np.full((2, len(donor)), -1, np.int64)
    new_shared, tokens = np.zeros((2, len(donor)), np.int64)
    for r in range(len(donor)):
        d, common = donor[r], shared[r]
        found, reach = -1, 0
        if d >= 0:
            found, reach = (d, common) if kept[d] else (stand_in[d], min(common, tokens[d]))
            if kept[r] and not kept[d] and common > tokens[d]:
                stand_in[d], tokens[d] = r, common
        if kept[r]:
            new_donor[r], new_shared[r] = found, reach
        else:
            stand_in[r], tokens[r] = found, reach
    return new_donor, new_shared
