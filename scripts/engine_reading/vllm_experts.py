"""Which kernels vLLM multiplies routed experts by, as its own rules answer on each kind of GPU."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import Any

from engine_reading.sandbox import Given, RefusedError, Symbol, World
from engine_reading.table import KernelLine
from engine_reading.vllm_stand_ins import Envs, Gpu, stand_ins
from engine_reading.wheel import EngineSource, fingerprint

_MOE = "vllm/model_executor/layers/fused_moe"
_QUANTIZATION = "vllm/model_executor/layers/quantization"

#: Compute capabilities that are asked for: Ampere, Ada, Hopper, Blackwell and Blackwell Ultra of
#: data centres, and Blackwell's other cards.
_CAPABILITIES = (8.0, 8.9, 9.0, 10.0, 10.3, 12.0)
#: How experts are spread: cut over tensor-parallel ranks, whole over those ranks, whole over ranks
#: of data parallelism.
_SPREADS = {
    "tp": Given(tp_size=4, dp_size=1, ep_size=1, pcp_size=1, sp_size=1),
    "ep": Given(tp_size=1, dp_size=1, ep_size=4, pcp_size=1, sp_size=1, use_ep=True),
    "dp": Given(
        tp_size=1, dp_size=4, ep_size=4, pcp_size=1, sp_size=1, use_ep=True,
        use_all2all_kernels=True, use_ag_rs_all2all_kernels=True,
    ),
}  # fmt: skip
for _each in _SPREADS.values():
    _each.all2all_backend = "allgather_reducescatter"

#: Number format to the functions that chose its kernels, newest first, and the formats of weights
#: and activations that they are asked about.
_RULES: dict[str, tuple[tuple[tuple[str, str], ...], tuple[str, str] | None]] = {
    "fp8_block": (
        (
            (f"{_MOE}/oracle/fp8.py", "select_fp8_moe_backend"),
            (f"{_QUANTIZATION}/fp8.py", "get_fp8_moe_backend"),
        ),
        ("kFp8Static128BlockSym", "kFp8Dynamic128Sym"),
    ),
    "fp8": (
        (
            (f"{_MOE}/oracle/fp8.py", "select_fp8_moe_backend"),
            (f"{_QUANTIZATION}/fp8.py", "get_fp8_moe_backend"),
        ),
        ("kFp8StaticTensorSym", "kFp8StaticTensorSym"),
    ),
    "nvfp4": (
        ((f"{_MOE}/oracle/nvfp4.py", "select_nvfp4_moe_backend"),),
        ("kNvfp4Static", "kNvfp4Dynamic"),
    ),
    "mxfp4": (
        (
            (f"{_MOE}/oracle/mxfp4.py", "select_gpt_oss_mxfp4_moe_backend"),
            (f"{_MOE}/oracle/mxfp4.py", "select_mxfp4_moe_backend"),
            (f"{_QUANTIZATION}/mxfp4.py", "get_mxfp4_backend"),
        ),
        None,
    ),
    "int4_wo": (
        ((f"{_MOE}/oracle/int_wna16.py", "select_wna16_moe_backend"),),
        ("kInt4Static", ""),
    ),
    "bf16": (
        ((f"{_MOE}/oracle/unquantized.py", "select_unquantized_moe_backend"),),
        None,
    ),
}


def expert_kernels(source: EngineSource) -> list[KernelLine]:
    """Kernels of every number format that the release has a rule for."""
    return [line for form in _RULES for line in _lines(source, form)]


def _lines(source: EngineSource, form: str) -> Iterator[KernelLine]:
    found = [(path, name) for path, name in _RULES[form][0] if source.has(path, name)]
    if not found:
        yield from _before_rules(source, form)
        return
    path, name = found[0]
    chosen = [
        (c, tuple(_chosen(source, path, name, form, c, spread) for spread in _SPREADS))
        for c in _CAPABILITIES
    ]
    yield from _ranges(form, chosen, f"{path}: {name}")


def _ranges(
    form: str, chosen: list[tuple[float, tuple[str, ...]]], source: str
) -> Iterator[KernelLine]:
    """Neighbouring capabilities of the same kernels as one line; none where none are chosen."""
    runs = [(k, [c for c, _ in run]) for k, run in groupby(chosen, key=lambda pair: pair[1])]
    for i, (kernels, capabilities) in enumerate(runs):
        below = runs[i + 1][1][0] if i + 1 < len(runs) else None
        for name in dict.fromkeys(filter(None, kernels)):
            spreads = [s for s, each in zip(_SPREADS, kernels, strict=True) if each == name]
            spread = "" if len(spreads) == len(_SPREADS) else " ".join(spreads)
            yield KernelLine(form, capabilities[0], below, spread, name, source)


def _chosen(
    source: EngineSource, path: str, name: str, form: str, capability: float, spread: str
) -> str:
    """The release's own name of the kernels, in small letters; empty where it refuses."""
    world = _world(source, capability)
    weights, activations = _RULES[form][1] or ("", "")
    parallel, gated = _SPREADS[spread], form != "mxfp4"
    config = Given(
        moe_parallel_config=parallel, tp_size=parallel.tp_size, dp_size=parallel.dp_size,
        ep_size=parallel.ep_size, is_act_and_mul=True, moe_backend="auto", swiglu_limit=None,
        activation=_activation(world, "SILU" if gated else "SWIGLUOAI"), has_bias=not gated,
        in_dtype=Symbol("torch.bfloat16"), hidden_dim=4096, num_experts=128, num_local_experts=32,
        intermediate_size_per_partition=1024, intermediate_size_per_partition_unpadded=1024,
        intermediate_size=1024, experts_per_token=8, router_logits_dtype=Symbol("torch.bfloat16"),
        routing_method=_routing(world), max_num_tokens=8192, num_logical_experts=128,
        hidden_dim_unpadded=4096, swiglu_alpha=None, swiglu_beta=None,
    )  # fmt: skip
    given: dict[str, Any] = {
        "config": config, "moe_config": config, "weight_key": Symbol(weights),
        "activation_key": Symbol(activations) if activations else None,
        "allow_vllm_cutlass": False, "block_quant": form == "fp8_block",
        "tp_size": parallel.tp_size,
        "with_lora_support": False, "is_act_and_mul": True, "use_ep": parallel.use_ep,
        "use_dp": parallel.dp_size > 1, "moe_parallel_config": parallel,
        "quant_config": _quantization(world), "may_have_zp": False, "may_have_bias": False,
        "weight_bits": 4,
    }  # fmt: skip
    asked = inspect.signature(world.space(path)[name]).parameters
    needed = {key: given[key] for key in asked if key in given}
    try:
        chosen = world.ask(path, name, **needed)
    except RefusedError:
        return ""
    backend = chosen[0] if isinstance(chosen, tuple) else chosen
    return "" if backend is None or backend.name == "NONE" else backend.name.lower()


