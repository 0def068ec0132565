"""Layers that tensor and expert parallelism cannot cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinn.specs.model import DenseFfnSpec, LatentAttentionSpec, ModelSpec
from pinn.specs.refusals.refusal import Refusal, runs
from pinn.specs.serving import SGLANG, TRTLLM

if TYPE_CHECKING:
    from pinn.specs.deployment import Deployment

_LINEAR = "vllm 0.10.2 to 0.33.0 vllm/model_executor/layers/linear.py: divide; sglang likewise"
_SGLANG_LINEAR = "sglang 0.5.3 to 0.5.23 srt/layers/linear.py: QKVParallelLinear"


def _cited(d: Deployment, of_vllm: str) -> str:
    """Where the engine itself says so; TensorRT-LLM's source was not read for it."""
    if d.serving.engine == SGLANG:
        return _SGLANG_LINEAR
    return of_vllm if d.serving.engine != TRTLLM else f"assumed of TensorRT-LLM as of {of_vllm}"


def models_of(d: Deployment) -> tuple[ModelSpec, ...]:
    """The model, and what drafts for it."""
    return (d.model,) if d.draft is None else (d.model, d.draft.model)


def heads(d: Deployment) -> Refusal | None:
    """Attention heads are cut into equal parts."""
    tp = d.recipe.tensor_parallel_size
    for model in models_of(d):
        for group in model.layer_groups:
            if group.attention is not None and group.attention.heads % tp:
                count = group.attention.heads
                return Refusal(
                    f"--tensor-parallel-size {tp} does not divide the {count} attention heads of "
                    f"{model.name}",
                    f"use a divisor of {count}",
                    _cited(d, "vllm 0.15.1 vllm/config/model.py: verify_with_parallel_config"),
                )
    return None


def kv_heads(d: Deployment) -> Refusal | None:
    """KV heads are cut into equal parts, or each is kept by equally many GPUs."""
    tp = d.recipe.tensor_parallel_size
    for model in models_of(d):
        for group in model.layer_groups:
            attention = group.attention
            if attention is None or isinstance(attention, LatentAttentionSpec):
                continue
            if attention.kv_heads % tp and tp % attention.kv_heads:
                return Refusal(
                    f"--tensor-parallel-size {tp} neither divides nor is a multiple of the "
                    f"{attention.kv_heads} KV heads of {model.name}",
                    f"use a divisor or a multiple of {attention.kv_heads}",
                    _cited(
                        d, "vllm 0.15.1 vllm/model_executor/layers/linear.py: QKVParallelLinear"
                    ),
                )
    return None


def experts_over_ranks(d: Deployment) -> Refusal | None:
    """Every rank of expert parallelism has experts; SGLang's have equally many."""
    moe, ranks = d.model.moe, d.recipe.expert_parallel_size
    if moe is None or ranks == 1:
        return None
    if d.serving.engine != SGLANG and ranks > moe.experts:
        return Refusal(
            f"expert parallelism over {ranks} GPUs exceeds the {moe.experts} experts of "
            f"{d.model.name}",
            "spread them over fewer",
            _cited(
                d, "vllm 0.15.1 vllm/model_executor/layers/fused_moe/layer.py: determine_expert_map"
            ),
        )
    if d.serving.engine == SGLANG and moe.experts % ranks:
        return Refusal(
            f"--ep-size {ranks} does not divide the {moe.experts} experts of {d.model.name}",
            f"use a divisor of {moe.experts}",
            "sglang 0.5.3 to 0.5.23 srt/layers/moe/fused_moe_triton/layer.py",
        )
    return None


def expert_width(d: Deployment) -> Refusal | None:
    """Experts that are not whole on a GPU are cut into equal parts."""
    moe, parts = d.model.moe, d.recipe.expert_tensor_parallel_size
    if moe is None or moe.width % parts == 0 or d.serving.engine == TRTLLM:
        return None
    return Refusal(
        f"{parts} GPUs do not divide the {moe.width} columns of an expert of {d.model.name}",
        f"use a divisor of {moe.width}, or whole experts on each GPU",
        "vllm 0.10.2 to 0.23.0 vllm/model_executor/layers/fused_moe/layer.py, to 0.33.0 config.py; "
        "sglang 0.5.3 to 0.5.23 srt/layers/moe/fused_moe_triton/layer.py",
    )


def dense_widths(d: Deployment) -> dict[int, str]:
    """Width of feed-forward layers that tensor parallelism cuts, to the kind of their weights."""
    found = {
        group.ffn.width: "dense_ffn"
        for group in d.model.layer_groups
        if isinstance(group.ffn, DenseFfnSpec)
    }
    if d.model.moe is not None and d.model.moe.shared_width:
        found[d.model.moe.shared_width] = "shared_experts"
    # Attention data parallelism keeps them whole on each GPU.
    return {} if d.serving.enable_dp_attention else found


def dense_width(d: Deployment) -> Refusal | None:
    """Dense layers are cut into equal parts."""
    tp = d.recipe.tensor_parallel_size
    for width in dense_widths(d):
        if width % tp and not runs(d, TRTLLM):
            return Refusal(
                f"--tensor-parallel-size {tp} does not divide the {width} columns of a "
                f"feed-forward layer of {d.model.name}",
                f"use a divisor of {width}",
                _LINEAR,
            )
    return None


def beyond_a_machine(d: Deployment) -> bool:
    """Whether tensor parallelism leaves a machine of eight GPUs; racks of GB200 and GB300 do not.

    Engines start there, slower: nothing here times links between machines within a layer.
    """
    return d.recipe.tensor_parallel_size > 8 and not d.gpu.name.startswith("GB")
