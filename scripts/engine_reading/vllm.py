"""What vLLM does by default, by release."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from engine_reading.sandbox import Given, Symbol, World
from engine_reading.table import Line
from engine_reading.vllm_experts import KERNEL_READERS as KERNEL_READERS
from engine_reading.vllm_graphs import graph_sizes
from engine_reading.vllm_scheduling import overlap
from engine_reading.vllm_stand_ins import BLACKWELL, GPUS, HOPPER, Envs, Gpu, stand_ins
from engine_reading.wheel import EngineSource, compiled, literal

#: Every release that was read, oldest first.
RELEASES = (
    "0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.13.0", "0.14.0", "0.14.1", "0.15.0",
    "0.15.1", "0.16.0", "0.17.0", "0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0",
    "0.20.1", "0.20.2", "0.21.0", "0.22.1", "0.23.0", "0.24.0", "0.25.1", "0.26.0", "0.27.1",
    "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0",
)  # fmt: skip
#: Releases of which the index has no build for CPUs; their wheels are of hundreds of MB.
_CUDA_ONLY = ("0.33.0",)

_ARGS, _CACHE, _CONFIG = (
    "vllm/engine/arg_utils.py", "vllm/config/cache.py", "vllm/config/vllm.py",
)  # fmt: skip


def requirement(version: str) -> str:
    """What pip is asked for: the build for CPUs has the same Python files and is smaller."""
    return f"vllm{'' if version in _CUDA_ONLY else '-cpu'}=={version}"


def budgets(source: EngineSource) -> list[Line]:
    """Tokens and requests of a step of the API server, by the GPU's memory and name."""
    rules = ("get_batch_defaults", "_set_default_args", "_set_default_args_v1")
    name = next(f"EngineArgs.{r}" for r in rules if source.has(_ARGS, f"EngineArgs.{r}"))
    rule = source.function(_ARGS, name)
    # The rule compares with multiples of GiB_bytes: ask on both sides of each.
    sizes = sorted({0, *_gib(rule)}, reverse=True)
    found = []
    for flag, index in (("max_num_batched_tokens", 0), ("max_num_seqs", 1)):
        lines = [
            Line(flag, gpu, size or None, value=str(value), source=f"{_ARGS}: {name} (API server)")
            for size in sizes
            for gpu, value in _by_name(source, rule, size, index)
        ]
        found += [x for i, x in enumerate(lines) if not _repeats(lines, i)]
    return found


def _repeats(lines: list[Line], i: int) -> bool:
    """Whether a line says what the one below it, for all GPUs of less memory too, says as well."""
    below = lines[i + 1 :]
    return (
        not lines[i].gpu and bool(below) and below[0].value == lines[i].value and not below[0].gpu
    )


def _gib(rule: ast.FunctionDef) -> Iterator[int]:
    for node in ast.walk(rule):
        if isinstance(node, ast.BinOp) and ast.unparse(node.right) == "GiB_bytes":
            yield literal(node.left)


def _by_name(
    source: EngineSource, rule: ast.FunctionDef, gib: int, index: int
) -> list[tuple[str, int]]:
    a100, other = (_budgets(source, rule, gib, name)[index] for name in ("NVIDIA A100", "a GPU"))
    return [("", other)] if a100 == other else [("a100", a100), ("", other)]


def _budgets(source: EngineSource, rule: ast.FunctionDef, gib: int, name: str) -> tuple[int, int]:
    context = Symbol("UsageContext")
    server = context.OPENAI_API_SERVER
    names = {
        "current_platform": Gpu(source, 9.0, gib, name),
        "UsageContext": context,
        "GiB_bytes": 2**30,
        "EngineArgs": Given(scheduler_cls=None),
        "logger": Given(),
    }
    function = compiled(rule, names)
    if rule.name == "get_batch_defaults":
        tokens, seqs = function(None, 1)
        return tokens[server], seqs[server]
    given = Given(
        max_num_batched_tokens=None, max_num_seqs=None, enable_prefix_caching=None,
        enable_chunked_prefill=None, scheduler_cls=None, enable_prompt_embeds=False,
    )  # fmt: skip
    server.value = "API server"
    function(given, server, Given(runner_type="generate"))
    return given.max_num_batched_tokens, given.max_num_seqs


def memory_share(source: EngineSource) -> list[Line]:
    """Share of memory for weights and KV cache."""
    name = "CacheConfig.gpu_memory_utilization"
    share = source.constant(_CACHE, name)
    return [Line("gpu_memory_utilization", value=f"{share:g}", source=f"{_CACHE}: {name}")]