@lru_cache(maxsize=len(_CAPABILITIES))
def _world(source: EngineSource, capability: float) -> World:
    return World(source, stand_ins(source, capability))


def _activation(world: World, name: str) -> Any:
    path = f"{_MOE}/activation.py"
    if world.source.has(path, "MoEActivation"):
        return getattr(world.space(path)["MoEActivation"], name)
    return name.lower()


def _routing(world: World) -> Any:
    """Top k, then softmax: what Qwen's and gpt-oss's routers do."""
    path = f"{_MOE}/config.py"
    if world.source.has(path, "RoutingMethodType"):
        return world.space(path)["RoutingMethodType"].Renormalize
    return None


def _quantization(world: World) -> Any:
    """Weights of 4 bits in groups of 128, as compressed-tensors checkpoints describe them."""
    kind = world.stand_ins["QuantizationArgs"]
    strategy = Symbol("compressed_tensors.quantization.QuantizationStrategy.GROUP")
    return kind(group_size=128, actorder=None, num_bits=4, strategy=strategy)


#: Releases that had no rule of their own: what ``Fp8MoEMethod`` did, by its fingerprint. vLLM turns
#: DeepGEMM on where ``VLLM_USE_DEEP_GEMM`` is, FlashInfer where ``VLLM_USE_FLASHINFER_MOE_FP8`` is.
_FP8_METHODS = ("f3c47990b662", "b6f6ff0aaca5")


def _before_rules(source: EngineSource, form: str) -> Iterator[KernelLine]:
    path, name = f"{_QUANTIZATION}/fp8.py", "Fp8MoEMethod.__init__"
    if form not in ("fp8", "fp8_block"):
        return
    if fingerprint(source.node(path, name)) not in _FP8_METHODS:
        raise source.unread(f"{path}: {name}", fingerprint(source.node(path, name)))
    block, deep = form == "fp8_block", Envs(source).VLLM_USE_DEEP_GEMM
    chosen = [(8.0, "marlin"), (8.9, "triton")]
    for capability in (9.0, 10.0, 10.3, 12.0):
        gpu = Gpu(source, capability)
        exact = gpu.is_device_capability(90) or gpu.is_device_capability(100)
        cutlass = block and gpu.is_device_capability(100)
        kernels = "deepgemm" if block and deep and exact else "cutlass" if cutlass else "triton"
        chosen.append((capability, kernels))
    alike = [(capability, (kernels,) * len(_SPREADS)) for capability, kernels in chosen]
    yield from _ranges(form, alike, f"{path}: {name}")


KERNEL_READERS = (expert_kernels,)
