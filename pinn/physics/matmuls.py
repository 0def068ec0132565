"""The matrix multiplications of one engine step, as one GPU of the group runs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from pinn.specs.model import (
    AttentionSpec,
    DenseFfnSpec,
    LatentAttentionSpec,
    LayerGroup,
    ModelSpec,
    MoeFfnSpec,
)
from pinn.specs.precision import Precision, precision


@dataclass(frozen=True)
class MatMul:
    """A weight matrix ``[k, n]`` that activations ``[rows, k]`` are multiplied with.

    Attributes:
        name: What it is called in vLLM's model code, such as ``qkv_proj``.
        n: Output width on one GPU.
        k: Input width on one GPU.
        count: How many layers have it.
        weights: Number format of the matrix.
        per_sequence: Whether only the last token of each sequence passes it (the output head).
    """

    name: str
    n: int
    k: int
    count: int
    weights: Precision
    per_sequence: bool = False

    @property
    def weight_bytes(self) -> float:
        """Bytes of all its copies over the layers."""
        return self.count * self.n * self.k * self.weights.bytes_per_weight

    @property
    def flop_per_row(self) -> float:
        """Floating-point operations per row over the layers: a multiply and an add per weight."""
        return 2.0 * self.count * self.n * self.k


@lru_cache(maxsize=16384)
def dense_matmuls(model: ModelSpec, tensor_parallel_size: int) -> tuple[MatMul, ...]:
    """Every multiplication but the routed experts'.

    Column-parallel and row-parallel cuts as in Megatron-LM (arXiv 1909.08053, section 3), which
    vLLM follows. KV heads fewer than the tensor-parallel size are replicated. Omits biases.
    """
    found: list[MatMul] = []
    for group in model.layer_groups:
        found += _attention_matmuls(model, group, tensor_parallel_size)
        found += _ffn_matmuls(model, group, tensor_parallel_size)
    head_width = -(-model.vocab_size // tensor_parallel_size)
    found.append(
        MatMul("lm_head", head_width, model.hidden_size, 1, model.precisions.lm_head, True)
    )
    return tuple(found)


def _attention_matmuls(model: ModelSpec, group: LayerGroup, tp: int) -> Iterator[MatMul]:
    attention, count, weights = group.attention, group.count, model.precisions.attention
    heads, hidden = attention.heads // tp, model.hidden_size
    if isinstance(attention, AttentionSpec):
        width = (heads + 2 * max(attention.kv_heads // tp, 1)) * attention.head_dim
        yield MatMul("qkv_proj", width, hidden, count, weights)
        yield MatMul("o_proj", hidden, heads * attention.head_dim, count, weights)
        return
    yield from latent_matmuls(attention, hidden, heads, count, weights)


def latent_matmuls(
    attention: LatentAttentionSpec, hidden: int, heads: int, count: int, weights: Precision
) -> Iterator[MatMul]:
    """MLA: the two down-projections are replicated, the up-projections are cut by (local) heads.

    ``kv_b_proj`` stands for its absorbed form in decode too: multiplying queries into the latent
    space and outputs back reads the same weights and costs the same operations per token.
    """
    queries = heads * attention.head_dim
    if attention.q_lora_rank is None:
        yield MatMul("q_proj", queries, hidden, count, weights)
        yield MatMul("kv_a_proj", attention.kv_width, hidden, count, weights)
    else:
        fused = attention.q_lora_rank + attention.kv_width
        yield MatMul("fused_qkv_a_proj", fused, hidden, count, weights)
        yield MatMul("q_b_proj", queries, attention.q_lora_rank, count, weights)
    up = heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    yield MatMul("kv_b_proj", up, attention.kv_lora_rank, count, weights)
    yield MatMul("o_proj", hidden, heads * attention.v_head_dim, count, weights)


def _ffn_matmuls(model: ModelSpec, group: LayerGroup, tp: int) -> Iterator[MatMul]:
    ffn, hidden, formats = group.ffn, model.hidden_size, model.precisions
    if isinstance(ffn, DenseFfnSpec):
        yield from _mlp(ffn.width, ffn.gated, hidden, group.count, tp, formats.dense_ffn, "")
        return
    yield MatMul("router", ffn.experts, hidden, group.count, precision("bf16"))
    if ffn.shared_width:
        yield from _mlp(
            ffn.shared_width, ffn.gated, hidden, group.count, tp, formats.shared_experts, "shared_"
        )


def _mlp(
    width: int, gated: bool, hidden: int, count: int, tp: int, weights: Precision, prefix: str
) -> Iterator[MatMul]:
    local = -(-width // tp)
    yield MatMul(f"{prefix}gate_up_proj", (1 + gated) * local, hidden, count, weights)
    yield MatMul(f"{prefix}down_proj", hidden, local, count, weights)


def expert_weights(ffn: MoeFfnSpec, hidden_size: int, expert_tensor_parallel_size: int) -> float:
    """Weights of one routed expert's slice on one GPU."""
    local = -(-ffn.width // expert_tensor_parallel_size)
    return (2 + ffn.gated) * local * hidden_size
