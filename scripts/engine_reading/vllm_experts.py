"""Kernels of routed experts in vLLM, chosen by vLLM's own rules for each type of GPU."""

import inspect
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from engine_reading.sandbox import Given, Symbol, World
from engine_reading.table import Line, kernel_line, runs
from engine_reading.vllm_stand_ins import Envs, QuantizationArgs, world_of
from engine_reading.wheel import EngineSource, fingerprint
from pinn.errors import PinnError

_MOE = "vllm/model_executor/layers/fused_moe"
_STRATEGY = "compressed_tensors.quantization.QuantizationStrategy"
_QUANTIZATION = "vllm/model_executor/layers/quantization"
#: Known fingerprints of ``Fp8MoEMethod``, which chooses the kernels in releases without a separate
#: function for this choice. There, ``VLLM_USE_DEEP_GEMM`` enables DeepGEMM and
#: ``VLLM_USE_FLASHINFER_MOE_FP8`` enables FlashInfer.
_FP8_METHOD = f"{_QUANTIZATION}/fp8.py: Fp8MoEMethod.__init__"
_FP8_METHODS = ("f3c47990b662", "b6f6ff0aaca5")

#: Compute capabilities for which rules are evaluated: Ampere, Ada, Hopper, data-centre Blackwell,
#: Blackwell Ultra, and other Blackwell GPUs.
_CAPABILITIES = (8.0, 8.9, 9.0, 10.0, 10.3, 12.0)
#: Distributions of experts for which rules are evaluated: each expert sliced over tensor-parallel
#: ranks, whole experts over tensor-parallel ranks, and whole experts over data-parallel ranks.
_PLAIN = {
    "dp_size": 1, "pcp_size": 1, "sp_size": 1, "all2all_backend": "allgather_reducescatter",
}  # fmt: skip
_SPREADS = {
    "tp": Given(**_PLAIN, tp_size=4, ep_size=1),
    "ep": Given(**_PLAIN, tp_size=1, ep_size=4, use_ep=True),
    "dp": Given(
        **_PLAIN | {"dp_size": 4}, tp_size=1, ep_size=4, use_ep=True, use_all2all_kernels=True,
        use_ag_rs_all2all_kernels=True,
    ),
}  # fmt: skip

_FP8 = (
    f"{_MOE}/oracle/fp8.py: select_fp8_moe_backend",
    f"{_QUANTIZATION}/fp8.py: get_fp8_moe_backend",
    _FP8_METHOD,
)
#: Rule by number format of experts: argument for the weights, argument for the activations, and
#: names, newest first, of the functions that choose the kernels in different releases.
_RULES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "fp8_block": ("kFp8Static128BlockSym", "kFp8Dynamic128Sym", _FP8),
    "fp8": ("kFp8StaticTensorSym", "kFp8StaticTensorSym", _FP8),
    "nvfp4": (
        "kNvfp4Static", "kNvfp4Dynamic", (f"{_MOE}/oracle/nvfp4.py: select_nvfp4_moe_backend",),
    ),
    "mxfp4": ("", "", (
        f"{_MOE}/oracle/mxfp4.py: select_gpt_oss_mxfp4_moe_backend",
        f"{_MOE}/oracle/mxfp4.py: select_mxfp4_moe_backend",
        f"{_QUANTIZATION}/mxfp4.py: get_mxfp4_backend",
    )),
    "int4_wo": ("kInt4Static", "", (f"{_MOE}/oracle/int_wna16.py: select_wna16_moe_backend",)),
    "bf16": ("", "", (f"{_MOE}/oracle/unquantized.py: select_unquantized_moe_backend",)),
}  # fmt: skip


def expert_kernels(source: EngineSource) -> list[Line]:
    """Return rows with the expert kernels for each number format that has a rule."""
    rules = {form: next(filter(source.has, _RULES[form][2]), None) for form in _RULES}
    rules |= dict.fromkeys(("fp8", "fp8_block"), source.first(*_FP8))
    return [line for form, rule in rules.items() if rule for line in _lines(source, rule, form)]


