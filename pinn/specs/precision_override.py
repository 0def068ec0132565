"""A model under a precision label, as deployments mean it: which weights the label changes.

Published checkpoints, read from their quantization configs (lm_head and routers are bf16 in all):

======================================  ==========  ===========  =======  ======  ========
checkpoint                              attention   dense layers shared   experts KV cache
======================================  ==========  ===========  =======  ======  ========
nvidia Llama-3.1-70B-FP8                fp8_static  fp8_static   -        -       fp8
Qwen3-32B-FP8, Qwen3-235B-A22B-FP8,     fp8_block   fp8_block    -        same    bf16
MiniMax-M2.5
DeepSeek-V3, R1, Kimi-K2-Instruct       fp8_block   fp8_block    same     same    bf16
RedHatAI Llama-4-Scout-FP8-dynamic      bf16        -            fp8      fp8     bf16
nvidia Qwen3-235B-A22B-NVFP4            nvfp4       -            -        nvfp4   fp8
nvidia MiniMax-M2.5-NVFP4, -M2.7-NVFP4  bf16        -            -        nvfp4   fp8
nvidia Kimi-K2.5-NVFP4                  bf16        nvfp4        nvfp4    nvfp4   fp8
nvidia Kimi-K2.6-NVFP4, -K2.7-NVFP4     bf16        bf16         bf16     nvfp4   fp8
nvidia DeepSeek-V3.1-NVFP4              bf16 but    nvfp4        nvfp4    nvfp4   fp8
                                        o_proj
moonshotai Kimi-K2.5 (int4)             bf16        bf16         bf16     int4    bf16
openai gpt-oss (mxfp4)                  bf16        -            -        mxfp4   bf16
======================================  ==========  ===========  =======  ======  ========
"""

from __future__ import annotations

from dataclasses import replace

from pinn.errors import PinnError
from pinn.specs.model import ModelSpec, WeightPrecisions
from pinn.specs.precision import Precision, precision

#: Label -> format.
SCHEMES: dict[str, str] = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "fp8_static": "fp8_static",
    "fp8_block": "fp8_block",
    "int4": "int4_wo",
    "int8": "int8",
    "int8_wo": "int8_wo",
    "mxfp4": "mxfp4",
    "mxfp4_mxfp8": "mxfp4_mxfp8",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
}
#: Mixture-of-experts families whose NVFP4 release quantizes the attention too.
_NVFP4_ATTENTION = frozenset({"qwen3_moe"})
_FP8 = frozenset({"fp8", "fp8_static", "fp8_block"})
#: Families whose fp8 release leaves the attention in bf16.
_FP8_BF16_ATTENTION = frozenset({"llama4", "llama4_text"})
_EXPERTS_ONLY = frozenset({"mxfp4", "mxfp4_mxfp8"})
#: Families whose int4 release quantizes the routed experts alone.
_INT4_EXPERTS_ONLY = frozenset({"kimi_k2", "kimi_k25"})


def with_precision(
    model: ModelSpec,
    scheme: str,
    *,
    routed_experts_only: bool | None = None,
    kv_cache: str | None = None,
) -> ModelSpec:
    """A model as a deployment under a precision label serves it.

    A checkpoint that is native in what the label says stays as it is: MiniMax-M2.5 and DeepSeek-V3
    under ``fp8`` (their blocks), as NVIDIA's Llama-3.1-70B-FP8 (its static scales), Kimi-K2.5 under
    ``int4``. So does gpt-oss under every label but ``bf16`` and ``fp16``: it is served in MXFP4
    whatever the label, with 8-bit activations where the label is ``mxfp4_mxfp8``. Otherwise the
    table above decides, by ``model_type``; lm_head and router keep the model's own 16-bit format.

    Args:
        model: The model as it was read.
        scheme: A key of ``SCHEMES``.
        routed_experts_only: Leave all but the routed experts in 16 bits; None does what the
            family's own releases do.
        kv_cache: Format of the KV cache, a key of ``PRECISIONS``. None means fp8 under ``nvfp4``,
            which every NVFP4 release asks for, and else the 16-bit format of the model; a native
            checkpoint keeps its own.

    Raises:
        PinnError: If the scheme or the KV cache format is unknown.
    """
    if scheme not in SCHEMES:
        raise PinnError(f"unknown precision {scheme!r}: use one of {', '.join(SCHEMES)}")
    target = precision(SCHEMES[scheme])
    if routed_experts_only is None and _is_native(model, scheme):
        cache = model.kv_cache_precision
        return replace(model, kv_cache_precision=precision(kv_cache) if kv_cache else cache)
    base = target if target.name in ("bf16", "fp16") else model.precisions.lm_head
    cache = precision(kv_cache or ("fp8" if target.name == "nvfp4" else base.name))
    quantized = _quantized_kinds(model, target, routed_experts_only)
    kinds = {kind: target if kind in quantized else base for kind in _present_kinds(model)}
    absent = dict.fromkeys(_ALL_KINDS - kinds.keys(), base)
    precisions = WeightPrecisions(**kinds, **absent, lm_head=base)
    return replace(model, precisions=precisions, kv_cache_precision=cache)


_ALL_KINDS = frozenset({"attention", "dense_ffn", "experts", "shared_experts"})


def _present_kinds(model: ModelSpec) -> set[str]:
    kinds = {"attention"}
    if model.moe_layers < model.layers:
        kinds.add("dense_ffn")
    if model.moe is not None:
        kinds.add("experts")
        if model.moe.shared_width:
            kinds.add("shared_experts")
    return kinds


def _is_native(model: ModelSpec, scheme: str) -> bool:
    main = model.precisions.experts if model.moe is not None else model.precisions.dense_ffn
    if main.name in ("bf16", "fp16"):
        return False
    if main.name == "mxfp4" and model.model_type == "gpt_oss":
        return scheme not in ("bf16", "fp16", "mxfp4_mxfp8")
    family = _FP8 if scheme == "fp8" else {SCHEMES[scheme]}
    return main.name in family


def _quantized_kinds(
    model: ModelSpec, target: Precision, routed_experts_only: bool | None
) -> frozenset[str]:
    if target.name in ("bf16", "fp16"):
        return frozenset()
    is_moe = model.moe is not None
    if routed_experts_only is None:
        routed_experts_only = is_moe and (
            target.name in _EXPERTS_ONLY  # vLLM implements MXFP4 for experts alone
            or (target.name == "int4_wo" and model.model_type in _INT4_EXPERTS_ONLY)
        )
    if routed_experts_only:
        if not is_moe:
            raise PinnError(
                f"{model.name} has no routed experts to quantize: drop routed_experts_only"
            )
        return frozenset({"experts"})
    bf16_attention = (
        target.name == "nvfp4" and is_moe and model.model_type not in _NVFP4_ATTENTION
    ) or (target.name in _FP8 and model.model_type in _FP8_BF16_ATTENTION)
    return _ALL_KINDS - {"attention"} if bf16_attention else _ALL_KINDS
