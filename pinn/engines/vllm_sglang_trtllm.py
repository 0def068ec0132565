"""Effects of flags that differ between vLLM, SGLang and TensorRT-LLM."""

import math
from dataclasses import dataclass
from itertools import chain, takewhile

from pinn.engines import recipe
from pinn.engines.recipe import Origin, RecipeFields, Release, release, vllm_rules
from pinn.errors import PinnError
from pinn.specs.config_fields import is_type
from pinn.specs.serving import DEEPEP, FULL_DECODE_ONLY, NO_GRAPHS, PIECEWISE, SGLANG, TRTLLM, VLLM
from pinn.specs.speculation import NONE
from pinn.units import MIB

# CUDA graph sizes: numbers of decodes for which the engines capture graphs.


def contiguous_sizes(most: int) -> tuple[int, ...]:
    """Return all sizes from 1 to ``most`` as CUDA graph sizes, so that no step is padded."""
    return tuple(range(1, most + 1))


def vllm_largest(most: int) -> int:
    """Return the largest CUDA graph size of vLLM up to a limit, in tokens.

    Source: ``_set_cudagraph_sizes``.

    >>> [vllm_largest(most) for most in (3, 100, 300, 512)]
    [2, 96, 288, 512]
    """
    if most >= 8:
        return most - most % (8 if most < 256 else 16)
    return next(size for size in (4, 2, 1) if size <= most)


def vllm_sizes(most: int) -> tuple[int, ...]:
    """Return the numbers of tokens for which vLLM captures CUDA graphs, up to a limit.

    Source: ``_set_cudagraph_sizes``.

    >>> vllm_sizes(24)
    (1, 2, 4, 8, 16, 24)
    """
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16))
    return tuple(size for size in sizes if size <= most)


#: Ranges (first, last, step) of the numbers of decodes for which SGLang captures graphs: without
#: drafts, and with drafts to verify. The last range has no end. With drafts, 64 is captured only
#: from 0.5.5 on.
SGLANG_SIZES = ((1, 2, 1), (4, 12, 4), (16, 256, 8), (272, 511, 16), (512, None, 32))
SGLANG_DRAFT_SIZES = ((1, 8, 1), (10, 32, 2), (40, 64, 4), (72, 256, 8), (272, None, 16))


def sglang_sizes(most: int, drafts: bool = False, release: Release = (0, 5, 23)) -> tuple[int, ...]:
    """Return the numbers of decodes for which SGLang captures CUDA graphs.

    From 0.5.10 on, the limit ``most`` itself is also captured. Source: 0.5.3.post1 to 0.5.13
    ``server_args.py: _generate_cuda_graph_batch_sizes``, later
    ``generate_decode_cuda_graph_batch_sizes``.

    >>> sglang_sizes(30)
    (1, 2, 4, 8, 12, 16, 24, 30)
    >>> sglang_sizes(30, release=(0, 5, 9)), sglang_sizes(48, drafts=True)[-3:]
    ((1, 2, 4, 8, 12, 16, 24), (40, 44, 48))
    """
    ranges = SGLANG_DRAFT_SIZES if drafts else SGLANG_SIZES
    sizes = chain.from_iterable(range(a, (b or most) + 1, step) for a, b, step in ranges)
    skipped = 64 if drafts and release < (0, 5, 5) else None
    found = [size for size in sizes if size <= most and size != skipped]
    if release >= (0, 5, 10) and most not in found:
        found.append(most)
    return tuple(found)


#: TensorRT-LLM captures a graph for every number of decodes up to this one if steps are not padded.
TRTLLM_CONTIGUOUS = 32


def trtllm_sizes(most: int, padded: bool) -> tuple[int, ...]:
    """Return the numbers of decodes for which TensorRT-LLM captures CUDA graphs.

    Without padding, a step runs as a graph only if its exact size was captured. The few captured
    sizes beyond the consecutive ones are then ignored. Source: llm_args.py, ``CudaGraphConfig``,
    ``_generate_cuda_graph_batch_sizes``.

    >>> trtllm_sizes(20, padded=True), trtllm_sizes(128, padded=False)[-1]
    ((1, 2, 4, 8, 16, 20), 32)
    """
    if not padded:
        return contiguous_sizes(min(most, TRTLLM_CONTIGUOUS))
    multiples = [1, 2, 4, *range(8, 129, 8)]
    powers = takewhile(lambda size: size < most, (2**i for i in range(8, 32)))
    sizes = [size for size in (*multiples, *powers) if size <= most]
    return tuple(sizes if sizes[-1] == most else [*sizes, most])


