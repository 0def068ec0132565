"""Workloads made from a few numbers: open loops, closed loops, shared prefixes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pinn.common.documents import MOST_REQUEST_TOKENS, MOST_REQUESTS, check_size
from pinn.errors import PinnError
from pinn.simulator.workloads.arrivals import (
    Stage,
    check_requests,
    draw_range,
    random_draws,
    stage_arrivals,
    stage_starts,
)
from pinn.simulator.workloads.workload import Workload, share_prompts


def open_loop(
    stages: Sequence[Stage],
    prompt_tokens: int,
    output_tokens: int,
    *,
    process: str = "poisson",
    cv: float = 1.0,
    length_range: tuple[float, float] = (1.0, 1.0),
    timeout_s: float = np.inf,
    seed: int = 0,
    name: str = "open loop",
) -> Workload:
    """Requests at given rates whatever the server does, every prompt unlike the others.

    Args:
        stages: Loads one after the other, by the clock.
        prompt_tokens: Nominal prompt length.
        output_tokens: Nominal output length.
        process: Arrival process, see ``draw_gaps``.
        cv: Its coefficient of variation.
        length_range: Lengths are uniform between these shares of the nominal ones.
        timeout_s: After which a client hangs up.
        seed: Of the random draws.
        name: For print-outs.
    """
    rng = random_draws(seed)
    offset, stage = stage_arrivals(stages, process, rng, cv)
    n = len(offset)
    return Workload(
        name,
        draw_range(prompt_tokens, length_range, n, rng),
        draw_range(output_tokens, length_range, n, rng),
        offset,
        stage,
        timeout_s=np.full(n, timeout_s),
        stage_starts_s=stage_starts(stages, offset, stage),
    )


def closed_loop(
    concurrency: int,
    requests: int,
    prompt_tokens: int,
    output_tokens: int,
    *,
    length_range: tuple[float, float] = (1.0, 1.0),
    timeout_s: float = np.inf,
    seed: int = 0,
    name: str = "closed loop",
) -> Workload:
    """Clients that each send their next request when the last one ended; all start at once.

    The requests form one line, as in vLLM's ``benchmark_serving --max-concurrency``.
    """
    if requests < 1:
        raise PinnError(f"a closed loop needs at least 1 request, got {requests}")
    check_requests(requests)
    rng = random_draws(seed)
    return Workload(
        name,
        draw_range(prompt_tokens, length_range, requests, rng),
        draw_range(output_tokens, length_range, requests, rng),
        np.zeros(requests),
        timeout_s=np.full(requests, timeout_s),
        concurrency=concurrency,
    )


def shared_prefix(
    stages: Sequence[Stage],
    *,
    groups: int,
    prompts_per_group: int,
    shared_tokens: int,
    question_tokens: int,
    output_tokens: int,
    process: str = "poisson",
    cv: float = 1.0,
    prompt_range: tuple[float, float] = (1.0, 1.0),
    timeout_s: float = np.inf,
    stages_wait: bool = False,
    stage_gap_s: float = 0.0,
    seed: int = 0,
    name: str = "shared prefix",
) -> Workload:
    """A fixed set of prompts in groups, sent over and over in one shuffled order.

    Prompts of a group share their first tokens, and each prompt repeats, so with prefix caching
    on only its first use pays its prefill.

    Args:
        stages: Loads one after the other.
        groups: Groups of prompts.
        prompts_per_group: Prompts in a group.
        shared_tokens: Tokens that a group shares.
        question_tokens: Further tokens of each prompt.
        output_tokens: Tokens that each request generates.
        process: Arrival process, see ``draw_gaps``.
        cv: Its coefficient of variation.
        prompt_range: Each prompt's true length is uniform between these shares of the nominal
            one: tokenizers make 2 to 5 % more of a text than it was cut to.
        timeout_s: After which a client hangs up.
        stages_wait: Whether a stage opens only when the one before has ended.
        stage_gap_s: Pause in between.
        seed: Of the random draws.
        name: For print-outs.
    """
    if groups < 1 or prompts_per_group < 1:
        raise PinnError(
            "shared prefixes need at least 1 group of 1 prompt, got "
            f"{groups} of {prompts_per_group}"
        )
    prompts = groups * prompts_per_group
    check_size(prompts, MOST_REQUESTS, "different prompts", "lower groups x prompts_per_group")
    check_size(output_tokens, MOST_REQUEST_TOKENS, "tokens of a request", "shorten it")
    rng = random_draws(seed)
    offset, stage = stage_arrivals(stages, process, rng, cv)
    lengths = draw_range(shared_tokens + question_tokens, prompt_range, prompts, rng)
    order = rng.permutation(prompts)
    prompt = order[np.arange(len(offset)) % prompts]
    tokens = lengths[prompt]
    prefix = np.minimum(shared_tokens, tokens)
    donor, shared = share_prompts(prompt // prompts_per_group, prefix, prompt, tokens)
    return Workload(
        name,
        tokens,
        np.full(len(offset), output_tokens),
        offset,
        stage,
        donor,
        shared,
        timeout_s=np.full(len(offset), timeout_s),
        stages_wait=stages_wait,
        stage_gap_s=stage_gap_s,
        stage_starts_s=stage_starts(stages, offset, stage),
    )
