"""The attention part of each layer of a config.json: heads, latent ranks and windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pinn.errors import PinnError
from pinn.specs.config_fields import ConfigFields
from pinn.specs.mixers import IndexerSpec
from pinn.specs.model import AttentionSpec, LatentAttentionSpec
from pinn.specs.model_types import (
    FULL_WIDTH_QK_NORM_TYPES,
    GATED_ATTENTION_TYPES,
    LATENT_TYPES,
)

#: vLLM's order (``ModelArchConfigConvertorBase.get_total_num_kv_heads``).
_KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num")
_HEAD_DIM = ("head_dim", "attention_head_dim", "hidden_size_per_head", "kv_channels")
_FULL = frozenset({"full_attention", "attention"})


def attentions(
    fields: ConfigFields, layers: int, max_position: int
) -> list[AttentionSpec | LatentAttentionSpec]:
    """The attention of each layer, first to last.

    Raises:
        PinnError: If a needed size is missing or the heads do not add up.
    """
    if is_latent(fields):
        latent, reaches = _latent(fields), windows(fields, layers, max_position)
        chosen = _indexers(fields, layers)
        return [
            replace(latent, window_tokens=window, indexer=indexer)
            for window, indexer in zip(reaches, chosen, strict=True)
        ]
    base = _grouped(fields)
    owners = layers - fields.integer("num_kv_shared_layers", default=0, least=0)
    return [
        replace(base, window_tokens=window, shares_cache=i >= owners)
        for i, window in enumerate(windows(fields, layers, max_position))
    ]


def _indexers(fields: ConfigFields, layers: int) -> list[IndexerSpec | None]:
    """What picks the keys of each layer; GLM-5.2's layers may take a choice over."""
    if fields.get("index_topk") is None:
        return [None] * layers
    own = IndexerSpec(
        top_k=fields.integer("index_topk"),
        heads=fields.integer("index_n_heads"),
        head_dim=fields.integer("index_head_dim", default=128),
    )
    types = fields.per_layer("indexer_types", layers) or ["full"] * layers
    return [own if kind == "full" else replace(own, heads=0) for kind in types]


def is_latent(fields: ConfigFields) -> bool:
    """Whether vLLM runs it as latent attention: the fields may exist and be null."""
    return fields.model_type in LATENT_TYPES and fields.get("kv_lora_rank") is not None


def _grouped(fields: ConfigFields) -> AttentionSpec:
    heads = fields.integer("num_attention_heads", "n_head")
    kv_heads = fields.integer(*_KV_HEADS, default=heads)
    if _is_falcon_multi_query(fields):
        kv_heads = 1
    if heads % kv_heads:
        raise PinnError(f"{fields.source}: {kv_heads} KV heads do not divide {heads} heads")
    if fields.get(*_HEAD_DIM) is not None:
        head_dim = fields.integer(*_HEAD_DIM)
    else:
        hidden = fields.integer("hidden_size")
        if hidden % heads:
            raise PinnError(
                f"{fields.source}: {heads} heads do not divide hidden_size {hidden}: add head_dim"
            )
        head_dim = hidden // heads
    return AttentionSpec(
        heads,
        kv_heads,
        head_dim,
        qk_norm_full_width=fields.model_type in FULL_WIDTH_QK_NORM_TYPES,
        output_gate=fields.model_type in GATED_ATTENTION_TYPES,
    )


def _is_falcon_multi_query(fields: ConfigFields) -> bool:
    return (
        fields.model_type == "falcon"
        and not fields.get("new_decoder_architecture")
        and fields.get("multi_query") is not False
    )


def _latent(fields: ConfigFields) -> LatentAttentionSpec:
    rank = fields.get("q_lora_rank")
    return LatentAttentionSpec(
        heads=fields.integer("num_attention_heads"),
        q_lora_rank=None if rank is None else fields.integer("q_lora_rank"),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        v_head_dim=fields.integer("v_head_dim"),
    )


def windows(fields: ConfigFields, layers: int, max_position: int) -> list[int | None]:
    """How far back each layer sees; None where it sees everything.

    A window is inert where ``use_sliding_window`` is false or no context can exceed it. Layers:
    ``layer_types``, or a list under ``sliding_window``, or ``sliding_window_pattern``, or (Qwen)
    ``max_window_layers``; else all of them. Llama-4's chunks spare the layers without rotary
    embedding (llama4.py); a chunk counts as a window of its size, though its mean reach is half.
    """
    if fields.get("attention_chunk_size") is not None and fields.model_type.startswith("llama4"):
        tokens: int | None = fields.integer("attention_chunk_size")
        chosen = _rotary_layers(fields, layers)
    else:
        tokens, chosen = _sliding(fields, layers)
    if tokens is None or tokens >= max_position:
        return [None] * layers
    return [tokens if on else None for on in chosen]


def _rotary_layers(fields: ConfigFields, layers: int) -> list[bool]:
    types = fields.per_layer("layer_types", layers)
    if types is not None:
        return [str(kind) not in _FULL for kind in types]
    flags = fields.per_layer("no_rope_layers", layers)  # despite its name, 1 means rotary
    if flags is not None:
        return [bool(flag) for flag in flags]
    interval = fields.integer("no_rope_layer_interval", default=4)
    return [(i + 1) % interval != 0 for i in range(layers)]


def _sliding(fields: ConfigFields, layers: int) -> tuple[int | None, list[bool]]:
    window: Any = fields.get("sliding_window")
    if window is None or fields.get("use_sliding_window") is False:
        return None, []
    if isinstance(window, list):  # Mistral's own format: a pattern, repeated
        if not window:
            return None, []
        pattern = [entry is not None for entry in window]
        sizes = [entry for entry in window if entry is not None]
        for size in sizes:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise PinnError(
                    f"{fields.source}: sliding_window must list tokens or null, got {size!r:.60}"
                )
        return next(iter(sizes), None), [pattern[i % len(pattern)] for i in range(layers)]
    tokens = fields.integer("sliding_window", least=0) or None
    types = fields.per_layer("layer_types", layers)
    if types is not None:
        return tokens, [str(kind) not in _FULL for kind in types]
    if fields.get("sliding_window_pattern", "_sliding_window_pattern") is not None:
        return tokens, _pattern_layers(fields, layers)
    if fields.get("use_sliding_window"):  # Qwen: the layers from max_window_layers on
        first = fields.integer("max_window_layers", default=0, least=0)
        return tokens, [i >= first for i in range(layers)]
    return tokens, [True] * layers


def _pattern_layers(fields: ConfigFields, layers: int) -> list[bool]:
    pattern = fields.get("sliding_window_pattern", "_sliding_window_pattern")
    if isinstance(pattern, str) and pattern:  # EXAONE: such as "LLLG", local and global
        return [pattern[i % len(pattern)] == "L" for i in range(layers)]
    step = fields.integer("sliding_window_pattern", "_sliding_window_pattern", least=0)
    return [step > 0 and (i + 1) % step != 0 for i in range(layers)]