# Settings of vLLM's scheduling, memory and CUDA graphs that depend on several flags.


def settle_vllm(found: RecipeFields) -> None:
    """Set vLLM's settings, as in ``vllm/v1/core/sched/scheduler.py``."""
    found.put("scheduler", *vllm_rules(release(found.version)))
    source = f"vllm {found.version} vllm/v1/core/sched/scheduler.py"
    found.put("prompt_budget", found.values["token_budget"], source)
    found.take("memory_share", "gpu_memory_utilization")
    _settle_overlap(found)
    _settle_fusion(found)
    _settle_graphs(found)
    _settle_sparse_cache(found)


def _settle_sparse_cache(found: RecipeFields) -> None:
    """Set the KV cache format for sparse attention: 8 bits unless a flag sets another."""
    default = found.default("sparse_cache_in_fp8")
    if found.serving.kv_cache_dtype == "auto" and default.value == "yes":
        found.put("kv_cache_dtype", "fp8", default.source, recipe.DEFAULT)


def _settle_overlap(found: RecipeFields) -> None:
    """Set asynchronous scheduling, which is disabled by pipeline stages and some draft methods."""
    if found.origins["overlap"].kind == recipe.FLAG:
        return
    if found.serving.pipeline_parallel_size > 1:
        found.take("overlap", "async_scheduling_pipelined")
    drafts = found.values["speculation"]
    if drafts is not None:
        default = found.default("async_scheduling_drafted")
        found.put("overlap", drafts.method in default.value.split(), default.source, recipe.DEFAULT)


def _settle_fusion(found: RecipeFields) -> None:
    """Set whether all-reduces are fused with norms.

    Some releases do not fuse them with data parallelism or with pipeline stages.
    """
    is_given = found.origins["fused_all_reduce"].kind == recipe.FLAG
    if is_given or not found.values["fused_all_reduce"]:
        return
    serving = found.serving
    if serving.data_parallel_size > 1:
        found.take("fused_all_reduce", "fuse_all_reduce_data_parallel")
    if serving.pipeline_parallel_size > 1 and found.values["fused_all_reduce"]:
        found.take("fused_all_reduce", "fuse_all_reduce_pipelined")


