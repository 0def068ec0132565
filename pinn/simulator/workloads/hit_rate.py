"""Loads whose prompts share enough tokens for a requested prefix cache hit rate."""

from dataclasses import replace

import numpy as np
from jaxtyping import Int

from pinn.errors import PinnError
from pinn.simulator.workloads.workload import Workload

#: ``_BEGINNINGS``: maximum number of different shared prefixes, so that most concurrent requests
#: have different prefixes. ``_REQUESTS_OF_EACH``: minimum number of requests per prefix, because
#: the first of them finds nothing cached.
_BEGINNINGS, _REQUESTS_OF_EACH = 16, 20
#: Number of bisection steps to find the share of each prompt to repeat for the requested hit rate.
_HALVINGS = 40


def with_hit_rate(workload: Workload, hit_rate: float) -> Workload:
    """Return a load whose prompts repeat prefixes of earlier prompts, at a given hit rate.

    Requests cycle through up to 16 different prefixes; in a closed loop, at most one per client.
    Each request repeats an equal share of its prompt, so that repeated tokens make up the share
    ``hit_rate`` of all prompt tokens. The simulated hit rate is lower if the cache evicts prefixes,
    or matches whole blocks only.

    Raises:
        PinnError: If the load already defines which tokens its prompts share, or if the hit rate is
            not reachable.
    """
    if (workload.shares_with >= 0).any():
        raise PinnError(
            f"the workload {workload.name} states which prompts share prefixes, so the simulation "
            "yields the hit rate: omit --prefix-hit-rate"
        )
    n = len(workload)
    most = _BEGINNINGS if workload.concurrency is None else workload.concurrency
    groups = max(min(most, n // _REQUESTS_OF_EACH), 1)
    donor = _longest_before(workload.prompt_tokens, groups)
    prompt, longest = workload.prompt_tokens, workload.prompt_tokens[np.maximum(donor, 0)]
    most_shared = np.where(donor >= 0, np.minimum(prompt - 1, longest), 0)
    wanted = hit_rate * float(prompt.sum())
    if most_shared.sum() < wanted:
        reached = f"{most_shared.sum() / prompt.sum():.3f}"
        raise PinnError(
            f"--prefix-hit-rate {hit_rate:g} is too high, since the {n:,} prompts of the workload "
            f"{workload.name} can share at most {reached}: send more requests, or give a lower "
            "hit rate"
        )
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        enough = float(np.minimum(share * prompt, most_shared).sum()) >= wanted
        low, high = (low, share) if enough else (share, high)
    shared = np.minimum(np.rint(high * prompt), most_shared).astype(np.int64)
    return replace(workload, shares_with=donor, shared_tokens=shared, hit_rate=hit_rate)


def _longest_before(prompt: Int[np.ndarray, " n"], groups: int) -> Int[np.ndarray, " n"]:
    """Return, per request, the earlier request of its group with the longest prompt, or -1."""
    donor = np.full(len(prompt), -1)
    for group in range(groups):
        mine = np.arange(group, len(prompt), groups)
        longest = np.maximum.accumulate(prompt[mine])
        is_longest = prompt[mine] == longest
        latest = np.maximum.accumulate(np.where(is_longest, np.arange(len(mine)), 0))
        donor[mine[1:]] = mine[latest[:-1]]
    return donor
