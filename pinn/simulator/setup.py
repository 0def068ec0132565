"""Initial state of a simulation: arrays of the engine, and checks of the requests."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Int

from pinn.common.documents import MOST_ENGINE_BYTES, check_size
from pinn.engines import recipe as recipes
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec, api_servers
from pinn.engines.routers import KV_USE, PREFIX_CACHE, QUEUE, ROUTERS
from pinn.errors import PinnError
from pinn.memory.host_tier import (
    ARC,
    BY_JOB,
    BY_NODE,
    BY_REQUEST,
    BY_STEP,
    HostTier,
    host_tier,
)
from pinn.memory.kv_layout import KvLayout, gpu_cache_tokens, max_model_len, tokens_beyond
from pinn.physics.costs import model_costs
from pinn.simulator import engine, state
from pinn.simulator.compiler import compiled
from pinn.simulator.workloads.workload import Workload
from pinn.specs.pooling import check_output
from pinn.surrogate.group_features import shares_experts

# Keys of KV blocks: integers that are equal if vLLM's chained block hashes would be equal.


def block_keys(
    workload: Workload, block_size: int
) -> tuple[Int[np.ndarray, " keys"], Int[np.ndarray, " n"], int]:
    """Return the keys of every full block of every request's prompt and output.

    A request may begin with tokens of an earlier request, its donor. A block's hash covers all
    tokens up to its end (``vllm/v1/core/kv_cache_utils.py: hash_block_tokens``). The hash therefore
    equals the donor's if the shared tokens reach the block's end. A request that continues all
    blocks of its donor, such as the next turn of a conversation, shares the donor's array of keys.

    Returns:
        The keys, the offset of each request's first key, and the number of distinct keys.
    """
    full = (workload.prompt_tokens + workload.generated_tokens) // block_size
    shared = np.where(workload.shares_with >= 0, workload.shared_tokens // block_size, 0)
    donors = np.maximum(workload.shares_with, 0)
    shared = np.minimum(shared, np.minimum(full, full[donors]))
    place, sizes = np.empty(len(full), np.int64), np.zeros(len(full), np.int64)
    _find_places(place, sizes, full, donors, shared)
    check_size(
        float(sizes.sum()) * np.dtype(np.int32).itemsize,
        MOST_ENGINE_BYTES,
        "the size of the block hashes of all prompts in bytes",
        "send fewer or shorter requests, or turn prefix caching off",
    )
    first = (np.cumsum(sizes) - sizes)[place]
    keys = np.empty(int(sizes.sum()), np.int32)
    return keys, first, int(_fill(keys, first, full, donors, shared))


@compiled
def _find_places(
    place: np.ndarray, sizes: np.ndarray, full: np.ndarray, donors: np.ndarray, shared: np.ndarray
) -> None:
    """Find the array of block keys that each request uses.

    Requests with shared prompts can share an array. ``place`` receives the index of the request
    that owns the array, and ``sizes`` the number of keys in each array.
    """
    ends = np.ones(len(full), np.bool_)  # whether the last key of the array is the request's own
    for r in range(len(full)):
        d = donors[r]
        place[r] = r
        if d < r and 0 < full[d] == shared[r] and (ends[d] or full[r] == full[d]):
            place[r], ends[r], ends[d] = place[d], ends[d], False
        sizes[place[r]] = max(sizes[place[r]], full[r])


@compiled
def _fill(
    keys: np.ndarray, first: np.ndarray, full: np.ndarray, donors: np.ndarray, shared: np.ndarray
) -> int:
    fresh = 0
    for r in range(len(first)):
        begin = shared[r] if first[r] == first[donors[r]] else 0
        for i in range(begin, full[r]):
            if i < shared[r]:
                keys[first[r] + i] = keys[first[donors[r]] + i]
            else:
                keys[first[r] + i] = fresh
                fresh += 1
    return fresh


# Checks before a run. Each error states the number that exceeds a limit.


def check_run(
    deployment: Deployment, workload: Workload, engine: EngineSpec, layout: KvLayout
) -> Bool[np.ndarray, " n"]:
    """Check that a deployment can serve a workload.

    Returns:
        Mask of the requests that the server rejects with an error.

    Raises:
        PinnError: If flags contradict each other, or a request exceeds max_model_len or the KV
            cache.
    """
    check_output(deployment.model, int(workload.output_tokens.max(initial=0)))
    _check_settings(deployment, workload, engine)
    too_long = _too_long(deployment, workload, engine)
    _check_cache_holds(deployment, workload, layout, too_long)
    return too_long


def _check_settings(deployment: Deployment, workload: Workload, engine: EngineSpec) -> None:
    """Check flags for contradictions and for settings that the simulator does not model.

    The checks include vLLM's ``SchedulerConfig.verify_max_model_len``. TensorRT-LLM rejects prompts
    beyond its token budget. Only vLLM's KV connectors are modelled.
    """
    recipe, longest = deployment.recipe, max_model_len(deployment)
    if recipe.schedule == recipes.PREFILL_FIRST and recipe.pipeline_parallel_size > 1:
        raise PinnError(
            "pipeline parallelism is not modelled for engines with separate prefill and decode "
            "steps: omit --pipeline-parallel-size"
        )
    if engine.offloads and (workload.transferred_tokens > 0).any():
        raise PinnError(
            "transfers from a prefill server (column transferred_tokens) are not "
            "modelled together with KV offloading: remove the column, or omit "
            "--kv-offloading-size, --kv-transfer-config and "
            "--enable-hierarchical-cache"
        )
    if recipe.admission == recipes.NEXT_STEP:
        if not recipe.chunked_prefill and recipe.token_budget < longest:
            raise PinnError(
                f"--max-num-batched-tokens {recipe.token_budget} is smaller than "
                f"--max-model-len {longest}, and chunked prefill is off: raise "
                "--max-num-batched-tokens, lower --max-model-len, or leave "
                "chunked prefill on"
            )
        return
    whole = recipe.admission == recipes.COMPLETION and not recipe.chunked_prefill
    prompt = int(workload.prompt_tokens.max())
    if whole and prompt > recipe.token_budget:
        raise PinnError(
            f"a prompt of {prompt} tokens exceeds max_num_tokens "
            f"{recipe.token_budget}, and chunked prefill is off: raise "
            "max_num_tokens, or give --enable-chunked-prefill"
        )
    if (workload.transferred_tokens > 0).any():
        raise PinnError(
            "transfers from a prefill server (column transferred_tokens) are "
            "modelled with --engine vllm only: remove the column"
        )


def _too_long(deployment: Deployment, workload: Workload, engine: EngineSpec) -> np.ndarray:
    """Return a mask of the requests that the server rejects (``OpenAIServing._validate_input``)."""
    longest = max_model_len(deployment)
    total = workload.prompt_tokens + workload.output_tokens
    too_long = total > longest
    if too_long.any() and not engine.reject_long_requests:
        r = int(too_long.argmax())
        raise PinnError(
            f"request {r} has {workload.prompt_tokens[r]} prompt and {workload.output_tokens[r]} "
            f"output tokens, {total[r]} together, more than --max-model-len {longest} "
            f"({int(too_long.sum())} of {len(workload)} requests do): raise --max-model-len, or "
            f"shorten the requests"
        )
    return too_long


def _check_cache_holds(
    deployment: Deployment, workload: Workload, layout: KvLayout, too_long: np.ndarray
) -> None:
    tokens = np.where(too_long, 0, workload.prompt_tokens + workload.generated_tokens)
    longest = np.maximum(max_model_len(deployment), tokens)
    tokens = np.minimum(tokens + tokens_beyond(deployment), longest)
    size = deployment.recipe.block_tokens
    needed = int(layout.request_blocks(tokens.max(), size))
    if needed > layout.blocks:
        raise PinnError(
            f"request {int(tokens.argmax())} needs {needed} KV cache blocks of {size} tokens for "
            f"its {int(tokens.max())} tokens, but the GPU has room for {layout.blocks} blocks: "
            "shorten the requests, or leave more GPU memory to the KV cache"
        )


# Construction of a run's engine from deployment, workload and settings.

#: Maximum number of requests with a KV transfer in flight, in addition to the running requests.
_LOADING_SLOTS = 256
_NO_WINDOW = 1 << 40


def set_up(
    deployment: Deployment,
    workload: Workload,
    spec: EngineSpec,
    layout: KvLayout,
    too_long: Bool[np.ndarray, " n"],
    sources: int = 1,
    *,
    serves: bool = True,
) -> engine.Engine:
    """Return an idle engine that has sent no request of the workload yet.

    ``sources`` is the number of prefill workers that send keys and values. If ``serves`` is false,
    the engine only represents the clients of a fleet.
    """
    recipe = deployment.recipe
    keys, first_key, n_keys = np.zeros(0, np.int32), np.zeros(len(workload), np.int64), 0
    tier = host_tier(deployment, spec, layout) if serves else None
    if serves and (recipe.prefix_caching or tier):
        keys, first_key, n_keys = block_keys(workload, recipe.block_tokens)
    requests = np.zeros(len(workload), state.REQUEST)
    requests["prompt"], requests["output"] = workload.prompt_tokens, workload.generated_tokens
    transferred = np.minimum(workload.transferred_tokens, workload.prompt_tokens)
    requests["transferred"], requests["first_key"] = transferred, first_key
    for name in ("stage", "offset_s", "timeout_s"):
        requests[name] = getattr(workload, name)
    requests["follows"], requests["follower"] = workload.follows >= 0, workload.followers
    requests["status"] = np.where(too_long, state.REJECTED, state.UNSENT)
    for name in ("slot", "handed_s", "queued_s", "scheduled_s", "first_s"):
        requests[name] = -1
    stages = np.zeros(workload.stages, state.STAGE)
    starts_s = workload.stage_starts_s
    stages["start_s"] = starts_s[0] if workload.stages_wait else starts_s
    stages["size"] = np.bincount(workload.stage, minlength=workload.stages)
    settings = _settings(deployment, workload, spec, layout) | {"n_sources": sources}
    if tier:
        settings |= _tier_settings(tier, settings, n_keys)
        full = (workload.prompt_tokens + workload.generated_tokens) // recipe.block_tokens
        requests["first_seen"] = np.cumsum(full) - full
        settings["n_seen"] = full.sum()
    if not serves:
        settings |= {"blocks": 1, "row": 1, "slots": 1, "max_seqs": 1, "depth": 1}
    drafts = recipe.speculation
    given = {
        "requests": requests,
        "keys": keys,
        "stages": stages,
        "graph_size": _graph_sizes(recipe, int(settings["max_seqs"])),
        "chances": np.array(drafts.chances if drafts else (), np.float64),
    }
    return engine.new_engine(settings, given, n_keys)


def _graph_sizes(recipe: recipes.EffectiveRecipe, seqs: int) -> np.ndarray:
    """Return the padded CUDA graph size for each number of decodes from 0 to ``seqs``."""
    decodes = np.arange(seqs + 1)
    sizes = np.array([0, *recipe.graph_sizes], dtype=np.int64)
    captured = decodes <= sizes[-1]
    decodes[captured] = sizes[np.searchsorted(sizes, decodes[captured])]
    return decodes


def _settings(
    deployment: Deployment, workload: Workload, spec: EngineSpec, layout: KvLayout
) -> dict[str, float]:
    recipe, rules = deployment.recipe, deployment.recipe.scheduler
    pipeline, replicas = recipe.pipeline_parallel_size, spec.replicas * recipe.data_parallel_size
    # vLLM lowers its default max_num_seqs to the token budget (``EngineArgs.
    # _set_default_max_num_seqs_and_batched_tokens_args``) and refuses a larger
    # max_num_seqs.
    seqs = min(recipe.max_requests, len(workload))
    apart = recipe.schedule == recipes.PREFILL_FIRST
    if not apart:
        seqs = min(seqs, recipe.token_budget)
    drafts = recipe.speculation.tokens if recipe.speculation else 0
    totals, size = workload.prompt_tokens + workload.generated_tokens, recipe.block_tokens
    beyond = tokens_beyond(deployment)
    # Replicas step together if their model has experts, or if their layers gather tokens.
    keep_step = deployment.model.moe is not None or recipe.expert_exchange == recipes.GATHER
    ahead = recipe.overlap and pipeline > 1
    stagger = pipeline if ahead and rules.pipelined_decodes == recipes.STAGGERED else 0
    # Copy all settings whose names equal fields of ``Config``.
    known, names = (recipe, rules, layout, workload), engine.CONFIG_FIELDS
    named = {n: getattr(each, n) for each in known for n in names if hasattr(each, n)}
    return named | {
        "max_seqs": seqs,
        "max_model_len": _scheduled_len(deployment, workload),
        # More blocks than all requests need together make no difference, except in SGLang's
        # admission, which keeps some blocks free (``schedule_policy.py: add_one_req``).
        "blocks": min(
            layout.blocks,
            int(layout.request_blocks(totals + beyond, size).sum()) + apart * (len(workload) + 1),
        ),
        # A request may run one step beyond its end, for which it needs one more block.
        "row": int(layout.request_blocks(totals.max() + 1 + beyond, size)) + 1,
        "slots": seqs + min(_LOADING_SLOTS, int((workload.transferred_tokens > 0).sum())),
        "long_prefill": spec.long_prefill_token_threshold,
        "window": deployment.model.window_tokens or _NO_WINDOW,
        "asynchronous": recipe.overlap,
        "one_batch": ahead and rules.pipelined_decodes == recipes.ONE_BATCH,
        "stagger": stagger,
        "prefill_first": apart,
        "reserves": recipe.admission == recipes.COMPLETION,
        "waits_for_all": recipe.data_parallel_size > 1,
        "shares_experts": shares_experts(deployment),
        "prompt_interval": prompt_interval(deployment),
        "drafts": drafts,
        "lookahead": drafts if deployment.draft and recipe.admission == recipes.NEXT_STEP else 0,
        "depth": pipeline + (stagger > 0) if pipeline > 1 else 1 + recipe.overlap,
        "n_replicas": replicas,
        "n_groups": spec.replicas if keep_step else replicas,
        "n_copies": spec.replicas,
        "n_servers": spec.replicas * api_servers(deployment, spec),
        "one_process": not spec.v1_multiprocessing,
        **_router_settings(spec),
        "kv_blocks": layout.blocks,
        "least_loaded": (spec.data_parallel_routing or recipe.routing) == recipes.LEAST_LOADED,
        "gpu_cache_tokens": gpu_cache_tokens(deployment),
        "most_reread": _most_reread(deployment),
        "concurrency": workload.concurrency or 0,
        "transfer_latency_s": spec.kv_transfer_latency_s,
        "transfer_token_s": layout.token_bytes(size) / spec.kv_transfer_bytes_per_s,
    }


def _router_settings(spec: EngineSpec) -> dict[str, float]:
    weights = spec.scorer_weights
    return {
        "router": 1 + ROUTERS.index(spec.router) if spec.router else state.NO_ROUTER,
        "router_interval_s": spec.router_staleness_s,
        "prefix_weight": weights[PREFIX_CACHE],
        "queue_weight": weights[QUEUE],
        "usage_weight": weights[KV_USE],
    }


def prompt_interval(deployment: Deployment) -> int:
    """Return the number of steps from one step with prompts to the next; 1 for no throttling."""
    paced = deployment.recipe.scheduler.paces_alone or shares_experts(deployment)
    return deployment.serving.prefill_schedule_interval if paced else 1


_TIERS = {
    BY_REQUEST: state.BY_REQUEST,
    BY_JOB: state.BY_JOB,
    BY_STEP: state.BY_STEP,
    BY_NODE: state.BY_NODE,
}


def _tier_settings(tier: HostTier, settings: Mapping[str, float], keys: int) -> dict[str, float]:
    """Return the engine's settings of a second KV tier by name.

    The number of chunks is limited to the number of block keys, since a run cannot fill more.
    """
    seqs = int(settings["max_seqs"])
    return {
        "tier": _TIERS[tier.kind],
        "tier_chunks": min(tier.chunks, keys + 1),
        "tier_chunk_blocks": tier.chunk_blocks,
        "tier_arc": tier.policy == ARC,
        "tier_prompt_only": tier.prompt_only,
        "tier_skips_unknown": tier.skips_unknown,
        "defers_frees": tier.kind == BY_JOB and settings["depth"] > 1,
        "tier_hits": tier.hits,
        "tier_unified": tier.unified,
        "tier_layers": tier.layers,
        "host_latency_s": tier.latency_s,
        "host_block_s": tier.block_s,
        "slots": 2 * seqs + _LOADING_SLOTS,
    }


def _scheduled_len(deployment: Deployment, workload: Workload) -> int:
    """Return ``max_model_len``, plus one if a request without output fills it.

    vLLM reserves no slot for a sampled token if a request samples none (``Scheduler.__init__``,
    ``num_sampled_tokens_per_step``).
    """
    longest = max_model_len(deployment)
    fills = (workload.output_tokens == 0) & (workload.prompt_tokens == longest)
    return longest + int(fills.any())


def _most_reread(deployment: Deployment) -> float:
    """Return the maximum share of decodes' KV reads for which L2 cache hits save time.

    Beyond this share, attention's arithmetic takes longer than the remaining reads.
    """
    costs, drafts = model_costs([deployment]), deployment.recipe.speculation
    read = costs.kv_read_s[0] + costs.windowed_kv_read_s[0]
    queries = 1 + drafts.tokens if drafts else 1
    arithmetic = queries * (costs.decode_pair_s[0] + costs.windowed_decode_pair_s[0])
    return float(max(1 - arithmetic / read, 0.0))
