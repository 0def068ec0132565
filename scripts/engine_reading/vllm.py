"""vLLM's defaults by release, read from its source."""

import ast
import re

from engine_reading.sandbox import Given, Symbol
from engine_reading.table import Line, default
from engine_reading.vllm_experts import KERNEL_READERS as KERNEL_READERS
from engine_reading.vllm_stand_ins import BLACKWELL, GPUS, HOPPER, Envs, gpu, world_of
from engine_reading.vllm_steps import CONFIG, graph_sizes, overlap
from engine_reading.wheel import EngineSource, literal

#: vLLM releases to read, oldest first.
RELEASES = (
    "0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.13.0", "0.14.0", "0.14.1", "0.15.0",
    "0.15.1", "0.16.0", "0.17.0", "0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0",
    "0.20.1", "0.20.2", "0.21.0", "0.22.1", "0.23.0", "0.24.0", "0.25.1", "0.26.0", "0.27.1",
    "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0",
)  # fmt: skip
#: Releases without a CPU build in the package index. Their CUDA wheels are hundreds of MB large.
_CUDA_ONLY = ("0.33.0",)

_ARGS, _CACHE = "vllm/engine/arg_utils.py: EngineArgs", "vllm/config/cache.py: CacheConfig"
_MODELS = "vllm/model_executor/models/config.py"


def requirement(version: str) -> str:
    """Return the pip requirement of a release.

    The CPU build is used if there is one: it is smaller and has the same Python files.
    """
    return f"vllm{'' if version in _CUDA_ONLY else '-cpu'}=={version}"


def budgets(source: EngineSource) -> list[Line]:
    """Return rows with the API server's default limits of tokens and of requests per step.

    The limits depend on the GPU's memory and name.
    """
    rules = ("get_batch_defaults", "_set_default_args", "_set_default_args_v1")
    rule = source.first(*(f"{_ARGS}.{name}" for name in rules))
    # The rule compares memory sizes with multiples of GiB_bytes, so evaluate it at 0 and at each of
    # these multiples.
    sizes = {
        literal(node.left)
        for node in ast.walk(source.node(rule))
        if isinstance(node, ast.BinOp) and ast.unparse(node.right) == "GiB_bytes"
    }
    devices = ("NVIDIA A100", "a GPU")
    # For consecutive memory sizes with equal defaults, the table has one row with the smallest
    # size.
    answers = {
        size: [_budgets(source, rule, size, each) for each in devices]
        for size in sorted({0, *sizes})
    }
    found = []
    for index, flag in enumerate(("max_num_batched_tokens", "max_num_seqs")):
        lines: list[Line] = []
        for size, answer in answers.items():
            a100, other = (each[index] for each in answer)
            about = {"source": f"{rule} (API server)", "least_gib": size or None}
            named = [default(flag, a100, gpu="a100", **about)] if a100 != other else []
            alike = lines and not lines[0]["gpu"] and lines[0]["value"] == str(other)
            lines = [*named, *([] if alike else [default(flag, other, **about)]), *lines]
        found += lines
    return found


def _budgets(source: EngineSource, rule: str, gib: int, device: str) -> tuple[int, int]:
    context = Symbol("UsageContext")
    server = Given(value="API server")
    context.OPENAI_API_SERVER = server
    world = world_of(
        source, current_platform=gpu(source, 9.0, gib, device), UsageContext=context,
        GiB_bytes=2**30, EngineArgs=Given(scheduler_cls=None),
    )  # fmt: skip
    if rule.endswith("get_batch_defaults"):
        tokens, seqs = world.ask(rule, None, 1)
        return tokens[server], seqs[server]
    given = Given(
        max_num_batched_tokens=None, max_num_seqs=None, enable_prefix_caching=None,
        enable_chunked_prefill=None, scheduler_cls=None, enable_prompt_embeds=False,
    )  # fmt: skip
    world.ask(rule, given, server, Given(runner_type="generate"))
    return given.max_num_batched_tokens, given.max_num_seqs


def memory_share(source: EngineSource) -> list[Line]:
    """Return a row with the default share of GPU memory that the engine may use."""
    place = f"{_CACHE}.gpu_memory_utilization"
    return [default("gpu_memory_utilization", source.constant(place), place)]


