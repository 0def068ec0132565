"""What SGLang runs beyond what one flag says: its schedule, memory and CUDA graphs, by release."""

from __future__ import annotations

from pinn.errors import PinnError
from pinn.specs.engine_defaults import engine_default, release
from pinn.specs.gpu import GpuSpec
from pinn.specs.graph_sizes import contiguous_sizes, sglang_sizes
from pinn.specs.model_types import LATENT_TYPES
from pinn.specs.recipe import (
    ALL_TO_ALL,
    DEFAULT,
    ESTIMATE,
    GATHER,
    PREFILL_FIRST,
    ROUND_ROBIN,
    STATIC,
    Origin,
)
from pinn.specs.recipe_fields import RecipeFields
from pinn.specs.serving import DEEPEP
from pinn.specs.sglang_memory import reserve_mib
from pinn.specs.speculation import NONE
from pinn.units import MIB

#: Share of an output that SGLang expects at first (environ.py: SGLANG_INIT_NEW_TOKEN_RATIO), and
#: what attention data parallelism makes of it (_handle_data_parallelism, from 0.5.19 on
#: arg_groups/parallel_hook.py); alike in 0.5.3.post1 to 0.5.23.
_EXPECTED_SHARE, _EXPECTED_SHARE_OF_DP = 0.7, 0.3
#: Types with sparse attention, whose cache is fp8 from compute capability 10.0 on.
_SPARSE_TYPES = frozenset({"deepseek_v32", "glm_moe_dsa"})
_ALIKE = "sglang 0.5.3.post1 to 0.5.23"


