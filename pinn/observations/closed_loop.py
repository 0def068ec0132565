"""The steps of a closed-loop benchmark, worked out from its load alone.

N clients each send a request, wait for its last token and send the next. Which requests share a
step then follows from lengths and the token budget: a new request arrives one step after another
one ended, however long the steps take. So mean TPOT and TTFT are weighted sums of step features,
known before any latency is.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field, fields
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from pinn.errors import PinnError
from pinn.physics.batch_sums import BatchSums, causal_pairs

#: Lengths are uniform in this share of the nominal ones, as the public benchmark scripts draw them
#: (``--random-range-ratio 0.8``).
SHORTEST_SHARE = 0.8

#: Each client sends this many requests (``--num-prompts`` is 10 x concurrency there).
WAVES = 10


@dataclass(frozen=True)
class ClosedLoop:
    """The load of a benchmark.

    Attributes:
        concurrency: Clients.
        prompt_tokens: Longest prompt; prompts are uniform in [0.8, 1] of it.
        output_tokens: Longest output, likewise.
        max_num_batched_tokens: Token budget of a step.
        window_tokens: The model's attention window; None without one.
        seed: Of the drawn lengths.
    """

    concurrency: int
    prompt_tokens: int
    output_tokens: int
    max_num_batched_tokens: int = 8192
    window_tokens: int | None = None
    seed: int = 0

    @property
    def mean_prompt_tokens(self) -> float:
        """Mean length of a prompt."""
        return self.prompt_tokens * (1 + SHORTEST_SHARE) / 2

    @property
    def mean_burst(self) -> float:
        """Mean number of requests that the server has to take in up to and with a request's own.

        One request in ``WAVES`` belongs to the burst that starts the benchmark, in which half of
        the others come first; later ones come alone.
        """
        return 1 + (self.concurrency - 1) / 2 / WAVES

    def __post_init__(self) -> None:
        for name in ("concurrency", "prompt_tokens", "output_tokens", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise PinnError(
                    f"closed loop: {name} must be at least 1, got {getattr(self, name)}"
                )
        if self.max_num_batched_tokens <= self.concurrency:
            raise PinnError(
                f"closed loop: a budget of {self.max_num_batched_tokens} tokens per step leaves no "
                f"room for prompts beside {self.concurrency} decodes"
            )


@dataclass(frozen=True)
class ClosedLoopSteps:
    """Groups of consecutive alike steps and their shares in the benchmark's means.

    Attributes:
        sums: Of the batch of each group, fields of shape ``[groups]``.
        tpot_share: ``mean TPOT = sum(tpot_share * step time)``.
        ttft_share: ``mean TTFT = sum(ttft_share * step time)`` plus what alpha adds.
    """

    sums: BatchSums
    tpot_share: Float[np.ndarray, " groups"]
    ttft_share: Float[np.ndarray, " groups"]


@dataclass
class _Engine:
    """State of the loop; tokens and steps only, no clock."""

    load: ClosedLoop
    lengths: deque  # (prompt, output) of the requests not sent yet
    waiting: deque = field(default_factory=deque)  # (prompt, done, output), first come first
    arrivals: deque = field(default_factory=deque)  # (step, prompt, output)
    endings: list = field(default_factory=list)  # heap of (last step, context at it, output)
    step: int = 0
    context: float = 0.0  # tokens cached by all decodes together
    tpot_weight: float = 0.0  # sum over decodes of 1 / (output - 1)
    rows: list = field(default_factory=list)

    def send(self, step: int) -> None:
        if self.lengths:
            self.arrivals.append((step, *self.lengths.popleft()))


@lru_cache(maxsize=1024)
def closed_loop_steps(load: ClosedLoop) -> ClosedLoopSteps:
    """Work out the steps of a benchmark as vLLM schedules it.

    Running decodes take one token each of the budget, then prompts in order of arrival take what
    is left (``vllm/v1/core/sched/scheduler.py: schedule``). The last chunk of a prompt yields the
    first token. Waiting for the step in flight and for the output of an asynchronous step is not
    counted here: alpha carries it.
    """
    requests = WAVES * load.concurrency
    draw = np.random.default_rng(load.seed)
    prompts, outputs = (
        draw.integers(max(int(SHORTEST_SHARE * n), 1), n + 1, requests)
        for n in (load.prompt_tokens, load.output_tokens)
    )
    lengths = deque(zip(prompts.tolist(), np.maximum(outputs, 2).tolist(), strict=True))
    engine = _Engine(load, lengths)
    for _ in range(load.concurrency):
        engine.send(0)
    while engine.arrivals or engine.waiting or engine.endings:
        _advance(engine)
    return _collect(engine, requests)


def _advance(engine: _Engine) -> None:
    """Run one step, or as many alike ones as nothing happens in."""
    while engine.arrivals and engine.arrivals[0][0] <= engine.step:
        _, prompt, output = engine.arrivals.popleft()
        engine.waiting.append([prompt, 0, output])
    if engine.waiting:
        _mixed_step(engine)
    elif engine.endings:
        _decode_steps(engine)
    else:
        engine.step = engine.arrivals[0][0]
    while engine.endings and engine.endings[0][0] < engine.step:
        _, context, output = heapq.heappop(engine.endings)
        engine.context -= context
        engine.tpot_weight -= 1 / (output - 1)
        engine.send(engine.step + 1)


def _decode_steps(engine: _Engine) -> None:
    last = engine.endings[0][0]
    if engine.arrivals:
        last = min(last, engine.arrivals[0][0] - 1)
    steps, decodes = last - engine.step + 1, len(engine.endings)
    middle = engine.context + decodes * (steps - 1) / 2
    _record(engine, steps, middle, chunks=(), pending=0)
    engine.context += decodes * steps
    engine.step += steps


def _mixed_step(engine: _Engine) -> None:
    budget = engine.load.max_num_batched_tokens - len(engine.endings)
    chunks, begun, pending = [], [], len(engine.waiting)
    while engine.waiting and budget > 0:
        request = engine.waiting[0]
        new = min(budget, request[0] - request[1])
        chunks.append((new, request[1]))
        request[1] += new
        budget -= new
        if request[1] == request[0]:
            begun.append(engine.waiting.popleft())
    _record(engine, 1, engine.context, chunks, pending)
    engine.context += len(engine.endings)
    engine.step += 1
    for prompt, _, output in begun:
        # The first token came with this step; output - 1 decode steps follow.
        ending = (engine.step + output - 2, float(prompt + output - 1), output)
        heapq.heappush(engine.endings, ending)
        engine.context += prompt
        engine.tpot_weight += 1 / (output - 1)


def _record(engine: _Engine, steps: int, context: float, chunks, pending: int) -> None:
    decodes, window = len(engine.endings), engine.load.window_tokens or np.inf
    new = np.array([c[0] for c in chunks], dtype=np.float64)
    cached = np.array([c[1] for c in chunks], dtype=np.float64)
    mean = context / decodes + 1 if decodes else 0.0
    sums = (
        float(len(chunks)),
        float(decodes),
        new.sum(),
        decodes * mean,
        cached.sum(),
        causal_pairs(new, cached).sum(),
        decodes * min(mean, window),
        np.minimum(cached, window).sum(),
        causal_pairs(new, cached, window).sum(),
    )
    engine.rows.append((*sums, steps * engine.tpot_weight, float(steps * pending)))


def _collect(engine: _Engine, requests: int) -> ClosedLoopSteps:
    table = np.array(engine.rows, dtype=np.float64)
    sums = BatchSums(*table[:, : len(fields(BatchSums))].T)
    return ClosedLoopSteps(sums, table[:, -2] / requests, table[:, -1] / requests)
