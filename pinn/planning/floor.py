"""Latencies that no rate can be low enough for: each request alone on an idle server.

Times of steps never fall with more requests in them (every coefficient is non-negative and every
feature grows with the batch), so a request among others takes at least as long. Left out is
everything outside the steps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float, Real

from pinn.physics.batch_sums import uniform_sums
from pinn.physics.speculation import deployment_features
from pinn.planning.limits import Latencies, Limits
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.workloads.workload import Workload

#: Lengths are rounded down to these many tokens, so that few different ones are timed.
_GRAIN_TOKENS = 64


def step_seconds(
    latency: LinearLatency, **requests: float | Real[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Seconds of steps whose requests are alike; arguments as of ``uniform_sums``."""
    sums = uniform_sums(**requests, window=latency.deployment.model.window_tokens)
    return np.asarray(deployment_features(latency.deployment, sums) @ latency.beta)


def floor_latencies_s(
    workload: Workload, latency: LinearLatency, prompts: LinearLatency
) -> Latencies:
    """Lower bounds of every request's TTFT, TPOT and E2E.

    Prompts are computed in chunks of the token budget, but for what they share with another
    request where the prefix cache is on, or had computed elsewhere. Pipeline stages may work on
    several chunks at once. Decodes are timed at the prompt's length; under speculation each may
    bring as many tokens as can be accepted.

    Args:
        workload: The requests.
        latency: Of what decodes.
        prompts: Of what computes prompts: the same, but where prefill and decode are apart.
    """
    recipe = prompts.deployment.recipe
    ready = workload.transferred_tokens
    if recipe.prefix_caching:
        ready = np.maximum(ready, np.where(workload.shares_with >= 0, workload.shared_tokens, 0))
    ready = np.minimum(ready, workload.prompt_tokens - 1)
    new = _rounded(workload.prompt_tokens - ready)
    known = ready // _GRAIN_TOKENS * _GRAIN_TOKENS
    pairs, place = np.unique(np.stack([new, known]), axis=1, return_inverse=True)
    ttft = np.array([_prefill_s(prompts, *pair) for pair in pairs.T.tolist()])[place.reshape(-1)]
    contexts, place = np.unique(_rounded(workload.prompt_tokens), return_inverse=True)
    decode = step_seconds(latency, decode_requests=1.0, decode_context=contexts)[place]
    speculation = latency.deployment.recipe.speculation
    if speculation is not None:
        decode = decode / (1 + len(speculation.acceptance))
    gaps = workload.output_tokens - 1.0
    tpot = np.where(gaps > 0, decode, np.nan)
    return {"ttft": ttft, "tpot": tpot, "e2e": ttft + decode * gaps}


def floor_excess(
    workload: Workload, latency: LinearLatency, prompts: LinearLatency, limits: Limits
) -> float:
    """The least that the worst latency can be, as a share of its limit: beyond 1 none holds it."""
    means = [limit for limit in limits.on_gaps if limit.percent is None]
    lone = floor_latencies_s(workload, latency, prompts)
    # A single gap may be short where tokens are streamed late; all together take their steps.
    weights = np.maximum(workload.output_tokens - 1, 0)
    some = weights > 0
    gaps = (lone["tpot"][some], weights[some])
    rest = [limit for limit in limits.statistics if limit.metric != "itl"]
    return replace(limits, statistics=(*rest, *means)).excess(lone, gaps)


def _prefill_s(latency: LinearLatency, new: float, known: float) -> float:
    """A lone prompt, chunk by chunk."""
    recipe = latency.deployment.recipe
    budget = recipe.token_budget if recipe.chunked_prefill else new
    starts = np.arange(0, new, budget, dtype=np.float64)
    chunks = np.minimum(new - starts, budget)
    seconds = step_seconds(
        latency, prefill_requests=1.0, prefill_tokens=chunks, prefill_cached=known + starts
    )
    return float(max(seconds.sum() / recipe.pipeline_parallel_size, seconds.max()))


def _rounded(tokens: np.ndarray) -> np.ndarray:
    """Rounded down, but to no less than 1."""
    return np.maximum(tokens // _GRAIN_TOKENS * _GRAIN_TOKENS, 1)
