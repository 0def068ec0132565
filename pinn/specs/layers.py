"""Readers of the attention and feed-forward layers of a config.json."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pinn.common.documents import is_finite
from pinn.specs import mixers, model
from pinn.specs.config_fields import ConfigFields, models_file
from pinn.specs.model import AttentionSpec, DenseFfnSpec, LatentAttentionSpec, MoeFfnSpec

# Attention of each layer of a config.json: heads, latent ranks and windows.

_FULL = frozenset(("full_attention", "attention", "global", "hybrid", "indexed_attention", "0"))


def attentions(
    fields: ConfigFields, layers: int, max_position: int
) -> Sequence[AttentionSpec | LatentAttentionSpec | None]:
    """Return the attention of each layer, first to last; None for a layer without attention.

    Raises:
        PinnError: If a needed size is missing, or the KV heads do not divide the query heads.
    """
    if fields.is_type("compressed"):
        return _compressed(fields, layers)
    read, made = _latent if is_latent(fields) else _grouped, dict[str, Any]()
    owners = layers - fields.integer("num_kv_shared_layers", default=0, least=0)
    sources = fields.per_layer("kv_source_layers", layers) or [
        min(i, owners - 1) for i in range(layers)
    ]
    found, indexers = list[AttentionSpec | LatentAttentionSpec | None](), _indexers(fields, layers)
    reaches = windows(fields, layers)
    kinds = ["full" if window is None else "windowed" for window in reaches]
    owns = [fields.of_layer(i, kind, "attention") for i, kind in enumerate(kinds)]
    for i, (window, indexer, own) in enumerate(zip(reaches, indexers, owns, strict=True)):
        kind = str((own, window is None))
        if kind not in made:
            made[kind] = read(fields.having(own), window is None)
        reach = within(window, max_position)
        spec = made[kind] and replace(made[kind], window_tokens=reach, shares_cache=sources[i] != i)
        found.append(replace(spec, indexer=indexer) if spec and window is None else spec)
    return found


def _indexers(fields: ConfigFields, layers: int) -> list[mixers.IndexerSpec | None]:
    """Return each layer's indexer of sparse attention; some reuse an earlier layer's selection."""
    if fields.get("topk_blocks") is not None:
        blocks, block, heads = map(fields.integer, ("topk_blocks", "index_block", "index_heads"))
        width = fields.integer("index_head_dim", "sparse_index_dim")
        own = mixers.IndexerSpec(blocks * block, heads, width, block=block)
        kinds = fields.per_layer("sparse_attention_freq", layers)
        kinds = kinds or fields.per_layer("layer_types", layers) or []
        return [own if kind in (1, "minimax_m3_sparse") else None for kind in kinds]
    if fields.get("index_topk") is None or not is_latent(fields):
        return [None] * layers
    own = _indexer(fields)
    types = fields.per_layer("indexer_types", layers) or ["full"] * layers
    return [own if kind == "full" else replace(own, heads=0) for kind in types]


def _indexer(fields: ConfigFields) -> mixers.IndexerSpec:
    top_k, heads = map(fields.integer, ("index_topk", "index_n_heads"))
    # An indexer key of GLM-5-next covers several tokens (vLLM 0.33.0
    # models/glm5next/common/attention.py).
    width, pool = (
        fields.integer("index_head_dim", default=128),
        fields.integer("index_kpool", default=1),
    )
    return mixers.IndexerSpec(top_k // pool, heads, width, pool)


def _compressed(fields: ConfigFields, layers: int) -> list[model.CompressedAttentionSpec]:
    """Return the attention of each layer of DeepSeek-V4, from its ``compress_ratios``.

    The ``head_dim`` of a cached vector includes its 64 rotary elements.
    """
    rates = fields.get("compress_rates")  # transformers 5 has compression rates by layer type
    named = fields.per_layer("layer_types", layers) if isinstance(rates, dict) else None
    by_kind = None if named is None else [rates.get(str(kind), 0) for kind in named]
    ratios = fields.per_layer("compress_ratios", layers) or by_kind or [None]
    if any(ratio not in mixers.COMPRESSION_RATIOS for ratio in ratios):
        values = f"one of {mixers.COMPRESSION_RATIOS} for each of {layers} layers"
        rule = f"compress_ratios must be a list with {values}"
        raise fields.misfit(rule, fields.get("compress_ratios"))
    own, integer = replace(_indexer(fields), ratio=mixers.INDEXED_RATIO), fields.integer
    heads, rank, width = map(integer, ("num_attention_heads", "q_lora_rank", "head_dim"))
    window, groups, out = map(integer, ("sliding_window", "o_groups", "o_lora_rank"))
    if heads % groups:
        raise fields.error(f"o_groups must divide num_attention_heads, got {groups} and {heads}")
    every = model.CompressedAttentionSpec(
        heads, rank, width, qk_nope_head_dim=width, qk_rope_head_dim=0, v_head_dim=width,
        window_tokens=window, indexer=replace(own, heads=0), output_groups=groups, output_rank=out,
    )  # fmt: skip
    indexed = replace(every, indexer=own)
    return [replace(indexed if r == mixers.INDEXED_RATIO else every, ratio=r) for r in ratios]


def is_latent(fields: ConfigFields) -> bool:
    """Return whether vLLM runs the model with latent attention (MLA).

    A model without MLA may have MLA's keys, with null values.
    """
    is_known = fields.is_type("latent") or not fields.is_listed
    return is_known and fields.get("kv_lora_rank") is not None


def _grouped(fields: ConfigFields, is_full: bool) -> AttentionSpec | None:
    if fields.get("no_op"):
        return None
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("kv_heads", default=heads)
    if fields.get("n_heads_in_group") is not None:
        kv_heads = heads // fields.integer("n_heads_in_group")
    if _is_multi_query(fields):
        kv_heads = 1
    if heads % kv_heads:
        raise fields.error(
            f"the number of KV heads must divide the number of query heads, got {kv_heads} KV and "
            f"{heads} query heads"
        )
    width = mixers.head_width(fields, heads)
    value = None if fields.get("v_head_dim") is None else fields.integer("v_head_dim")
    return AttentionSpec(
        heads,
        kv_heads,
        width,
        qk_norm_full_width=fields.is_type("full_width_qk_norm"),
        gate_width=_gate_width(fields, width),
        v_head_dim=None if value == width else value,
        values_are_keys=bool(is_full and fields.get("attention_k_eq_v")),
        input_rows=2 if fields.is_type("doubled_input") else 1,
    )


def _gate_width(fields: ConfigFields, width: int) -> int:
    """Return the number of elements per head of gates that the query projection includes."""
    named = models_file("types.json")["gates"].get(fields.model_type, [])
    own = [each if isinstance(each, int) else fields.integer(each) for each in named]
    is_gated = fields.is_type("gated_attention") or bool(fields.get("mla_use_output_gate"))
    return width * is_gated + sum(own)


def _is_multi_query(fields: ConfigFields) -> bool:
    several = fields.get("new_decoder_architecture") or fields.get("multi_query") is False
    return fields.is_type("multi_query") and not several


def _latent(fields: ConfigFields, _: bool) -> LatentAttentionSpec:
    heads = fields.integer("num_attention_heads")
    rank = None if fields.get("q_lora_rank") is None else fields.integer("q_lora_rank")
    latent, plain, value = map(fields.integer, ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim"))
    rotary = fields.integer("qk_rope_head_dim", least=0)
    gate = _gate_width(fields, value)
    return LatentAttentionSpec(heads, rank, latent, plain, rotary, value, gate_width=gate)


def windows(fields: ConfigFields, layers: int) -> list[int | None]:
    """Return the sliding window of each layer in tokens; None for full attention.

    ``use_sliding_window: false`` disables every window. The layers with a window are given by
    ``layer_types``, a list under ``sliding_window``, ``sliding_window_pattern`` or (Qwen)
    ``max_window_layers``; without these keys, every layer has the window. A chunk of Llama-4 counts
    as a window of its size, although a query sees half a chunk on average. Layers without rotary
    embedding have no chunks (llama4.py).
    """
    is_chunked = fields.model_type.startswith("llama4")
    key = "attention_chunk_size" if is_chunked else "sliding_window"
    window: object = fields.get(key)
    if window is None or fields.get("use_sliding_window") is False:
        return [None] * layers
    if isinstance(window, list):  # Mistral's own format: a repeating pattern of windows
        for size in window:
            if size is not None and (type(size) is not int or size < 1):
                rule = "must be a list of positive whole numbers or nulls"
                raise fields.error(f"{key} {rule}, got {size!r:.60}")
        return [window[i % len(window)] if window else None for i in range(layers)]
    types = fields.per_layer("layer_types", layers)
    if types is None:
        on = (_rotary_layers if is_chunked else _windowed_layers)(fields, layers)
    else:
        on = [str(kind) not in _FULL for kind in types]
    tokens = fields.integer(key, least=0)
    return [tokens or None if each else None for each in on]


def within(window: int | None, max_position: int) -> int | None:
    """Return a window in tokens; None if it covers the model's maximum context."""
    return None if window is None or window >= max_position else window