def prefixes_and_chunks(source: EngineSource) -> list[Line]:
    """Whether prompts are cut, and whether prefixes of models with states are found."""
    name = "EngineArgs._set_default_chunked_prefill_and_prefix_caching_args"
    older = "EngineArgs.get_chunked_prefill_prefix_caching_defaults"
    if source.has(_ARGS, name):
        chunks, prefixes = _asked_of_model(source, name)
    elif source.has(_ARGS, older):
        world = World(source, stand_ins(source, 9.0))
        rule = compiled(source.function(_ARGS, older), world.space(_ARGS))
        model = Given(runner_type="generate", is_hybrid=True)
        chunks, prefixes = rule(None, model)
        name = older
    else:
        path, name = (
            "vllm/model_executor/models/config.py",
            "MambaModelConfig.verify_and_update_config",
        )
        world = World(source, stand_ins(source, 9.0))
        cache = Given(enable_prefix_caching=True)
        config = Given(
            model_config=Given(architecture=""), cache_config=cache,
            compilation_config=Given(cudagraph_mode=None),
        )  # fmt: skip
        space = world.space(path)
        space["CUDAGraphMode"] = Symbol("CUDAGraphMode")
        compiled(source.function(path, name), space)(None, config)
        chunks, prefixes = True, cache.enable_prefix_caching
        return [
            Line("enable_chunked_prefill", value="yes", source=f"{_ARGS}: EngineArgs"),
            Line("state_prefix_caching", value=_word(prefixes), source=f"{path}: {name}"),
        ]
    return [
        Line("enable_chunked_prefill", value=_word(chunks), source=f"{_ARGS}: {name}"),
        Line("state_prefix_caching", value=_word(prefixes), source=f"{_ARGS}: {name}"),
    ]


def _asked_of_model(source: EngineSource, name: str) -> tuple[bool, bool]:
    """What a generating model of attention and states gets."""
    world = World(source, stand_ins(source, 9.0))
    path = "vllm/config/model.py"
    model = Given(attn_type="hybrid", pooler_config=None, runner_type="generate", is_hybrid=True)
    for each in ("is_chunked_prefill_supported", "is_prefix_caching_supported"):
        rule = source.function(path, f"ModelConfig.{each}")
        setattr(model, each, compiled(rule, world.space(path))(model))
    given = Given(
        enable_chunked_prefill=None, enable_prefix_caching=None, prefill_context_parallel_size=1
    )
    compiled(source.function(_ARGS, name), world.space(_ARGS))(given, model)
    return given.enable_chunked_prefill, given.enable_prefix_caching


def block_size(source: EngineSource) -> list[Line]:
    """Tokens of a KV block where the attention kernels ask for no other number."""
    name = "CacheConfig.DEFAULT_BLOCK_SIZE"
    if source.has(_CACHE, name):
        return [
            Line("block_size", value=str(source.constant(_CACHE, name)), source=f"{_CACHE}: {name}")
        ]
    path, name = "vllm/platforms/cuda.py", "CudaPlatformBase.check_and_update_config"
    for node in ast.walk(source.function(path, name)):
        if isinstance(node, ast.If) and "block_size is None" in ast.unparse(node.test):
            assigned = node.body[-1]
            if isinstance(assigned, ast.Assign):
                value = str(literal(assigned.value))
                return [Line("block_size", value=value, source=f"{path}: {name}")]
    raise source.unread(f"{path}: {name}", "it sets no block size")


def fused_all_reduce(source: EngineSource) -> list[Line]:
    """Whether the default optimization level makes all-reduce and norm one kernel."""
    level = "OPTIMIZATION_LEVEL_02"
    if not source.has(_CONFIG, level):
        path, name = "vllm/config/compilation.py", "PassConfig.enable_fi_allreduce_fusion"
        if source.constant(path, name) is not False:
            raise source.unread(f"{path}: {name}", "it is not False")
        return _never_fused(f"{path}: {name}")
    if source.constant(_CONFIG, "VllmConfig.optimization_level") != "OptimizationLevel.O2":
        raise source.unread(f"{_CONFIG}: VllmConfig.optimization_level", "it is not O2")
    text = ast.unparse(source.node(_CONFIG, level))
    if "'fuse_allreduce_rms': False" in text:
        return _never_fused(f"{_CONFIG}: {level}")
    name = "enable_allreduce_rms_fusion"
    if f"'fuse_allreduce_rms': {name}" not in text:
        raise source.unread(f"{_CONFIG}: {level}", "fuse_allreduce_rms is set in another way")

    def fuses(capability: float, tp: int = 2, dp: int = 1, pp: int = 1) -> bool:
        world = World(source, stand_ins(source, capability))
        parallel = Given(tensor_parallel_size=tp, data_parallel_size=dp, pipeline_parallel_size=pp)
        return bool(world.ask(_CONFIG, name, Given(parallel_config=parallel)))

    chips = [c for c in GPUS if fuses(c)]
    if any(fuses(c, tp=1) for c in GPUS) or not chips:
        raise source.unread(f"{_CONFIG}: {name}", "it fuses on one GPU, or nowhere")
    where = f"{_CONFIG}: {name}"
    gpu = "|".join(dict.fromkeys(_pattern(c, chips) for c in chips))
    return [
        Line("fuse_all_reduce", gpu, least_tp=2, value="yes", source=where),
        Line("fuse_all_reduce", value="no", source=where),
        Line("fuse_all_reduce_data_parallel", value=_word(fuses(chips[0], dp=2)), source=where),
        Line("fuse_all_reduce_pipelined", value=_word(fuses(chips[0], pp=2)), source=where),
    ]


