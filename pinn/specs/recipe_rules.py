"""From an engine's flags to what runs: the one place that knows the engines apart.

Flags that are not given come from the table of defaults (``pinn.specs.engine_defaults``); what no
flag sets, such as the kind of schedule, stands here with its source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from pinn.errors import PinnError
from pinn.specs.engine_defaults import models_named, release
from pinn.specs.expert_kernels import named_kernels
from pinn.specs.gpu import GpuSpec
from pinn.specs.graph_sizes import contiguous_sizes, sglang_sizes, trtllm_sizes
from pinn.specs.own_kernels import (
    ALL_REDUCE_LATENCY,
    DECODE_KERNELS,
    LATENT_LAUNCHES,
    MXFP4_KERNELS,
    QUANTIZING_ALL_REDUCE,
)
from pinn.specs.recipe import (
    ALL_TO_ALL,
    ASSUMED,
    COMPLETION,
    DEFAULT,
    DESIGN,
    ESTIMATE,
    FLAG,
    FREE,
    FUSED,
    GATHER,
    LEAST_LOADED,
    NEXT_STEP,
    PREFILL_FIRST,
    ROUND_ROBIN,
    STATIC,
    TOTAL,
    EffectiveRecipe,
    Origin,
)
from pinn.specs.recipe_fields import FLAGS, RecipeFields
from pinn.specs.scheduler_rules import SchedulerRules, vllm_rules
from pinn.specs.serving import DEEPEP, SGLANG, TRTLLM, VLLM, ServingSpec
from pinn.specs.speculation import NONE
from pinn.specs.speculation_rules import asked_speculation, fewer_requests, why_not_overlapped
from pinn.units import GIB, MIB

#: Share of an output that SGLang expects at first (0.5.9 environ.py: SGLANG_INIT_NEW_TOKEN_RATIO),
#: and what attention data parallelism makes of it (server_args.py: _handle_data_parallelism).
_EXPECTED_SHARE, _EXPECTED_SHARE_OF_DP = 0.7, 0.3


def effective_recipe(
    serving: ServingSpec,
    gpu: GpuSpec,
    model_type: str = "",
    said_by: Mapping[str, str] | None = None,
) -> EffectiveRecipe:
    """What runs under flags on a GPU.

    Args:
        serving: The engine's flags.
        gpu: What it runs on.
        model_type: ``model_type`` of the model's config.json; some defaults depend on it.
        said_by: Flag to who gave it, such as a launch script and its date, for the origins.

    Raises:
        PinnError: If the sizes do not fit together, or the version is no release.
    """
    asks = serving.speculative_config != NONE or model_type in models_named(serving.engine)
    decides = model_type if asks else ""
    if said_by:
        return _recipe(serving, gpu, decides, said_by)
    return _shared_recipe(serving, gpu, decides, tuple(map(type, vars(serving).values())))


@lru_cache(maxsize=4096)
def _shared_recipe(
    serving: ServingSpec, gpu: GpuSpec, model_type: str, _kinds: tuple[type, ...]
) -> EffectiveRecipe:
    """The one recipe of all models that flags and defaults do not tell apart.

    Flags of other types are apart, since 1 and 1.0 are equal and a recipe shows them as given.
    """
    return _recipe(serving, gpu, model_type, {})


def _recipe(
    serving: ServingSpec, gpu: GpuSpec, model_type: str, said_by: Mapping[str, str]
) -> EffectiveRecipe:
    found = RecipeFields(serving, gpu, model_type, said_by)
    _settle_parallelism(found)
    _settle_what_flags_say(found)
    _settle_all_reduce(found)
    _settle_kernels(found)
    _settle_speculation(found)
    _settle_prompt_wait(found)
    found.put("scheduler", SchedulerRules(), "vLLM alone has rules that change")
    {VLLM: _settle_vllm, SGLANG: _settle_sglang, TRTLLM: _settle_trtllm}[serving.engine](found)
    return found.recipe()


def _settle_what_flags_say(found: RecipeFields) -> None:
    """What one flag sets in every engine."""
    found.take("token_budget", "max_num_batched_tokens")
    found.take("max_requests", "max_num_seqs")
    found.take("chunked_prefill", "enable_chunked_prefill")
    found.take("overlap", "async_scheduling")
    found.take("kv_cache_dtype", "kv_cache_dtype")
    found.take("prefix_caching", "enable_prefix_caching")
    found.take("block_tokens", "block_size")
    found.take("fused_all_reduce", "fuse_all_reduce")
    found.take("moe_kernels", "moe_backend", named_kernels)
    found.take("sampler", "sampling_backend")


def _settle_parallelism(found: RecipeFields) -> None:
    serving = found.serving
    found.take("pipeline_parallel_size", "pipeline_parallel_size")
    if serving.engine == VLLM:
        found.take("tensor_parallel_size", "tensor_parallel_size")
        found.take("data_parallel_size", "data_parallel_size")
    else:
        _settle_attention_ranks(found)
    ranks = found.values["tensor_parallel_size"] * found.values["data_parallel_size"]
    spread, origin = ranks, found.look_up("enable_expert_parallel")[1]
    if serving.moe_a2a_backend == DEEPEP:
        # sglang 0.5.9 server_args.py: _handle_a2a_moe sets ep_size to tp_size.
        origin = found.look_up("moe_a2a_backend")[1]
    elif not serving.enable_expert_parallel:
        # vLLM flattens tensor and data parallel ranks for the experts either way
        # (``FusedMoEParallelConfig.make``): whole experts with the flag, slices without.
        spread = serving.ep_size or 1
        origin = found.look_up("ep_size")[1] if serving.ep_size else origin
    if ranks % spread:
        raise PinnError(
            f"{FLAGS['ep_size'].spelled_for(serving.engine)} {spread} does not divide the {ranks} "
            f"GPUs of a replica: use a divisor of {ranks}"
        )
    found.values["expert_parallel_size"] = spread
    found.values["expert_tensor_parallel_size"] = ranks // spread
    found.origins["expert_parallel_size"] = found.origins["expert_tensor_parallel_size"] = origin


def _settle_attention_ranks(found: RecipeFields) -> None:
    """SGLang and TensorRT-LLM count all GPUs as tensor parallel ones.

    Attention data parallelism takes its ranks from among them: as many as ``dp_size`` in SGLang
    (0.5.9 layers/dp_attention.py: compute_dp_attention_world_info), all in TensorRT-LLM
    (tensorrt_llm/mapping.py: attn_tp_size is 1 under enable_attention_dp).
    """
    serving = found.serving
    gpus, replicas = serving.tensor_parallel_size, serving.data_parallel_size
    if serving.engine == TRTLLM and serving.enable_dp_attention:
        if replicas not in (1, gpus):
            raise PinnError(
                f"enable_attention_dp attends on each of {gpus} GPUs: leave the data-parallel "
                f"size {replicas} out"
            )
        replicas = gpus
    if replicas > 1 and not serving.enable_dp_attention:
        raise PinnError(
            f"a data-parallel size of {replicas} without attention data parallelism starts "
            f"{serving.engine} servers of their own: predict one with its share of the load, or "
            "add --enable-dp-attention"
        )
    if gpus % replicas:
        raise PinnError(
            f"{replicas} attention replicas do not divide {gpus} GPUs: use a divisor of {gpus}"
        )
    origin = found.look_up("tensor_parallel_size")[1]
    if serving.enable_dp_attention:
        origin = found.look_up("enable_dp_attention")[1]
    for name, value in (
        ("tensor_parallel_size", gpus // replicas), ("data_parallel_size", replicas)
    ):  # fmt: skip
        found.values[name], found.origins[name] = value, origin


def _settle_all_reduce(found: RecipeFields) -> None:
    """How long the engine's own all-reduce takes; without NVLink all run NCCL."""
    latency, source = ALL_REDUCE_LATENCY[found.serving.engine]
    if not found.gpu.has_nvlink:
        latency, source = 1.0, "no NVLink: every engine runs NCCL beyond two GPUs"
    found.put("all_reduce_latency", latency, source)
    quantizes = found.serving.engine == TRTLLM and found.values["fused_all_reduce"]
    found.put("fused_quantization", quantizes, QUANTIZING_ALL_REDUCE, ASSUMED)