def _rotary_layers(fields: ConfigFields, layers: int) -> list[bool]:
    # Despite the key's name, 1 means that the layer has a rotary embedding.
    flags = fields.per_layer("no_rope_layers", layers)
    if flags is not None:
        return [bool(flag) for flag in flags]
    interval = fields.integer("no_rope_layer_interval", default=4)
    return [(i + 1) % interval != 0 for i in range(layers)]


def _windowed_layers(fields: ConfigFields, layers: int) -> list[bool]:
    pattern = fields.get("window_pattern")
    # EXAONE has a pattern of local and global layers, such as "LLLG".
    if isinstance(pattern, str) and pattern:
        return [pattern[i % len(pattern)] == "L" for i in range(layers)]
    if pattern is not None:
        step = fields.integer("window_pattern", least=0)
        return [step > 0 and (i + 1) % step != 0 for i in range(layers)]
    # In Qwen models, only layers from max_window_layers on use the window.
    first = fields.integer("max_window_layers", default=0, least=0)
    return [i >= first or not fields.get("use_sliding_window") for i in range(layers)]


# Feed-forward part of each layer of a config.json: which layers have experts, and their widths.


def feed_forwards(fields: ConfigFields, layers: int) -> list[DenseFfnSpec | MoeFfnSpec | None]:
    """Return each layer's feed-forward part, first to last; None for a layer without one.

    Raises:
        PinnError: If a needed size is missing, or a token uses more experts than there are.
    """
    moe = moe_spec(fields)
    plan = [False] * layers if moe is None else moe_plan(fields, layers)
    shared = fields.integer("num_kv_shared_layers", default=0, least=0)
    doubled = layers - shared * bool(fields.get("use_double_wide_mlp"))
    found, made = list[DenseFfnSpec | MoeFfnSpec | None](), dict[str, DenseFfnSpec | None]()
    for i, is_moe in enumerate(plan):
        own = {} if is_moe else fields.of_layer(i, "full", "ffn")
        kind = str((own, i < doubled))
        if not is_moe and kind not in made:
            made[kind] = dense_layer(fields.having(own), 1 + (i >= doubled))
        found.append(moe if is_moe else made[kind])
    return found


