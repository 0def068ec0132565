"""A first guess of the rate that a replica holds, by a formula without queues: where to begin."""

from __future__ import annotations

import numpy as np

from pinn.planning.floor import step_seconds
from pinn.planning.limits import Limits
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.memory import kv_layout
from pinn.simulator.workloads.workload import Workload


def guessed_rates_per_s(
    workload: Workload, latency: LinearLatency, engine: EngineSpec, limits: Limits | None
) -> tuple[float, float]:
    """Rates of one replica at which all its time is used, and at which TPOT reaches its limit.

    With B requests decoding, a request takes output x decode(B) / B of the engine's time and its
    prompt what it adds to such a step. The largest rate over B is the first, over those B whose
    TPOT, prompts of others included, holds its limit the second.
    """
    recipe = latency.deployment.recipe
    output = float(workload.output_tokens.mean())
    shared = np.where(workload.shares_with >= 0, workload.shared_tokens, 0)
    if not recipe.prefix_caching:
        shared = 0 * shared
    ready = np.maximum(shared, workload.transferred_tokens)
    prompt = float(np.maximum(workload.prompt_tokens - ready, 1).mean())
    context = float(workload.prompt_tokens.mean()) + output / 2
    batch = _batches(workload, latency, engine)
    decodes: dict[str, float | np.ndarray] = {"decode_requests": batch, "decode_context": context}
    chunk = min(prompt, recipe.token_budget)
    decode_s = step_seconds(latency, **decodes)
    mixed_s = step_seconds(latency, **decodes, prefill_requests=1.0, prefill_tokens=chunk)
    prompt_s = (mixed_s - decode_s) * prompt / chunk
    drafts = recipe.speculation
    token_s = decode_s / (1.0 if drafts is None else drafts.tokens_per_step)
    # The replica's data-parallel ranks work side by side, pipeline stages on batches of their own.
    side_by_side = recipe.data_parallel_size * recipe.pipeline_parallel_size
    rate = side_by_side / (output * token_s / batch + prompt_s)
    tpot_s = token_s / np.maximum(1 - rate / side_by_side * prompt_s, 1e-3)
    limit_s = _tpot_limit_s(limits)
    held = rate[tpot_s <= limit_s]
    return float(rate.max()), float(held.max()) if len(held) else float(rate[0])


def _batches(workload: Workload, latency: LinearLatency, engine: EngineSpec) -> np.ndarray:
    """Batch sizes up to what ``max_num_seqs`` and the cache allow."""
    recipe, layout = latency.deployment.recipe, kv_layout(latency.deployment, engine)
    each = float(workload.prompt_tokens.mean() + workload.output_tokens.mean() / 2)
    cached = layout.blocks / float(layout.request_blocks(max(int(each), 1), recipe.block_tokens))
    most = min(recipe.max_requests, recipe.token_budget, cached, len(workload))
    return np.unique(np.geomspace(1, max(most, 1), 24).round())


def _tpot_limit_s(limits: Limits | None) -> float:
    if limits is None:
        return np.inf
    each = {} if limits.goodput is None else limits.goodput.seconds
    found = [x.seconds for x in limits.statistics if x.metric in ("tpot", "itl")]
    return min([*found, each.get("tpot", np.inf)])