def _settle_kernels(found: RecipeFields) -> None:
    """Which kernels of its own an engine runs, and what it launches where no graph does."""
    launches, source = LATENT_LAUNCHES[found.serving.engine]
    kind = DESIGN if found.serving.engine == VLLM else ASSUMED
    found.put("latent_launches", launches, source, kind)
    found.put("decode_kernels", *DECODE_KERNELS[found.serving.engine])
    found.put("mxfp4_kernels", *MXFP4_KERNELS[found.serving.engine])


def _settle_prompt_wait(found: RecipeFields) -> None:
    """How long prompts wait for others in TensorRT-LLM's ``py_executor.py``.

    ``_waiting_requests``, and ``_balance_adp_requests`` under attention data parallelism.
    """
    if found.serving.engine != TRTLLM:
        for name in ("prompt_wait_steps", "prompt_wait_tokens"):
            found.put(name, 0, "TensorRT-LLM alone lets prompts wait for others")
        return
    ranks = found.values["data_parallel_size"]
    steps = "batch_wait_timeout_iters" if ranks == 1 else "attention_dp_timeout_iters"
    found.take("prompt_wait_steps", steps)
    budget = found.values["token_budget"]
    found.take(
        "prompt_wait_tokens",
        "batch_wait_max_tokens_ratio",
        lambda ratio: math.ceil(ratio * budget) if ranks == 1 else 0,
    )


