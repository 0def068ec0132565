"""The matrix multiplications of one engine step, as one GPU of the group runs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from pinn.specs.mixers import Projection
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
    """Every multiplication of a text's token but the routed experts'.

    Column-parallel and row-parallel cuts as in Megatron-LM (arXiv 1909.08053, section 3), which
    vLLM follows. KV heads fewer than the tensor-parallel size are replicated. Omits biases.
    """
    found: list[MatMul] = []
    for group in model.layer_groups:
        if group.runs:
            found += _group_matmuls(model, group, tensor_parallel_size)
    for count, projection in model.side_projections:
        found += _projected([projection], count, model.precisions.dense_ffn, tensor_parallel_size)
    head_width = -(-model.vocab_size // tensor_parallel_size)
    found.append(
        MatMul("lm_head", head_width, model.hidden_size, 1, model.precisions.lm_head, True)
    )
    return tuple(found)


@lru_cache(maxsize=16384)
def idle_matmuls(model: ModelSpec, tensor_parallel_size: int) -> tuple[MatMul, ...]:
    """Matrices of layers that a text's token does not pass: they take memory alone."""
    groups = (group for group in model.layer_groups if not group.runs)
    return tuple(m for group in groups for m in _group_matmuls(model, group, tensor_parallel_size))


def _group_matmuls(model: ModelSpec, group: LayerGroup, tp: int) -> Iterator[MatMul]:
    yield from _mixer_matmuls(model, group, tp)
    if group.ffn is not None:
        yield from _ffn_matmuls(model, group, tp)


def _mixer_matmuls(model: ModelSpec, group: LayerGroup, tp: int) -> Iterator[MatMul]:
    attention, count, weights = group.attention, group.count, model.precisions.attention
    hidden = model.hidden_size
    if attention is None:
        return
    heads = attention.heads // tp
    if isinstance(attention, AttentionSpec):
        own = 0 if attention.shares_cache else 2 * max(attention.kv_heads // tp, 1)
        width = (heads * (1 + attention.output_gate) + own) * attention.head_dim
        yield MatMul("qkv_proj", width, hidden, count, weights)
        yield MatMul("o_proj", hidden, heads * attention.head_dim, count, weights)
        return
    if not isinstance(attention, LatentAttentionSpec):
        yield from _projected(attention.projections(hidden), count, weights, tp)
        return
    yield from latent_matmuls(attention, hidden, heads, count, weights)
    if attention.indexer is not None:
        rank = attention.q_lora_rank or hidden
        yield from _projected(attention.indexer.projections(hidden, rank), count, weights, tp)


def _projected(
    projections: Iterable[Projection], count: int, weights: Precision, tp: int
) -> Iterator[MatMul]:
    for projection in projections:
        yield MatMul(projection.name, *projection.shape(tp), count, weights)


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
    assert group.ffn is not None
    ffn, hidden, formats = group.ffn, model.hidden_size, model.precisions
    if isinstance(ffn, DenseFfnSpec):
        yield from _mlp(ffn.width, ffn.gated, hidden, group.count, tp, formats.dense_ffn, "")
        return
    yield MatMul("router", ffn.experts, hidden, group.count, precision("bf16"))
    if ffn.latent_width is not None:  # nemotron_h.py: fc1_latent_proj, fc2_latent_proj
        yield MatMul("latent_down_proj", ffn.latent_width, hidden, group.count, formats.dense_ffn)
        yield MatMul("latent_up_proj", hidden, ffn.latent_width, group.count, formats.dense_ffn)
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
    return (2 + ffn.gated) * local * ffn.stream_width(hidden_size)
