"""Workloads made from a few numbers: open loops, closed loops, shared prefixes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pinn.common.documents import MOST_REQUESTS, check_size, written
from pinn.errors import PinnError
from pinn.simulator.workloads import arrivals
from pinn.simulator.workloads.workload import Workload, share_prompts


def open_loop(
    stages: Sequence[arrivals.Stage],
    prompt_tokens: int,
    output_tokens: int,
    *,
    gaps: arrivals.Gaps = arrivals.POISSON,
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
        gaps: How those between arrivals are drawn.
        length_range: Lengths are uniform between these shares of the nominal ones.
        timeout_s: After which a client hangs up.
        seed: Of the random draws.
        name: For print-outs.
    """
    rng = arrivals.random_draws(seed)
    offset, stage = arrivals.stage_arrivals(stages, gaps, rng)
    n = len(offset)
    return Workload(
        name,
        arrivals.draw_range(prompt_tokens, length_range, n, rng),
        arrivals.draw_range(output_tokens, length_range, n, rng),
        offset,
        stage,
        timeout_s=np.full(n, timeout_s),
        stage_starts_s=arrivals.stage_starts([s.duration_s for s in stages], offset, stage),
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
    arrivals.check_requests(requests)
    rng = arrivals.random_draws(seed)
    return Workload(
        name,
        arrivals.draw_range(prompt_tokens, length_range, requests, rng),
        arrivals.draw_range(output_tokens, length_range, requests, rng),
        np.zeros(requests),
        timeout_s=np.full(requests, timeout_s),
        concurrency=concurrency,
    )


@dataclass(frozen=True)
class PromptGroups:
    """A fixed set of prompts in groups, each of which begins alike.

    Attributes:
        groups: How many.
        prompts_per_group: Prompts in each.
        shared_tokens: Tokens that a group shares.
        question_tokens: Further tokens of each prompt.
        length_range: Each prompt's true length is uniform between these shares of the nominal
            one: tokenizers make 2 to 5 % more of a text than it was cut to.
    """

    groups: int
    prompts_per_group: int
    shared_tokens: int
    question_tokens: int
    length_range: tuple[float, float] = (1.0, 1.0)

    def __len__(self) -> int:
        return self.groups * self.prompts_per_group

    def __post_init__(self) -> None:
        if self.groups < 1 or self.prompts_per_group < 1:
            raise PinnError(
                "shared prefixes need at least 1 group of 1 prompt, got "
                f"{self.groups} of {self.prompts_per_group}"
            )
        if min(self.shared_tokens, self.question_tokens) < 0:
            raise PinnError(
                "shared and further tokens of a prompt must be 0 or more, got "
                f"{written(self.shared_tokens)} and {written(self.question_tokens)}"
            )
        # Not its length, which Python limits before this does.
        different = self.groups * self.prompts_per_group
        check_size(
            different, MOST_REQUESTS, "different prompts", "lower groups x prompts_per_group"
        )


def shared_prefix(
    stages: Sequence[arrivals.Stage],
    prompts: PromptGroups,
    output_tokens: int,
    *,
    gaps: arrivals.Gaps = arrivals.POISSON,
    timeout_s: float = np.inf,
    stage_gap_s: float | None = None,
    seed: int = 0,
    name: str = "shared prefix",
) -> Workload:
    """A fixed set of prompts in groups, sent over and over in one shuffled order.

    Prompts of a group share their first tokens, and each prompt repeats, so with prefix caching
    on only its first use pays its prefill.

    Args:
        stages: Loads one after the other.
        prompts: What is sent.
        output_tokens: Tokens that each request generates.
        gaps: How those between arrivals are drawn.
        timeout_s: After which a client hangs up.
        stage_gap_s: Pause between the end of a stage and the next one; None where stages open by
            the clock.
        seed: Of the random draws.
        name: For print-outs.
    """
    rng = arrivals.random_draws(seed)
    offset, stage = arrivals.stage_arrivals(stages, gaps, rng)
    nominal = prompts.shared_tokens + prompts.question_tokens
    lengths = arrivals.draw_range(nominal, prompts.length_range, len(prompts), rng)
    order = rng.permutation(len(prompts))
    prompt = order[np.arange(len(offset)) % len(prompts)]
    tokens = lengths[prompt]
    prefix = np.minimum(prompts.shared_tokens, tokens)
    return Workload(
        name,
        tokens,
        arrivals.draw_range(output_tokens, (1.0, 1.0), len(offset), rng),
        offset,
        stage,
        **share_prompts(prompt // prompts.prompts_per_group, prefix, prompt, tokens),
        timeout_s=np.full(len(offset), timeout_s),
        stages_wait=stage_gap_s is not None,
        stage_gap_s=stage_gap_s or 0.0,
        stage_starts_s=arrivals.stage_starts([s.duration_s for s in stages], offset, stage),
    )