def dense_layer(fields: ConfigFields, times: int = 1) -> DenseFfnSpec | None:
    """Return a dense feed-forward layer, ``times`` times as wide as the config.json states."""
    if fields.get("no_op"):
        return None
    return DenseFfnSpec(times * _dense_width(fields), fields.is_gated)


def moe_spec(fields: ConfigFields) -> MoeFfnSpec | None:
    """Return the shape of the mixture-of-experts layers; None if the config has no experts."""
    experts = 0 if fields.get("experts") == [] else fields.integer("experts", default=0, least=0)
    if not experts or fields.get("enable_moe_block", "is_moe") is False:
        return None
    top_k, idle = fields.integer("top_k"), fields.integer("zero_expert_num", default=0, least=0)
    if idle:  # LongCat-Flash: some of the experts that a token selects compute nothing
        top_k = max(round(top_k * experts / (experts + idle)), 1)
    if top_k > experts:
        raise fields.error(
            f"the number of experts per token must be at most the {experts} experts of a layer, "
            f"got {top_k}"
        )
    # The config lists two expert widths: first for text, then for images.
    if fields.is_type("image_experts"):
        fields = fields.having(
            {"moe_intermediate_size": fields.listed("moe_intermediate_size")[:1]}
        )
    width = fields.integer("expert_width", "dense_width")
    latent = fields.get("moe_latent_size")
    return MoeFfnSpec(
        experts,
        top_k,
        width,
        _shared_width(fields, width),
        gated=fields.is_gated,
        latent_width=None if latent is None else fields.integer("moe_latent_size"),
        fp32_router=fields.is_type("fp32_router"),
    )