def _lines(source: EngineSource, rule: str, form: str) -> Iterator[Line]:
    """Yield rows with expert kernels by GPU compute capability.

    Adjacent capabilities with the same kernels share a row.
    """
    ask = _before_rules if rule == _FP8_METHOD else _chosen
    chosen = [
        (c, tuple(ask(source, rule, form, c, each) for each in _SPREADS.values()))
        for c in _CAPABILITIES
    ]
    for start, below, kernels in runs(chosen):
        for name in dict.fromkeys(filter(None, kernels)):
            spreads = [s for s, each in zip(_SPREADS, kernels, strict=True) if each == name]
            spread = "" if len(spreads) == len(_SPREADS) else " ".join(spreads)
            yield kernel_line(form, (start, below), spread, name, rule)


def _before_rules(source: EngineSource, rule: str, form: str, capability: float, _: Given) -> str:
    found = fingerprint(source.node(rule))
    if found not in _FP8_METHODS:
        raise source.unread(rule, f"the function has the unknown fingerprint {found}")
    block = form == "fp8_block"
    deep = block and Envs(source).VLLM_USE_DEEP_GEMM
    others = {
        8.0: "marlin",
        9.0: "deepgemm" if deep else "triton",
        10.0: "deepgemm" if deep else "cutlass" if block else "triton",
    }
    return others.get(capability, "triton")


def _chosen(source: EngineSource, rule: str, form: str, capability: float, parallel: Given) -> str:
    """Return the lower-case name of the expert kernels that the release selects; empty if none."""
    world = _world(source, capability)
    weights, activations, _ = _RULES[form]
    gated = form != "mxfp4"
    activation = "SILU" if gated else "SWIGLUOAI"
    config = Given(
        moe_parallel_config=parallel, tp_size=parallel.tp_size, dp_size=parallel.dp_size,
        ep_size=parallel.ep_size, is_act_and_mul=True, moe_backend="auto", swiglu_limit=None,
        activation=_member(world, "activation.py: MoEActivation", activation) or activation.lower(),
        has_bias=not gated,
        in_dtype=Symbol("torch.bfloat16"), hidden_dim=4096, num_experts=128, num_local_experts=32,
        intermediate_size_per_partition=1024, intermediate_size_per_partition_unpadded=1024,
        intermediate_size=1024, experts_per_token=8, router_logits_dtype=Symbol("torch.bfloat16"),
        # Routing by top-k, then softmax, as for Qwen and gpt-oss.
        routing_method=_member(world, "config.py: RoutingMethodType", "Renormalize"),
        max_num_tokens=8192, num_logical_experts=128,
        hidden_dim_unpadded=4096, swiglu_alpha=None, swiglu_beta=None,
    )  # fmt: skip
    given: dict[str, Any] = {
        "config": config, "moe_config": config, "weight_key": Symbol(weights),
        "activation_key": Symbol(activations) if activations else None,
        "allow_vllm_cutlass": False, "block_quant": form == "fp8_block",
        "tp_size": parallel.tp_size,
        "with_lora_support": False, "is_act_and_mul": True, "use_ep": parallel.use_ep,
        "use_dp": parallel.dp_size > 1, "moe_parallel_config": parallel,
        # Weights of 4 bits with one scale per group of 128, as in compressed-tensors checkpoints.
        "quant_config": QuantizationArgs(
            group_size=128, actorder=None, num_bits=4, strategy=Symbol(f"{_STRATEGY}.GROUP")
        ), "may_have_zp": False, "may_have_bias": False,
        "weight_bits": 4,
    }  # fmt: skip
    asked = inspect.signature(world.rule(rule)).parameters
    try:
        chosen = world.ask(rule, **{key: given[key] for key in asked if key in given})
    except PinnError:
        raise
    except ValueError:
        return ""
    backend = chosen[0] if isinstance(chosen, tuple) else chosen
    return "" if backend is None or backend.name == "NONE" else backend.name.lower()


@lru_cache(maxsize=len(_CAPABILITIES))
def _world(source: EngineSource, capability: float) -> World:
    return world_of(source, capability)


def _member(world: World, enumeration: str, name: str) -> Any:
    """Return a member of an enumeration in the release, or None if the enumeration is missing."""
    path, _, kind = f"{_MOE}/{enumeration}".partition(": ")
    return getattr(world.space(path)[kind], name) if world.source.has(f"{path}: {kind}") else None


KERNEL_READERS = (expert_kernels,)
