"""What the page to play with is to show, worked out with the package's own step times."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil, exp

import numpy as np

from pinn.physics.batch_sums import BatchSums, uniform_sums
from pinn.physics.costs import model_costs
from pinn.simulator.linear_latency import LinearLatency
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import step_features


@dataclass(frozen=True)
class Load:
    """What is asked of a server."""

    inFlight: int  # noqa: N815
    context: int
    prompt: int
    output: int


def work(latency: LinearLatency, decodes: float, context: float, *chunks: tuple) -> BatchSums:
    """Sums of decodes beside (count, tokens, cached) of chunks, fields of shape ``[1]``."""
    window = latency.deployment.model.window_tokens
    one = np.ones(1)
    total = uniform_sums(decode_requests=decodes * one, decode_context=context, window=window)
    for count, tokens, cached in chunks:
        more = uniform_sums(
            prefill_requests=count * one,
            prefill_tokens=tokens,
            prefill_cached=cached,
            window=window,
        )
        pairs = zip(vars(total).values(), vars(more).values(), strict=True)
        total = BatchSums(*(a + b for a, b in pairs))
    return total


def step_s(latency: LinearLatency, *batch: object) -> float:
    """Seconds of a step."""
    features = step_features(model_costs([latency.deployment]), work(latency, *batch))
    return float((features * latency.beta).sum())


def mean_chunks(prompt: int, most: int) -> float:
    """Steps that prompts of lengths evenly from 0.7 to 1.3 times one take: of each a quadrature."""
    edges = [0.7 * prompt, *(most * i for i in range(ceil(1.3 * prompt / most))), 1.3 * prompt]
    edges = [edge for edge in sorted(edges) if edges[0] <= edge]
    parts = pairwise(edges)
    return sum((b - a) * ceil((a + b) / 2 / most) for a, b in parts) / (edges[-1] - edges[0])


def served(latency: LinearLatency, load: Load) -> dict[str, float]:
    """Mean times of a closed loop, in seconds, and tokens/s."""
    budget = latency.deployment.recipe.token_budget
    others, prompt, output = load.inFlight - 1, load.prompt, load.output
    chunks = mean_chunks(prompt, max(budget - load.inFlight, 1))
    steps = max(
        output - 1 + chunks + (2 if others else 0), load.inFlight * (prompt + output - 1) / budget
    )
    decodes, prompts, size = others * (output - 1) / steps, others * chunks / steps, prompt / chunks
    held = load.context + prompt + output / 2
    room = max(budget - 1 - decodes, 1)
    busy = prompts * size / room
    chance = min(max(1 - (1 - chunks / steps) ** others, busy), 1) if others else 0
    beside = load.context + prompt * (chunks - 1) / (2 * chunks)
    alone = step_s(latency, 1 + decodes, held)
    mixed = alone
    if chance:
        mixed = step_s(latency, 1 + decodes, held, (prompts / chance, size, beside))
    tpot = (1 - chance) * alone + chance * mixed
    more = min(prompts, max(room + 1 - size, 0) / size)
    own = chunks * step_s(latency, decodes, held, (1, size, beside), (more, size, beside))
    waiting = 0.0
    if others:
        in_flight = ((1 - chance) * alone**2 + chance * mixed**2) / tpot
        waiting = in_flight / 2 + (steps - (output - 1) - chunks - 1) * tpot
    queue = min(busy / (2 * (1 - min(busy, 0.99))), others) * mixed * chunks
    alpha = dict(zip(REQUEST_FEATURES, latency.alpha, strict=True))
    assert not any(alpha[n] for n in alpha if n.endswith(("step_time", "_share", "caching")))
    server_s = (
        sum(alpha[f"{phase}.constant"] for phase in
            ("arrival_to_queue", "queue_to_schedule", "schedule_to_first_token", "output_token"))
        + alpha["arrival_to_queue.prompt_token"] * (load.context + prompt)
    )  # fmt: skip
    ttft = server_s + waiting + own + queue
    return {"tpot": tpot, "ttft": ttft, "tokens": rate(latency, load, tpot, ttft)}


def rate(latency: LinearLatency, load: Load, tpot: float, ttft: float) -> float:
    """Tokens/s of all clients."""
    whole = ttft + (load.output - 1) * tpot + latency.post_decode_fixed_overhead()
    return load.inFlight * load.output / whole


def ends(latency: LinearLatency, load: Load, found: dict, half: dict[str, float]) -> dict:
    """Both ends of the interval; TTFT's holds the steps in it."""
    step, first = half["tpot"], max(half.values())
    times = [(found["tpot"] * exp(s * step), found["ttft"] * exp(s * first)) for s in (-1, 1)]
    return {
        "tpot": [t for t, _ in times],
        "ttft": [t for _, t in times],
        "tokens": [rate(latency, load, *each) for each in times],
    }