def _shared_width(fields: ConfigFields, expert_width: int) -> int:
    # In these model types, each mixture-of-experts layer also has a dense layer, which no key
    # states.
    if fields.is_type("dense_beside_experts"):
        return fields.integer("intermediate_size")
    if fields.get("shared_width") is not None:
        return fields.integer("shared_width", least=0)
    return fields.integer("shared_experts", default=0, least=0) * expert_width


def _dense_width(fields: ConfigFields) -> int:
    """Return the inner width of a dense feed-forward layer.

    In Nemotron models from architecture search and in LFM2 models, the inner width is two thirds of
    the stated width, rounded up (nemotron_nas.py: _ffn_mult_to_intermediate_size; modeling_lfm2.py:
    Lfm2MLP). RecurrentGemma's config states the widths of gate and up matrix together.
    """
    hidden, multiple, times = fields.integer("hidden_size"), 256, fields.get("ffn_mult")
    thirds = 2 * hidden / 3
    if times is None:
        default = 4 * hidden if fields.is_type("wide") else None
        # Granite's config has no separate width of dense layers, which are as wide as the shared
        # experts.
        named = ("shared_intermediate_size",) if fields.model_type == "granitemoehybrid" else ()
        width = fields.integer("own_dense_width", *named, "dense_width", default=default)
        if fields.model_type == "recurrent_gemma":
            return width // 2
        if not fields.get("block_auto_adjust_ff_dim"):
            return width
        times, thirds = fields.get("block_ffn_dim_multiplier") or 1.0, int(2 * width / 3)
        multiple = fields.integer("block_multiple_of")
    if not is_finite(times) or times <= 0:
        key = "ffn_mult or block_ffn_dim_multiplier"
        raise fields.misfit(f"{key} must be a positive number", times)
    return -(-int(times * thirds) // multiple) * multiple


def moe_plan(fields: ConfigFields, layers: int) -> list[bool]:
    """Return for each layer of a model with experts whether the layer has experts.

    The keys and their meanings are from vLLM 0.15.1's model files. Without any of these keys, every
    layer has experts.

    - ``mlp_layer_types``
    - ``moe_layers`` or ``interleave_moe_layer_step`` (llama4.py)
    - ``decoder_sparse_step`` and ``mlp_only_layers`` (qwen2_moe.py, qwen3_moe.py)
    - ``first_k_dense_replace`` and ``moe_layer_freq`` (deepseek_v2.py)
    - ``moe_layer_start_index``, ``_end_index`` and ``_interval`` (ernie45_moe.py)
    - ``expert_layer_period`` and ``expert_layer_offset`` (jamba.py)
    - letters of ``hybrid_override_pattern`` or ``layers_block_type`` (nemotron_h.py)
    """
    pattern = fields.get("layers_block_type", "hybrid_override_pattern")
    if isinstance(pattern, list | str) and len(pattern) >= layers:
        return [kind in ("moe", "E") for kind in pattern[:layers]]
    if fields.get("expert_layer_period") is not None:
        step = fields.integer("expert_layer_period")
        offset = fields.integer("expert_layer_offset", default=0, least=0)
        return [i % step == offset for i in range(layers)]
    types = fields.per_layer("mlp_layer_types", layers)
    if types is not None:
        return [kind in ("sparse", "moe", "hash_moe") for kind in types]
    if fields.get("moe_layers") is not None:
        chosen = fields.layer_indices("moe_layers")
        return [i in chosen for i in range(layers)]
    step = fields.integer("expert_step", default=1, least=0)
    dense, on = fields.layer_indices("mlp_only_layers"), _frequency_plan(fields, layers)
    return [on[i] and step > 0 and (i + 1) % step == 0 and i not in dense for i in range(layers)]


def _frequency_plan(fields: ConfigFields, layers: int) -> list[bool]:
    first = fields.integer("first_experts", default=0, least=0)
    end = fields.integer("moe_layer_end_index", default=-1, least=-1)  # a key in ERNIE 4.5's config
    last = end if end >= 0 else layers - 1
    frequency = fields.get("moe_layer_freq")
    if isinstance(frequency, list):
        flags = fields.per_layer("moe_layer_freq", layers) or []
        return [first <= i <= last and bool(on) for i, on in enumerate(flags)]
    step = fields.integer("moe_layer_freq", default=1)
    return [first <= i <= last and i % step == 0 for i in range(layers)]
