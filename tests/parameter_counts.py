"""How many parameters a model has, in all and per token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pinn.specs.mixers import CrossAttentionSpec, LinearMixerSpec, Projection
from pinn.specs.model import (
    AttentionSpec,
    CompressedAttentionSpec,
    DenseFfnSpec,
    FeedForward,
    Mixer,
    ModelSpec,
)


@dataclass(frozen=True)
class ParameterCount:
    """Return the parameters of the language model, without vision towers and multi-token heads.

    Attributes:
        total: All of them.
        active: Those that one token of text uses, output head included and the rows of an untied
            input embedding, of which a token reads one, not. Publishers differ here: add
            ``embedding`` where they count it.
        embedding: The input embedding where it is a matrix of its own, 0 where it is tied, and
            other tables of which a token reads a row.
    """

    total: int
    active: int
    embedding: int


def count_parameters(model: ModelSpec) -> ParameterCount:
    """Count the parameters of a model from its shapes."""
    head = model.vocab_size * model.hidden_size
    embedding = (0 if model.tied_embeddings else head) + model.lookup_parameters
    side = sum(count * _elements([each]) for count, each in model.side_projections)
    stored = active = head + model.extra_parameters + side
    for group in model.stored.layer_groups:
        attention = attention_parameters(model.hidden_size, group.attention)
        all_experts, used_experts = _ffn_parameters(model.hidden_size, group.ffn)
        stored += group.count * (attention + all_experts)
        active += group.count * (attention + used_experts) * group.runs
    return ParameterCount(stored + embedding, active, embedding)


def attention_parameters(hidden_size: int, attention: Mixer | None) -> int:
    """Elements of the projections of one layer's mixer."""
    if attention is None:
        return 0
    if isinstance(attention, AttentionSpec):
        pair = attention.head_dim + attention.value_dim * (not attention.values_are_keys)
        own = 0 if attention.shares_cache else attention.kv_heads * pair
        own += attention.heads * (attention.head_dim + attention.gate_width)
        own = hidden_size * (attention.input_rows * own + attention.heads * attention.value_dim)
        indexer = attention.indexer
        return own + (_elements(indexer.projections(hidden_size, hidden_size)) if indexer else 0)
    if isinstance(attention, LinearMixerSpec | CrossAttentionSpec | CompressedAttentionSpec):
        return _elements(attention.projections(hidden_size))
    query_width = attention.heads * attention.head_dim
    rank = attention.q_lora_rank
    query = hidden_size * query_width if rank is None else rank * (hidden_size + query_width)
    gate = hidden_size * attention.heads * attention.gate_width
    down = hidden_size * attention.kv_width * (not attention.shares_cache)
    up = (
        attention.kv_lora_rank
        * attention.heads
        * (attention.qk_nope_head_dim + attention.v_head_dim)
    )
    index = 0
    if attention.indexer is not None:
        index = _elements(attention.indexer.projections(hidden_size, rank or hidden_size))
    return query + gate + down + up + attention.heads * attention.v_head_dim * hidden_size + index


def _elements(projections: Iterable[Projection]) -> int:
    return sum(n * k for n, k in (projection.shape() for projection in projections))


def _ffn_parameters(hidden_size: int, ffn: FeedForward | None) -> tuple[int, int]:
    """Elements of one layer: all, and those that a token uses (top-k, shared experts, router)."""
    if ffn is None:
        return 0, 0
    per_width = hidden_size * (3 if ffn.gated else 2)
    if isinstance(ffn, DenseFfnSpec):
        return per_width * ffn.width, per_width * ffn.width
    always = per_width * ffn.shared_width + hidden_size * ffn.experts
    stream = ffn.stream_width(hidden_size)
    expert = per_width // hidden_size * stream * ffn.width
    if ffn.latent_width is not None:
        always += 2 * hidden_size * stream
    return always + ffn.experts * expert, always + ffn.top_k * expert
