"""How many parameters a model has, in all and per token."""

from __future__ import annotations

from dataclasses import dataclass

from pinn.specs.model import (
    AttentionSpec,
    DenseFfnSpec,
    LatentAttentionSpec,
    ModelSpec,
    MoeFfnSpec,
)


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of the language model; vision towers and multi-token heads are left out.

    Attributes:
        total: All of them.
        active: Those that one token's forward pass uses, output head included and the rows of an
            untied input embedding, of which a token reads one, not. Publishers differ here: add
            ``embedding`` where they count it.
        embedding: The input embedding where it is a matrix of its own; 0 where it is tied.
    """

    total: int
    active: int
    embedding: int


def count_parameters(model: ModelSpec) -> ParameterCount:
    """Count the parameters of a model from its shapes."""
    head = model.vocab_size * model.hidden_size
    embedding = 0 if model.tied_embeddings else head
    stored = active = head + model.extra_parameters
    for group in model.layer_groups:
        attention = attention_parameters(model.hidden_size, group.attention)
        all_experts, used_experts = _ffn_parameters(model.hidden_size, group.ffn)
        stored += group.count * (attention + all_experts)
        active += group.count * (attention + used_experts)
    return ParameterCount(stored + embedding, active, embedding)


def attention_parameters(hidden_size: int, attention: AttentionSpec | LatentAttentionSpec) -> int:
    """Elements of the projections of one layer's attention."""
    if isinstance(attention, AttentionSpec):
        width = 2 * attention.heads + 2 * attention.kv_heads
        return hidden_size * width * attention.head_dim
    query_width = attention.heads * attention.head_dim
    rank = attention.q_lora_rank
    query = hidden_size * query_width if rank is None else rank * (hidden_size + query_width)
    down = hidden_size * attention.kv_width
    up = (
        attention.kv_lora_rank
        * attention.heads
        * (attention.qk_nope_head_dim + attention.v_head_dim)
    )
    return query + down + up + attention.heads * attention.v_head_dim * hidden_size


def _ffn_parameters(hidden_size: int, ffn: DenseFfnSpec | MoeFfnSpec) -> tuple[int, int]:
    """Elements of one layer: all, and those that a token uses (top-k, shared experts, router)."""
    per_width = hidden_size * (3 if ffn.gated else 2)
    if isinstance(ffn, DenseFfnSpec):
        return per_width * ffn.width, per_width * ffn.width
    always = per_width * ffn.shared_width + hidden_size * ffn.experts
    expert = per_width * ffn.width
    return always + ffn.experts * expert, always + ffn.top_k * expert