def _settle_graphs(found: RecipeFields) -> None:
    """Set which vLLM steps run as CUDA graphs, and up to how many tokens."""
    limit, origin = found.look_up("max_cudagraph_capture_size")
    drafts, rows = found.values["speculation"], 1
    if drafts and found.look_up("graphs_of_drafts")[0]:
        rows += drafts.tokens
    if origin.kind != recipe.FLAG:
        asked = min(2 * rows * found.values["max_requests"], found.values["token_budget"], limit)
        limit = vllm_largest(int(asked))
    mode, said = found.look_up("cudagraph_mode")
    of_decodes = {PIECEWISE: recipe.PIECES, NO_GRAPHS: recipe.NOTHING}.get(mode, recipe.WHOLE)
    if mode == NO_GRAPHS:
        found.put_graphs(0, 0, (), said, of_decodes)
    elif mode == FULL_DECODE_ONLY:
        # Steps with prompts are launched kernel by kernel. With drafts to verify, a decode step has
        # several tokens per request.
        each = 1 + (drafts.tokens if drafts else 0)
        found.put_graphs(1, max(limit // each, 1), () if drafts else vllm_sizes(limit), said)
    else:
        sizes = () if drafts else vllm_sizes(limit)
        found.put_graphs(limit, 0, sizes, origin, of_decodes)
    if mode != FULL_DECODE_ONLY and not found.serving.enforce_eager:
        found.origins["decode_graphs"] = Origin(said.kind, said.text)


# Memory that SGLang reserves in addition to weights and KV cache, by release.

#: Memory that SGLang reserves for a draft model and its graphs, as rows (first release, MiB for
#: EAGLE, MiB for a standalone draft model); nothing from 0.5.14 on (``server_args.py:
#: _handle_gpu_memory_settings``).
_DRAFTS = (((0, 5, 14), 0, 0), ((0, 5, 10), 4096, 6144), ((0,), 2048, 6144))


def prompt_graph_sizes(most: int) -> tuple[int, ...]:
    """Return the numbers of prompt tokens for which SGLang captures CUDA graphs.

    Source: SGLang 0.5.23 arg_groups/cuda_graph_hook.py:
    ``generate_prefill_cuda_graph_batch_sizes``, unchanged since 0.5.9, ``server_args.py:
    _generate_piecewise_cuda_graph_tokens``.

    >>> len(prompt_graph_sizes(8192)), prompt_graph_sizes(64)[-3:]
    (58, (32, 48, 64))
    """
    sizes = (
        *range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64),
        *range(1280, 4097, 256), *range(4608, most + 1, 512),
    )  # fmt: skip
    return tuple(size for size in sizes if size <= most)


@dataclass(frozen=True)
class MemoryUsers:
    """Quantities that determine the memory SGLang reserves in addition to weights and KV cache.

    Attributes:
        chunk: Prompt tokens per step, before they are divided among attention replicas.
        graphs: Maximum number of decodes in a CUDA graph.
        gpus: Number of GPUs of the server.
        replicas: Number of attention replicas; 0 without attention data parallelism.
        prompt_graph_tokens: Maximum prompt tokens in a CUDA graph; 0 if no graphs include prompts.
        latent: Whether the model has multi-head latent attention.
        algorithm: ``--speculative-algorithm`` in upper case; empty without speculation.
        deepep: Whether DeepEP exchanges tokens between experts' GPUs.
    """

    chunk: int
    graphs: int
    gpus: int
    replicas: int
    prompt_graph_tokens: int = 0
    latent: bool = False
    algorithm: str = ""
    deepep: bool = False


def reserve_mib(release: Release, memory_mib: float, users: MemoryUsers) -> float:
    """Return the memory in MiB that an SGLang release reserves on a GPU with ``memory_mib`` MiB.

    The larger reserve of multimodal models is ignored. Source: 0.5.3.post1 to 0.5.18
    ``server_args.py: _handle_gpu_memory_settings``, later ``arg_groups/memory_hook.py:
    handle_gpu_memory_settings`` and ``reserve_for_graph_mb``.
    """
    graphs = users.graphs
    reserve = 512 + max(users.chunk, 2048) * 1.5 + graphs * 2 + users.gpus / 8 * 1024
    reserve += graphs * users.replicas * (4.5 if graphs > 300 else 3)
    if users.prompt_graph_tokens:
        sizes = prompt_graph_sizes(users.prompt_graph_tokens)
        reserve += 1536 if users.latent else len(sizes) * 8
        if users.deepep and release >= (0, 5, 17):
            reserve += 1024
    if memory_mib > 60 * 1024:
        reserve = max(reserve, 10 * 1024)
    if users.algorithm and users.algorithm != "NGRAM":
        _, eagle, standalone = next(row for row in _DRAFTS if release >= row[0])
        reserve += standalone if users.algorithm == "STANDALONE" else eagle
    return reserve + (2048 if users.deepep and release >= (0, 5, 15) else 0)


# Settings of SGLang's scheduling, memory and CUDA graphs that depend on several flags.

#: ``_EXPECTED_SHARE``: initial estimate of a request's output as a share of its maximum output
#: (environ.py: SGLANG_INIT_NEW_TOKEN_RATIO). ``_EXPECTED_SHARE_OF_DP``: factor on this share under
#: attention data parallelism (_handle_data_parallelism, from 0.5.19 on
#: arg_groups/parallel_hook.py). Both are unchanged from 0.5.3.post1 to 0.5.23.
_EXPECTED_SHARE, _EXPECTED_SHARE_OF_DP = 0.7, 0.3
#: Model types with sparse attention, whose KV cache SGLang stores in fp8 from compute capability
#: 10.0 on.
_SPARSE_TYPES = frozenset({"deepseek_v32", "glm_moe_dsa"})
_ALIKE = "sglang 0.5.3.post1 to 0.5.23"


def settle_sglang(found: RecipeFields) -> None:
    """Set SGLang's settings, following the source of releases 0.5.9 and 0.5.23."""
    serving, values = found.serving, found.values
    number = release(found.version)
    adder = f"{_ALIKE} managers/schedule_policy.py: PrefillAdder"
    replicas = values["data_parallel_size"]
    # Sources: server_args.py: _handle_data_parallelism; model_runner.py: max_running_requests.
    values["token_budget"] = max(values["token_budget"] // replicas, 1)
    if serving.max_num_seqs is not None:
        values["max_requests"] = max(values["max_requests"] // replicas, 1)
    _settle_caches(found)
    found.take("prompt_budget", "max_prefill_tokens")
    found.put("chunk_multiple", values["block_tokens"], adder)
    share = _EXPECTED_SHARE * (_EXPECTED_SHARE_OF_DP if serving.enable_dp_attention else 1.0)
    found.put("admission_share", min(share * serving.schedule_conservativeness, 1.0), adder)
    if number >= (0, 5, 22):
        source = "sglang 0.5.22 schedule_policy.py, scheduler.py: _reqs_finishing_inflight"
        found.put("foresees_ends", True, source)
    found.take("poll_interval", "scheduler_recv_interval")
    if values["poll_interval"] > 1 and serving.enable_dp_attention:
        raise PinnError(
            "sglang refuses --scheduler-recv-interval together with --enable-dp-attention: omit "
            "one of the two flags"
        )
    if serving.enable_prefill_delayer and replicas > 1:
        found.take("prompt_wait_steps", "prefill_delayer_max_delay_passes")
    exchanges = {"none": recipe.GATHER, DEEPEP: recipe.ALL_TO_ALL}
    found.take("expert_exchange", "moe_a2a_backend", exchanges.__getitem__)
    if serving.enable_dp_attention or serving.moe_a2a_backend == DEEPEP:
        what = "all-reduce fusion is disabled with data-parallel attention or expert all-to-all"
        found.put("fused_all_reduce", False, f"{_ALIKE} {what}")
    limit, origin = found.look_up("max_cudagraph_capture_size")
    given = serving.max_num_seqs
    if number >= (0, 5, 22) and given is not None and origin.kind == recipe.DEFAULT:
        limit = min(limit, given)
    sizes = _decode_sizes(found, limit, number)
    captured, used = _prompt_graphs(found, number)
    found.put_graphs(max(used, 1), sizes[-1], sizes, origin)
    if used and not serving.enforce_eager:
        found.origins["graph_tokens"] = _prompt_default(found)[1]
    _put_static_share(found, limit, captured)


def _settle_caches(found: RecipeFields) -> None:
    """Set SGLang's KV cache format, and its settings for hybrid models and sparse attention."""
    serving, values = found.serving, found.values
    origin = found.origins["overlap"]
    alone = origin.kind == recipe.DEFAULT and values["speculation"] is None
    if alone and not values["overlap"] and not values["prefix_caching"]:
        found.put("overlap", True, f"{origin.text}; --disable-radix-cache", recipe.DEFAULT)
    is_free = serving.kv_cache_dtype == "auto" and found.gpu.compute_capability >= 10.0
    if found.model_type in _SPARSE_TYPES and is_free:
        source = f"{_ALIKE} sparse attention (DSA) uses an fp8_e4m3 KV cache on SM100 and later"
        found.put("kv_cache_dtype", "fp8", source, recipe.DEFAULT)


def _decode_sizes(found: RecipeFields, limit: int, number: Release) -> tuple[int, ...]:
    """Return the numbers of decodes for which SGLang captures graphs, up to ``limit`` requests.

    Under attention data parallelism, sizes are multiples of the number of GPUs that share an
    attention layer (``get_batch_sizes_to_capture``, ``require_gathered_buffer``).
    """
    serving, most = found.serving, int(found.values["max_requests"])
    if found.look_up("cudagraph_padding")[0]:
        sizes = sglang_sizes(limit, serving.speculative_config != NONE, number)
    else:
        sizes = contiguous_sizes(limit)
    if sizes[-1] > most:
        sizes = (*(size for size in sizes if size < most), most)
    ranks = found.values["tensor_parallel_size"] if serving.enable_dp_attention else 1
    whole = tuple(size for size in sizes if size % ranks == 0)
    return whole or sizes[-1:]


def _prompt_default(found: RecipeFields) -> tuple[int, Origin]:
    """Return SGLang's default limit of prompt tokens in a CUDA graph (0: none), and its origin."""
    default = found.default("prompt_graph_tokens")
    chunk = found.look_up("max_num_batched_tokens")[0]
    tokens = chunk if default.value == "chunk" else min(int(default.value), chunk)
    return tokens, Origin(recipe.DEFAULT, default.source)


def _prompt_graphs(found: RecipeFields, number: Release) -> tuple[int, int]:
    """Return SGLang's two limits of prompt tokens in a CUDA graph; both are 0 without graphs.

    The first limit determines the memory that is reserved for graphs. The second is the size of the
    largest captured graph. SGLang captures no graphs with prompts under speculative decoding until
    0.5.10, nor under attention data parallelism or expert all-to-all until 0.5.16
    (``_handle_piecewise_cuda_graph``, ``_disable_breakable_cudagraph_if_incompatible``).
    """
    serving = found.serving
    tokens = _prompt_default(found)[0]
    alone = serving.speculative_config == NONE or number >= (0, 5, 11)
    whole = not serving.enable_dp_attention and serving.moe_a2a_backend != DEEPEP
    if serving.enforce_eager or not alone or not (whole or number >= (0, 5, 17)):
        return 0, 0
    return tokens, min(tokens, found.values["token_budget"])


def _put_static_share(found: RecipeFields, graphs: int, prompt_graph_tokens: int) -> None:
    """Set the share of GPU memory that SGLang uses for weights and KV cache."""
    serving = found.serving
    if serving.gpu_memory_utilization is not None:
        found.take("memory_share", "gpu_memory_utilization")
    else:
        total = found.gpu.memory_bytes / MIB
        algorithm = serving.speculative_config
        users = MemoryUsers(
            chunk=found.look_up("max_num_batched_tokens")[0],
            graphs=graphs,
            gpus=serving.tensor_parallel_size * serving.pipeline_parallel_size,
            replicas=found.values["data_parallel_size"] if serving.enable_dp_attention else 0,
            prompt_graph_tokens=prompt_graph_tokens,
            latent=found.model_type == "kimi_k25" or is_type(found.model_type, "latent"),
            algorithm="" if algorithm == NONE else algorithm.upper(),
            deepep=serving.moe_a2a_backend == DEEPEP,
        )
        reserve = reserve_mib(release(found.version), total, users)
        source = f"sglang {found.version} handle_gpu_memory_settings"
        found.put("memory_share", round((total - reserve) / total, 3), source, recipe.DEFAULT)


# Settings of TensorRT-LLM's scheduling, memory and graphs that depend on several flags.


def settle_trtllm(found: RecipeFields) -> None:
    """Set the settings for TensorRT-LLM's PyTorch backend (``tensorrt_llm/_torch/pyexecutor``)."""
    values = found.values
    scheduler = "tensorrt_llm/_torch/pyexecutor/scheduler.py, microBatchScheduler.cpp"
    found.put("prompt_budget", values["token_budget"], scheduler)
    found.put("chunk_multiple", values["block_tokens"], scheduler)
    found.take("memory_share", "gpu_memory_utilization")
    limit, origin = found.look_up("max_cudagraph_capture_size")
    limit = min(limit, values["max_requests"])
    sizes = trtllm_sizes(limit, found.look_up("cudagraph_padding")[0])
    found.put_graphs(1, sizes[-1], sizes, origin)
    _settle_prompt_wait(found)


#: Functions that set the remaining settings, by engine.
SETTLERS = {VLLM: settle_vllm, SGLANG: settle_sglang, TRTLLM: settle_trtllm}


def _settle_prompt_wait(found: RecipeFields) -> None:
    """Set how long TensorRT-LLM's prompts wait for further prompts (``py_executor.py``).

    See ``_waiting_requests`` there; under attention data parallelism, ``_balance_adp_requests``.
    """
    ranks = found.values["data_parallel_size"]
    steps = "batch_wait_timeout_iters" if ranks == 1 else "attention_dp_timeout_iters"
    found.take("prompt_wait_steps", steps)
    waited = found.values["token_budget"] if ranks == 1 else 0
    found.take("prompt_wait_tokens", "batch_wait_max_tokens_ratio", lambda r: math.ceil(r * waited))