def prefixes_and_chunks(source: EngineSource) -> list[Line]:
    """Return rows with defaults of chunked prefill and prefix caching for recurrent models."""
    newest = f"{_ARGS}._set_default_chunked_prefill_and_prefix_caching_args"
    older = f"{_ARGS}.get_chunked_prefill_prefix_caching_defaults"
    oldest = f"{_MODELS}: MambaModelConfig.verify_and_update_config"
    rule = source.first(newest, older, oldest)
    world = world_of(source, CUDAGraphMode=Symbol("CUDAGraphMode"))
    model = Given(attn_type="hybrid", pooler_config=None, runner_type="generate", is_hybrid=True)
    if rule == newest:
        # Evaluate the rule for a generative model with attention and recurrent states.
        for each in ("is_chunked_prefill_supported", "is_prefix_caching_supported"):
            answer = world.ask(f"vllm/config/model.py: ModelConfig.{each}", model)
            setattr(model, each, answer)
        given = Given(
            enable_chunked_prefill=None, enable_prefix_caching=None, prefill_context_parallel_size=1
        )
        world.ask(rule, given, model)
        chunks, prefixes = given.enable_chunked_prefill, given.enable_prefix_caching
    elif rule == older:
        chunks, prefixes = world.ask(rule, None, model)
    else:
        config = Given(
            model_config=Given(architecture=""), cache_config=Given(enable_prefix_caching=True),
            compilation_config=Given(cudagraph_mode=None),
        )  # fmt: skip
        world.ask(rule, None, config)
        chunks, prefixes = True, config.cache_config.enable_prefix_caching
    return [
        default("enable_chunked_prefill", chunks, _ARGS if rule == oldest else rule),
        default("state_prefix_caching", prefixes, rule),
    ]


def block_size(source: EngineSource) -> list[Line]:
    """Return a row with the default number of tokens per KV block.

    Some attention kernels require a different number, which this row does not cover.
    """
    if source.has(place := f"{_CACHE}.DEFAULT_BLOCK_SIZE"):
        return [default("block_size", source.constant(place), place)]
    place = "vllm/platforms/cuda.py: CudaPlatformBase.check_and_update_config"
    said = re.search(r"block_size is None:\n.*block_size = (\d+)", source.words(place))
    if said is None:
        raise source.unread(place, "the function sets no block size")
    return [default("block_size", said[1], place)]


def fused_all_reduce(source: EngineSource) -> list[Line]:
    """Return a row that states whether the default optimization level fuses all-reduce and norm."""
    level, rule = f"{CONFIG}: OPTIMIZATION_LEVEL_02", f"{CONFIG}: enable_allreduce_rms_fusion"
    if not source.has(level):
        older = "vllm/config/compilation.py: PassConfig.enable_fi_allreduce_fusion"
        return _never_fused(_check(source, older, False))
    _check(source, f"{CONFIG}: VllmConfig.optimization_level", "OptimizationLevel.O2")
    said = re.search(
        "'fuse_allreduce_rms': (False|enable_allreduce_rms_fusion)", source.words(level)
    )
    if said is None:
        raise source.unread(level, "the level sets fuse_allreduce_rms in an unknown way")
    if said[1] == "False":
        return _never_fused(level)

    def fuses(capability: float, tp: int = 2, dp: int = 1, pp: int = 1) -> bool:
        parallel = Given(tensor_parallel_size=tp, data_parallel_size=dp, pipeline_parallel_size=pp)
        return bool(world_of(source, capability).ask(rule, Given(parallel_config=parallel)))

    chips = [c for c in GPUS if fuses(c)]
    if any(fuses(c, tp=1) for c in GPUS) or not chips:
        raise source.unread(rule, "the rule fuses on a single GPU, or on no GPU type")
    names = [BLACKWELL if c > 9 and {10.0, 10.3} <= set(chips) else GPUS[c] for c in chips]
    return [
        default("fuse_all_reduce", "yes", rule, gpu="|".join(dict.fromkeys(names)), least_tp=2),
        default("fuse_all_reduce", "no", rule),
        default("fuse_all_reduce_data_parallel", fuses(chips[0], dp=2), rule),
        default("fuse_all_reduce_pipelined", fuses(chips[0], pp=2), rule),
    ]


