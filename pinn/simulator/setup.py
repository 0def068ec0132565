"""The engine of a run, from deployment, workload and settings."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

from pinn.physics.costs import model_costs
from pinn.simulator.block_keys import block_keys
from pinn.simulator.engine import Engine, new_engine
from pinn.simulator.engine_spec import EngineSpec, api_servers
from pinn.simulator.memory import KvLayout, gpu_cache_tokens, max_model_len, tokens_beyond
from pinn.simulator.state import REJECTED, REQUEST, UNSENT
from pinn.simulator.workloads.workload import Workload
from pinn.specs.deployment import Deployment
from pinn.specs.recipe import (
    COMPLETION,
    GATHER,
    LEAST_LOADED,
    NEXT_STEP,
    PREFILL_FIRST,
    EffectiveRecipe,
)
from pinn.specs.scheduler_rules import ONE_BATCH, STAGGERED

#: Requests beyond the running ones whose keys and values may be on their way.
_LOADING_SLOTS = 256
_NO_WINDOW = 1 << 40


def set_up(
    deployment: Deployment,
    workload: Workload,
    spec: EngineSpec,
    layout: KvLayout,
    too_long: Bool[np.ndarray, " n"],
    sources: int = 1,
) -> Engine:
    """An idle engine with the workload's requests unsent.

    ``sources`` is the number of prefill workers whose keys and values it takes.
    """
    recipe = deployment.recipe
    keys, first_key, n_keys = np.zeros(0, np.int32), np.zeros(len(workload), np.int64), 0
    if recipe.prefix_caching:
        keys, first_key, n_keys = block_keys(workload, recipe.block_tokens)
    requests = np.zeros(len(workload), REQUEST)
    for name, column in (
        ("prompt", workload.prompt_tokens),
        ("output", workload.output_tokens),
        ("stage", workload.stage),
        ("transferred", np.minimum(workload.transferred_tokens, workload.prompt_tokens)),
        ("offset_s", workload.offset_s),
        ("timeout_s", workload.timeout_s),
        ("first_key", first_key),
        ("status", np.where(too_long, REJECTED, UNSENT)),
    ):
        requests[name] = column
    requests["slot"] = -1
    for name in ("handed_s", "queued_s", "scheduled_s", "first_s"):
        requests[name] = -1.0
    starts = workload.stage_starts_s if not workload.stages_wait else (workload.stage_starts_s[0],)
    sizes = np.bincount(workload.stage, minlength=workload.stages).astype(np.int64)
    settings = _settings(deployment, workload, spec, layout) | {"n_sources": sources}
    drafts = recipe.speculation
    given = {
        "requests": requests,
        "keys": keys,
        "stage_starts_s": np.array(starts, np.float64),
        "stage_sizes": sizes,
        "graph_size": _graph_sizes(recipe, int(settings["max_seqs"])),
        "chances": np.array(drafts.chances if drafts else (), np.float64),
    }
    return new_engine(settings, given, n_keys)


def _graph_sizes(recipe: EffectiveRecipe, seqs: int) -> np.ndarray:
    """What each number of decodes up to ``seqs`` is rounded up to."""
    decodes = np.arange(seqs + 1)
    sizes = np.array(recipe.graph_sizes, dtype=np.int64)
    place = np.searchsorted(sizes, decodes)
    captured = place < len(sizes)
    decodes[captured] = sizes[place[captured]]
    decodes[0] = 0
    return decodes


def _settings(
    deployment: Deployment, workload: Workload, spec: EngineSpec, layout: KvLayout
) -> dict[str, float]:
    recipe = deployment.recipe
    pipeline, replicas = recipe.pipeline_parallel_size, spec.replicas * recipe.data_parallel_size
    # vLLM lowers its default max_num_seqs to the token budget (``EngineArgs.
    # _set_default_max_num_seqs_and_batched_tokens_args``) and refuses a larger one.
    seqs = min(recipe.max_requests, len(workload))
    apart = recipe.schedule == PREFILL_FIRST
    if not apart:
        seqs = min(seqs, recipe.token_budget)
    drafts = recipe.speculation.tokens if recipe.speculation else 0
    overlap = recipe.overlap if spec.async_scheduling is None else spec.async_scheduling
    totals, size = workload.prompt_tokens + workload.output_tokens, recipe.block_tokens
    beyond = tokens_beyond(deployment)
    bytes_per_token = layout.block_bytes / size * layout.full_groups
    rules = recipe.scheduler
    ahead = overlap and pipeline > 1
    stagger = pipeline if ahead and rules.pipelined_decodes == STAGGERED else 0
    return {
        "max_tokens": recipe.token_budget,
        "max_seqs": seqs,
        "max_num_seqs": recipe.max_requests,
        "max_model_len": max_model_len(deployment),
        "block_size": size,
        # With a block for every token ever sent nothing is evicted, so more make no difference.
        "blocks": min(layout.blocks, int(layout.request_blocks(totals + beyond, size).sum())),
        "cache_blocks": layout.blocks,
        # A request may run one step past its end.
        "row": int(layout.request_blocks(totals.max() + 1 + beyond, size)) + 1,
        "slots": seqs + min(_LOADING_SLOTS, int((workload.transferred_tokens > 0).sum())),
        "long_prefill": spec.long_prefill_token_threshold,
        "window": deployment.model.window_tokens or _NO_WINDOW,
        "full_groups": layout.full_groups,
        "window_groups": layout.window_groups,
        "window_blocks": layout.window_blocks,
        "caching": recipe.prefix_caching,
        "chunked": recipe.chunked_prefill,
        "asynchronous": overlap,
        "one_batch": ahead and rules.pipelined_decodes == ONE_BATCH,
        "stagger": stagger,
        "whole_prompts": rules.whole_prompts,
        "uncached_first": rules.uncached_first,
        "cuts_lone_prompts": rules.cuts_lone_prompts,
        "awaits_preempted": rules.awaits_preempted,
        "prefill_first": apart,
        "prompt_budget": recipe.prompt_budget,
        "chunk_multiple": recipe.chunk_multiple,
        "reserves": recipe.admission == COMPLETION,
        "poll_interval": recipe.poll_interval,
        "prompt_wait_steps": recipe.prompt_wait_steps,
        "prompt_wait_tokens": recipe.prompt_wait_tokens,
        "waits_for_all": recipe.data_parallel_size > 1,
        "rounds_up": len(recipe.graph_sizes) > 0,
        "expected_share": recipe.admission_share,
        "drafts": drafts,
        "lookahead": drafts if deployment.draft and recipe.admission == NEXT_STEP else 0,
        "depth": pipeline + (stagger > 0) if pipeline > 1 else 1 + overlap,
        "pipeline": pipeline,
        "n_replicas": replicas,
        "n_groups": spec.replicas if _keep_step(deployment) else replicas,
        "n_copies": spec.replicas,
        "n_servers": spec.replicas * api_servers(deployment, spec),
        "one_process": not spec.v1_multiprocessing,
        "least_loaded": (spec.data_parallel_routing or recipe.routing) == LEAST_LOADED,
        "gpu_cache_tokens": gpu_cache_tokens(deployment),
        "most_reread": _most_reread(deployment),
        "tensor_parallel": deployment.serving.tensor_parallel_size,
        "concurrency": workload.concurrency or 0,
        "stages_wait": workload.stages_wait,
        "stage_gap_s": workload.stage_gap_s,
        "transfer_latency_s": spec.kv_transfer_latency_s,
        "transfer_token_s": bytes_per_token / spec.kv_transfer_bytes_per_s,
    }


def _keep_step(deployment: Deployment) -> bool:
    """Whether replicas step together: where experts exchange tokens, or layers gather them."""
    return deployment.model.moe is not None or deployment.recipe.expert_exchange == GATHER


def _most_reread(deployment: Deployment) -> float:
    """Share of the decodes' keys and values that need no reading before arithmetic takes longer."""
    costs = model_costs([deployment])
    read = costs.kv_read_s[0] + costs.windowed_kv_read_s[0]
    drafts = deployment.recipe.speculation
    queries = 1 + (drafts.tokens if drafts else 0)
    arithmetic = queries * (costs.decode_pair_s[0] + costs.windowed_decode_pair_s[0])
    return float(max(1 - arithmetic / read, 0.0))