def _never_fused(where: str) -> list[Line]:
    ends = ("", "_data_parallel", "_pipelined")
    return [Line(f"fuse_all_reduce{end}", value="no", source=where) for end in ends]


def _pattern(capability: float, chips: list[float]) -> str:
    if capability == 9.0:
        return HOPPER
    return BLACKWELL if {10.0, 10.3} <= set(chips) else GPUS[capability]


def fused_message(source: EngineSource) -> list[Line]:
    """MiB of the longest message that the fused kernel takes, by GPU and ranks."""
    places = (
        "vllm/compilation/passes/fusion/allreduce_rms_fusion.py",
        "vllm/compilation/collective_fusion.py",
    )
    name = "FI_ALLREDUCE_FUSION_MAX_SIZE_MB"
    path = next((p for p in places if source.has(p, name)), "")
    if not path:
        return []
    table = source.constant(path, name)
    chips = {capability: GPUS[capability / 10] for capability in table if capability / 10 in GPUS}
    if table.get(100) == table.get(103):
        chips = {90: HOPPER, 100: BLACKWELL}
    return [
        Line(
            "fuse_all_reduce_most_mib", gpu, least_tp=ranks, below_tp=ranks + 1,
            value=f"{mib:g}", source=f"{path}: {name}",
        )
        for capability, gpu in chips.items()
        for ranks, mib in table[capability].items()
    ]  # fmt: skip


def sampler(source: EngineSource) -> list[Line]:
    """Whether FlashInfer's kernels or PyTorch's sample, where both are installed."""
    path, name = "vllm/v1/sample/ops/topk_topp_sampler.py", "TopKTopPSampler.__init__"
    world = World(source, {
        **stand_ins(source, 9.0),
        "super": lambda: Given(__init__=lambda: None),
        "is_flashinfer_available": True,
        "flashinfer": Given(__version__="9.0"),
        "version": Given(parse=lambda text: float(text[:3])),
        "torch": Given(accelerator=Given(current_device_index=lambda: 0)),
        "_flashinfer_jit_unsupported_reason": lambda _: None,
        "register_top_k_top_p_warmups": lambda *_: None,
        "FlashInferBackend": Given(supports_compute_capability=lambda _: True),
    })  # fmt: skip
    found = Given(forward_cuda="flashinfer", forward_native="pytorch", forward="")
    space = world.space(path)
    space["apply_top_k_top_p"] = space["LogprobsMode"] = Symbol("unused")
    compiled(source.function(path, name), space)(found, "raw_logprobs")
    return [Line("sampling_backend", value=str(found.forward), source=f"{path}: {name}")]


def latent_state_block(source: EngineSource) -> list[Line]:
    """What a block of latent attention beside states is a multiple of, in tokens."""
    path, name = "vllm/platforms/interface.py", "Platform._align_hybrid_block_size"
    if not source.has(path, name):
        path = "vllm/model_executor/models/config.py"
        name = "HybridAttentionMambaModelConfig.verify_and_update_config"
    text = ast.unparse(source.function(path, name))
    known = {
        "max(kernel_block_alignment_size, 128)": "128",
        "get_supported_kernel_block_sizes": "64",
        "128 if use_cutlass_mla else 64": "64",
        "16 * cdiv(mamba_page_size, 16 * attn_page_size_1_token)": "16",
    }
    for words, value in known.items():
        if words in text:
            return [Line("latent_state_block", value=value, source=f"{path}: {name}")]
    raise source.unread(f"{path}: {name}", "it aligns blocks in another way")


def expert_backend(source: EngineSource) -> list[Line]:
    """That a rule picks the kernels of experts; ``KERNEL_READERS`` asks it."""
    path, name = "vllm/config/kernel.py", "KernelConfig.moe_backend"
    if not source.has(path, name):
        where = f"{Envs.path}: VLLM_USE_DEEP_GEMM VLLM_USE_FLASHINFER_MOE_FP8"
        return [Line("moe_backend", value="auto", source=where)]
    if source.constant(path, name) != "auto":
        raise source.unread(f"{path}: {name}", "it is not auto")
    return [Line("moe_backend", value="auto", source=f"{path}: {name}")]


def _word(given: bool) -> str:
    return "yes" if given else "no"


READERS = (
    budgets, memory_share, prefixes_and_chunks, block_size, graph_sizes, overlap, fused_all_reduce,
    fused_message, expert_backend, sampler,
    latent_state_block,
)  # fmt: skip