def _never_fused(place: str) -> list[Line]:
    ends = ("", "_data_parallel", "_pipelined")
    return [default(f"fuse_all_reduce{end}", "no", place) for end in ends]


def _check(source: EngineSource, place: str, expected: object) -> str:
    """Check that a constant of the release has the expected value, and return its place."""
    if source.constant(place) != expected:
        raise source.unread(place, f"the value is {source.constant(place)}, expected {expected}")
    return place


def fused_message(source: EngineSource) -> list[Line]:
    """Return rows with the maximum message size of a fused all-reduce in MiB, by GPU and ranks."""
    name = "FI_ALLREDUCE_FUSION_MAX_SIZE_MB"
    newer = f"vllm/compilation/passes/fusion/allreduce_rms_fusion.py: {name}"
    place = newer if source.has(newer) else f"vllm/compilation/collective_fusion.py: {name}"
    if not source.has(place):
        return []
    table = source.constant(place)
    chips = {capability: GPUS[capability / 10] for capability in table if capability / 10 in GPUS}
    if table.get(100) == table.get(103):
        chips = {90: HOPPER, 100: BLACKWELL}
    flag = "fuse_all_reduce_most_mib"
    return [
        default(flag, float(mib), place, gpu=gpus, least_tp=ranks, below_tp=ranks + 1)
        for capability, gpus in chips.items()
        for ranks, mib in table[capability].items()
    ]


def sampler(source: EngineSource) -> list[Line]:
    """Return a row that states whether FlashInfer or PyTorch samples if both are installed."""
    rule = "vllm/v1/sample/ops/topk_topp_sampler.py: TopKTopPSampler.__init__"
    world = world_of(
        source,
        super=lambda: Given(__init__=lambda: None),
        is_flashinfer_available=True,
        flashinfer=Given(__version__="9.0"),
        version=Given(parse=lambda text: float(text[:3])),
        torch=Given(accelerator=Given(current_device_index=lambda: 0)),
        _flashinfer_jit_unsupported_reason=lambda _: None,
        register_top_k_top_p_warmups=lambda *_: None,
        FlashInferBackend=Given(supports_compute_capability=lambda _: True),
        apply_top_k_top_p=Symbol("unused"),
        # Default value of an argument, evaluated when the function is defined.
        LogprobsMode=Symbol("unused"),
    )
    found = Given(forward_cuda="flashinfer", forward_native="pytorch", forward="")
    world.ask(rule, found, "raw_logprobs")
    return [default("sampling_backend", found.forward, rule)]


def latent_state_block(source: EngineSource) -> list[Line]:
    """Return a row with the KV block granularity of recurrent models with latent attention."""
    place = source.first(
        "vllm/platforms/interface.py: Platform._align_hybrid_block_size",
        f"{_MODELS}: HybridAttentionMambaModelConfig.verify_and_update_config",
    )
    text = source.words(place)
    known = {
        "max(kernel_block_alignment_size, 128)": "128",
        "get_supported_kernel_block_sizes": "64",
        "128 if use_cutlass_mla else 64": "64",
        "16 * cdiv(mamba_page_size, 16 * attn_page_size_1_token)": "16",
    }
    value = next((value for words, value in known.items() if words in text), None)
    if value is None:
        raise source.unread(place, "the function aligns blocks in an unknown way")
    return [default("latent_state_block", value, place)]


def expert_backend(source: EngineSource) -> list[Line]:
    """Return a row with the default of the expert kernels' backend, which is ``auto``.

    The readers in ``KERNEL_READERS`` find the kernels that ``auto`` chooses.
    """
    place = "vllm/config/kernel.py: KernelConfig.moe_backend"
    variables = f"{Envs.path}: VLLM_USE_DEEP_GEMM VLLM_USE_FLASHINFER_MOE_FP8"
    where = _check(source, place, "auto") if source.has(place) else variables
    return [default("moe_backend", "auto", where)]


READERS = (
    budgets, memory_share, prefixes_and_chunks, block_size, graph_sizes, overlap, fused_all_reduce,
    fused_message, expert_backend, sampler, latent_state_block,
)  # fmt: skip