def _settle_speculation(found: RecipeFields) -> None:
    """What is drafted, and what the engine turns off or lowers for it."""
    drafts, origin = asked_speculation(found.serving, found.model_type)
    found.put("speculation", drafts, origin.text, origin.kind)
    if drafts is None:
        return
    alone = why_not_overlapped(found.serving.engine, drafts.method)
    if alone:
        found.put("overlap", False, alone, ASSUMED)
    fewer = fewer_requests(found.serving, drafts.method, found.values["data_parallel_size"])
    if fewer is not None:
        found.put("max_requests", fewer, "sglang 0.5.9 server_args.py, as remembered", ASSUMED)


def _settle_vllm(found: RecipeFields) -> None:
    """``vllm/v1/core/sched/scheduler.py`` of 0.15.1 and its docs."""
    found.put("scheduler", *vllm_rules(release(found.version)))
    source = "vllm 0.15.1 vllm/v1/core/sched/scheduler.py"
    found.put("schedule", FUSED, source)
    found.put("prompt_budget", found.values["token_budget"], source)
    found.put("chunk_multiple", 1, source)
    found.put("admission", NEXT_STEP, source)
    found.put("admission_share", 0.0, source)
    found.put("poll_interval", 1, "vllm 0.15.1 vllm/v1/engine/core.py: _process_input_queue")
    found.put("routing", LEAST_LOADED, "vllm 0.15.1 vllm/v1/engine/core_client.py")
    found.put("expert_exchange", ALL_TO_ALL, "dispatch and combine as the features count them")
    found.take("memory_share", "gpu_memory_utilization")
    found.put("memory_share_of", TOTAL, "vllm 0.15.1 vllm/v1/worker/gpu_worker.py")
    limit, origin = found.look_up("max_cudagraph_capture_size")
    if origin.kind != FLAG:
        drafts = found.values["speculation"]
        rows = 1 + (drafts.tokens if drafts else 0)
        limit = min(2 * rows * found.values["max_requests"], limit)
    _put_graphs(found, limit, 0, (), origin)