def settle_sglang(found: RecipeFields) -> None:
    """``sglang/srt/managers/scheduler.py`` and ``schedule_policy.py`` of 0.5.9 and 0.5.23."""
    serving, values = found.serving, found.values
    number = release(found.version)
    source = f"{_ALIKE} managers/scheduler.py: get_next_batch_to_run"
    adder = f"{_ALIKE} managers/schedule_policy.py: PrefillAdder"
    replicas = values["data_parallel_size"]
    # server_args.py: _handle_data_parallelism; model_runner.py: max_running_requests.
    values["token_budget"] = max(values["token_budget"] // replicas, 1)
    if serving.max_num_seqs is not None:
        values["max_requests"] = max(values["max_requests"] // replicas, 1)
    _settle_caches(found)
    found.put("schedule", PREFILL_FIRST, source)
    found.take("prompt_budget", "max_prefill_tokens")
    found.put("chunk_multiple", values["block_tokens"], adder)
    found.put("admission", ESTIMATE, adder)
    share = _EXPECTED_SHARE * (_EXPECTED_SHARE_OF_DP if serving.enable_dp_attention else 1.0)
    found.put("admission_share", min(share * serving.schedule_conservativeness, 1.0), adder)
    if number >= (0, 5, 22):
        source = "sglang 0.5.22 schedule_policy.py, scheduler.py: _reqs_finishing_inflight"
        found.put("foresees_ends", True, source)
    found.take("poll_interval", "scheduler_recv_interval")
    if values["poll_interval"] > 1 and serving.enable_dp_attention:
        raise PinnError(
            "sglang refuses --scheduler-recv-interval with --enable-dp-attention: leave one out"
        )
    found.put("routing", ROUND_ROBIN, f"{_ALIKE} load_balance_method; auto from 0.5.8")
    found.take(
        "expert_exchange", "moe_a2a_backend", {"none": GATHER, DEEPEP: ALL_TO_ALL}.__getitem__
    )
    if serving.enable_dp_attention or serving.moe_a2a_backend == DEEPEP:
        what = "fused only without attention data parallelism and all-to-all of experts"
        found.put("fused_all_reduce", False, f"{_ALIKE} {what}")
    limit, origin = found.look_up("max_cudagraph_capture_size")
    given = serving.max_num_seqs
    if number >= (0, 5, 22) and given is not None and origin.kind == DEFAULT:
        limit = min(limit, given)
    sizes = _decode_sizes(found, limit, number)
    captured, used = _prompt_graphs(found, number)
    found.put_graphs(max(used, 1), sizes[-1], sizes, origin)
    if used and not serving.enforce_eager:
        found.origins["graph_tokens"] = _prompt_default(found)[1]
    _put_static_share(found, limit, captured)


def _settle_caches(found: RecipeFields) -> None:
    """The format of the cache, and what hybrid models and sparse attention change."""
    serving, values = found.serving, found.values
    origin = found.origins["overlap"]
    hybrid = origin.kind == DEFAULT and values["speculation"] is None and not values["overlap"]
    if hybrid and not values["prefix_caching"]:
        found.put("overlap", True, f"{origin.text}; --disable-radix-cache", DEFAULT)
    if (
        found.model_type in _SPARSE_TYPES
        and serving.kv_cache_dtype == "auto"
        and _is_data_centre_blackwell(found.gpu)
    ):
        source = f"{_ALIKE} KV cache of sparse attention (DSA): fp8_e4m3 from SM100 on"
        found.put("kv_cache_dtype", "fp8", source, DEFAULT)


def _is_data_centre_blackwell(gpu: GpuSpec) -> bool:
    return gpu.compute_capability >= 10.0


def _decode_sizes(found: RecipeFields, limit: int, number: tuple[int, ...]) -> tuple[int, ...]:
    """Decodes that graphs are captured for: no more than may run.

    ``get_batch_sizes_to_capture``: under attention data parallelism multiples of the GPUs that
    share an attention layer (``require_gathered_buffer``).
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
    """Prompt tokens of the largest graph by release, GPU and model; 0 without."""
    serving = found.serving
    default = engine_default(
        serving.engine, "prompt_graph_tokens", found.version, found.gpu,
        serving.tensor_parallel_size, found.model_type,
    )  # fmt: skip
    chunk = found.look_up("max_num_batched_tokens")[0]
    tokens = chunk if default.value == "chunk" else min(int(default.value), chunk)
    return tokens, Origin(DEFAULT, default.source)


def _prompt_graphs(found: RecipeFields, number: tuple[int, ...]) -> tuple[int, int]:
    """(tokens whose graphs memory is reserved for, tokens of the largest that runs).

    Off with drafts in 0.5.10; with attention data parallelism or all-to-all of experts until
    0.5.16 (``_handle_piecewise_cuda_graph``, ``_disable_breakable_cudagraph_if_incompatible``).
    """
    serving = found.serving
    tokens = _prompt_default(found)[0]
    alone = serving.speculative_config == NONE or number >= (0, 5, 11)
    whole = not serving.enable_dp_attention and serving.moe_a2a_backend != DEEPEP
    if serving.enforce_eager or not alone or not (whole or number >= (0, 5, 17)):
        return 0, 0
    return tokens, min(tokens, found.values["token_budget"])


def _put_static_share(found: RecipeFields, graphs: int, prompt_graph_tokens: int) -> None:
    """What SGLang gives weights and KV cache of all memory."""
    serving = found.serving
    if serving.gpu_memory_utilization is not None:
        found.take("memory_share", "gpu_memory_utilization")
    else:
        total = found.gpu.memory_bytes / MIB
        replicas = found.values["data_parallel_size"] if serving.enable_dp_attention else 0
        algorithm = serving.speculative_config
        reserve = reserve_mib(
            release(found.version), total, found.look_up("max_num_batched_tokens")[0], graphs,
            serving.tensor_parallel_size * serving.pipeline_parallel_size, replicas,
            prompt_graph_tokens, found.model_type in LATENT_TYPES | {"kimi_k25"},
            "" if algorithm == NONE else algorithm.upper(), serving.moe_a2a_backend == DEEPEP,
        )  # fmt: skip
        source = f"sglang {found.version} handle_gpu_memory_settings"
        found.put("memory_share", round((total - reserve) / total, 3), source, DEFAULT)
    found.put("memory_share_of", STATIC, f"{_ALIKE} cached tokens: profile_max_num_token")
