"""A step composed of kernels: which run, how often, and at which sizes.

A mixed step is one fused pass: projections, experts and all-reduces see the tokens of decodes and
prefill chunks together; attention runs once over the decodes and once over the chunks. Norms,
rotary embedding, sampling and host work are not composed here: nobody measured them, so the
teacher learns them as overheads.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.matmuls import dense_matmuls
from pinn.physics.uniform_batches import UniformBatches
from pinn.specs.deployment import Deployment
from pinn.specs.model import AttentionSpec, LatentAttentionSpec, LayerGroup

#: Parts of a composed step, in the order of every composed array.
OPERATORS: tuple[str, ...] = (
    "gemm", "experts", "decode_attention", "prefill_attention", "all_reduce", "exchange",
)  # fmt: skip
ACTIVATION_BYTES = 2.0

#: Choosing experts and sorting tokens, per layer, where the measured kernel starts from a given
#: choice; vLLM's "monolithic" kernels (mxfp4 on Hopper and Blackwell) choose inside.
ROUTING_SECONDS = 4e-6
#: Statistics, scaling and casts in fp32 around the all-reduce of a full-width q/k norm: three
#: small kernels (vllm/model_executor/layers/mamba/linear_attn.py: forward_qk).
NORM_SECONDS = 6e-6

Seconds = Float[np.ndarray, " n"]


def compose(
    kernels: KernelSurrogates, deployment: Deployment, batches: UniformBatches
) -> Float[np.ndarray, "n operators"]:
    """Seconds that each part of ``n`` steps takes, summed over the layers.

    Args:
        kernels: Fitted operator surrogates.
        deployment: Model, GPU and engine configuration.
        batches: The steps' batches.
    """
    parts = {
        "gemm": _gemm(kernels, deployment, batches),
        "experts": _experts(kernels, deployment, batches),
        "decode_attention": _decode_attention(kernels, deployment, batches),
        "prefill_attention": _prefill_attention(kernels, deployment, batches),
        "all_reduce": _all_reduce(kernels, deployment, batches),
        "exchange": _exchange(kernels, deployment, batches),
    }
    return np.stack([parts[name] for name in OPERATORS], axis=-1)


def _gemm(kernels: KernelSurrogates, deployment: Deployment, batches: UniformBatches) -> Seconds:
    total = np.zeros(len(batches))
    for matmul in dense_matmuls(deployment.model, deployment.serving.tensor_parallel_size):
        rows = batches.requests if matmul.per_sequence else batches.tokens
        total += matmul.count * kernels.gemm_seconds(
            deployment.gpu, matmul.weights.name, rows, matmul.n, matmul.k
        )
    return total


def _experts(kernels: KernelSurrogates, deployment: Deployment, batches: UniformBatches) -> Seconds:
    model, serving = deployment.model, deployment.serving
    if model.moe is None:
        return np.zeros(len(batches))
    monolithic = model.precisions.experts.name == "mxfp4"
    routing = 0.0 if monolithic else ROUTING_SECONDS
    return model.moe_layers * (
        routing
        + kernels.moe_seconds(
            deployment.gpu,
            model.precisions.experts.name,
            batches.tokens * serving.data_parallel_size,
            model.hidden_size,
            model.moe.width,
            model.moe.experts,
            model.moe.top_k,
            serving.expert_tensor_parallel_size,
            serving.expert_parallel_size,
            model.moe.gated,
        )
    )


def _decode_attention(
    kernels: KernelSurrogates, deployment: Deployment, batches: UniformBatches
) -> Seconds:
    total = np.zeros(len(batches))
    for group in deployment.model.layer_groups:
        attention, heads = group.attention, _local_heads(group, deployment)
        context = batches.decode_context + 1
        kv = deployment.kv_cache_precision.name
        if isinstance(attention, LatentAttentionSpec):
            each = kernels.latent_decode_attention_seconds(
                deployment.gpu,
                kv,
                batches.decode_requests,
                context,
                heads,
                attention.kv_lora_rank,
                attention.qk_rope_head_dim,
            )
        else:
            each = kernels.decode_attention_seconds(
                deployment.gpu,
                kv,
                batches.decode_requests,
                context,
                heads,
                _local_kv_heads(attention, deployment),
                attention.head_dim,
                attention.window_tokens,
            )
        total += group.count * each
    return total


def _prefill_attention(
    kernels: KernelSurrogates, deployment: Deployment, batches: UniformBatches
) -> Seconds:
    """A chunk of p tokens after s cached ones attends to as many pairs as sqrt(p^2 + 2 p s)."""
    new, cached = batches.prefill_tokens, batches.prefill_cached
    tokens = np.sqrt(new**2 + 2 * new * cached)
    total = np.zeros(len(batches))
    for group in deployment.model.layer_groups:
        attention, heads = group.attention, _local_heads(group, deployment)
        where = (deployment.gpu, deployment.kv_cache_precision.name)
        work = (batches.prefill_requests, tokens, heads)
        if isinstance(attention, LatentAttentionSpec):
            each = kernels.latent_prefill_attention_seconds(
                *where, *work, attention.head_dim, attention.v_head_dim
            )
        else:
            each = kernels.prefill_attention_seconds(
                *where,
                *work,
                _local_kv_heads(attention, deployment),
                attention.head_dim,
                attention.window_tokens,
            )
        total += group.count * each
    return total


def _all_reduce(
    kernels: KernelSurrogates, deployment: Deployment, batches: UniformBatches
) -> Seconds:
    """Two per layer, one more for a full-width q/k norm, and one for the embedding."""
    model, tp = deployment.model, deployment.serving.tensor_parallel_size
    if tp == 1:
        return np.zeros(len(batches))
    size = batches.tokens * model.hidden_size * ACTIVATION_BYTES
    count = 1 + sum(2 * group.count for group in model.layer_groups)
    total = count * kernels.all_reduce_seconds(deployment.gpu, tp, size)
    normed = sum(
        g.count
        for g in model.layer_groups
        if isinstance(g.attention, AttentionSpec) and g.attention.qk_norm_full_width
    )
    # The norm needs one fp32 sum of squares per token for q and one for k.
    sums = kernels.all_reduce_seconds(deployment.gpu, tp, batches.tokens * 8.0)
    return total + normed * (sums + NORM_SECONDS)


def _exchange(
    kernels: KernelSurrogates, deployment: Deployment, batches: UniformBatches
) -> Seconds:
    model, serving = deployment.model, deployment.serving
    if model.moe is None or serving.data_parallel_size == 1:
        return np.zeros(len(batches))
    ranks = serving.tensor_parallel_size * serving.data_parallel_size
    return model.moe_layers * kernels.expert_exchange_seconds(
        deployment.gpu, batches.tokens, model.hidden_size, model.moe.top_k, ranks
    )


def _local_heads(group: LayerGroup, deployment: Deployment) -> int:
    return group.attention.heads // deployment.serving.tensor_parallel_size


def _local_kv_heads(attention: AttentionSpec, deployment: Deployment) -> int:
    return max(attention.kv_heads // deployment.serving.tensor_parallel_size, 1)