def _settle_sglang(found: RecipeFields) -> None:
    """``sglang/srt/managers/scheduler.py`` and ``schedule_policy.py`` of 0.5.9."""
    serving, values = found.serving, found.values
    source = "sglang 0.5.9 managers/scheduler.py: get_next_batch_to_run"
    adder = "sglang 0.5.9 managers/schedule_policy.py: PrefillAdder"
    replicas = values["data_parallel_size"]
    # server_args.py: _handle_data_parallelism; model_runner.py: max_running_requests.
    values["token_budget"] = max(values["token_budget"] // replicas, 1)
    if serving.max_num_seqs is not None:
        values["max_requests"] = max(values["max_requests"] // replicas, 1)
    found.put("schedule", PREFILL_FIRST, source)
    found.take("prompt_budget", "max_prefill_tokens")
    found.put("chunk_multiple", values["block_tokens"], adder)
    found.put("admission", ESTIMATE, adder)
    share = _EXPECTED_SHARE * (_EXPECTED_SHARE_OF_DP if serving.enable_dp_attention else 1.0)
    found.put("admission_share", min(share * serving.schedule_conservativeness, 1.0), adder)
    found.take("poll_interval", "scheduler_recv_interval")
    if values["poll_interval"] > 1 and serving.enable_dp_attention:
        raise PinnError(
            "sglang refuses --scheduler-recv-interval with --enable-dp-attention: leave one out"
        )
    found.put("routing", ROUND_ROBIN, "sglang 0.5.9 server_args.py: _handle_load_balance_method")
    found.take(
        "expert_exchange", "moe_a2a_backend", {"none": GATHER, DEEPEP: ALL_TO_ALL}.__getitem__
    )
    if serving.enable_dp_attention:
        found.put("fused_all_reduce", False, "sglang 0.5.9: not with attention data parallelism")
    limit, origin = found.look_up("max_cudagraph_capture_size")
    padded = found.look_up("cudagraph_padding")[0]
    sizes = sglang_sizes(limit) if padded else contiguous_sizes(limit)
    _put_graphs(found, 1, limit, sizes, origin)
    _put_static_share(found, limit)


def _put_static_share(found: RecipeFields, graphs: int) -> None:
    """What SGLang reserves (0.5.9 server_args.py: _handle_gpu_memory_settings), in MiB."""
    serving = found.serving
    if serving.gpu_memory_utilization is not None:
        found.take("memory_share", "gpu_memory_utilization")
    else:
        total, replicas = found.gpu.memory_bytes / MIB, found.values["data_parallel_size"]
        chunk = found.look_up("max_num_batched_tokens")[0]
        gpus = serving.tensor_parallel_size * serving.pipeline_parallel_size
        reserve = 512 + max(chunk, 2048) * 1.5 + graphs * 2 + gpus / 8 * 1024
        if serving.enable_dp_attention:
            reserve += graphs * replicas * (4.5 if graphs > 300 else 3)
        if found.gpu.memory_bytes > 60 * GIB:
            reserve = max(reserve, 10 * 1024)
        share = round((total - reserve) / total, 3)
        source = "sglang 0.5.9 server_args.py: _handle_gpu_memory_settings"
        found.put("memory_share", share, source, DEFAULT)
    found.put("memory_share_of", STATIC, "sglang 0.5.9 model_runner.py: profile_max_num_token")


def _settle_trtllm(found: RecipeFields) -> None:
    """TensorRT-LLM's PyTorch backend: ``tensorrt_llm/_torch/pyexecutor``."""
    values = found.values
    scheduler = "tensorrt_llm/_torch/pyexecutor/scheduler.py, microBatchScheduler.cpp"
    found.put("schedule", FUSED, scheduler)
    found.put("prompt_budget", values["token_budget"], scheduler)
    found.put("chunk_multiple", values["block_tokens"], scheduler)
    found.put("admission", COMPLETION, "llm_args.py: capacity_scheduler_policy GUARANTEED_NO_EVICT")
    found.put("admission_share", 1.0, "llm_args.py: capacity_scheduler_policy GUARANTEED_NO_EVICT")
    found.put("poll_interval", 1, "tensorrt_llm/_torch/pyexecutor/py_executor.py")
    found.put("routing", LEAST_LOADED, "py_executor.py: _balance_adp_requests")
    # As many copies of a token as ranks, or as experts of a token where those are fewer.
    found.put(
        "expert_exchange",
        ALL_TO_ALL,
        "_torch/modules/fused_moe: a gather, all-to-all where ranks outnumber a token's experts, "
        "as remembered",
        ASSUMED,
    )
    found.take("memory_share", "gpu_memory_utilization")
    found.put("memory_share_of", FREE, "llm_args.py: KvCacheConfig.free_gpu_memory_fraction")
    limit, origin = found.look_up("max_cudagraph_capture_size")
    limit = min(limit, values["max_requests"])
    sizes = trtllm_sizes(limit, found.look_up("cudagraph_padding")[0])
    _put_graphs(found, 1, sizes[-1], sizes, origin)


def _put_graphs(
    found: RecipeFields, tokens: int, requests: int, sizes: tuple[int, ...], origin: Origin
) -> None:
    """Settle what is launched as CUDA graphs; nothing with ``--enforce-eager``."""
    if found.serving.enforce_eager:
        tokens, requests, sizes = 0, 0, ()
        origin = found.look_up("enforce_eager")[1]
    for name, value in (
        ("graph_tokens", tokens), ("graph_requests", requests), ("graph_sizes", sizes)
    ):  # fmt: skip
        found.values[name], found.origins[name] = value, origin
