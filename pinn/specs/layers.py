"""Attention and feed-forward layers of a config.json."""

from dataclasses import replace

from pinn.specs import mixers, model
from pinn.specs.config_fields import ConfigFields
from pinn.specs.model import AttentionSpec, DenseFfnSpec, LatentAttentionSpec, MoeFfnSpec

# The attention part of each layer of a config.json: heads, latent ranks and windows.

_FULL = frozenset({"full_attention", "attention", "global"})


def attentions(
    fields: ConfigFields, layers: int, max_position: int
) -> list[AttentionSpec | LatentAttentionSpec]:
    """The attention of each layer, first to last.

    Raises:
        PinnError: If a needed size is missing or the heads do not add up.
    """
    if fields.is_type("compressed"):
        return [*_compressed(fields, layers)]
    if is_latent(fields):
        latent, reaches = _latent(fields), windows(fields, layers, max_position)
        pairs = zip(reaches, _indexers(fields, layers), strict=True)
        return [replace(latent, window_tokens=window, indexer=own) for window, own in pairs]
    base = _grouped(fields)
    owners = layers - fields.integer("num_kv_shared_layers", default=0, least=0)
    numbered = enumerate(windows(fields, layers, max_position))
    return [replace(base, window_tokens=reach, shares_cache=i >= owners) for i, reach in numbered]


def _indexers(fields: ConfigFields, layers: int) -> list[mixers.IndexerSpec | None]:
    """What picks the keys of each layer; GLM-5.2's layers may take a choice over."""
    if fields.get("index_topk") is None:
        return [None] * layers
    own = _indexer(fields)
    types = fields.per_layer("indexer_types", layers) or ["full"] * layers
    return [own if kind == "full" else replace(own, heads=0) for kind in types]


def _indexer(fields: ConfigFields) -> mixers.IndexerSpec:
    top_k, heads = map(fields.integer, ("index_topk", "index_n_heads"))
    return mixers.IndexerSpec(top_k, heads, fields.integer("index_head_dim", default=128))


def _compressed(fields: ConfigFields, layers: int) -> list[model.CompressedAttentionSpec]:
    """DeepSeek-V4's, layer by layer: as its ``compress_ratios`` say.

    A token's one vector has no parts here: the 64 rotary elements are among its ``head_dim``.
    """
    rates = fields.get("compress_rates")  # transformers 5: by the kind of layer
    named = fields.per_layer("layer_types", layers) if isinstance(rates, dict) else None
    by_kind = None if named is None else [rates.get(str(kind), 0) for kind in named]
    ratios = fields.per_layer("compress_ratios", layers) or by_kind or [None]
    if any(ratio not in mixers.COMPRESSION_RATIOS for ratio in ratios):
        rule = f"give each of {layers} layers one of {mixers.COMPRESSION_RATIOS}"
        raise fields.misfit("compress_ratios", rule, fields.get("compress_ratios"))
    own, integer = replace(_indexer(fields), ratio=mixers.INDEXED_RATIO), fields.integer
    heads, rank, width = map(integer, ("num_attention_heads", "q_lora_rank", "head_dim"))
    window, groups, out = map(integer, ("sliding_window", "o_groups", "o_lora_rank"))
    if heads % groups:
        raise fields.error(f"o_groups: {groups} groups of the output do not divide {heads} heads")
    every = model.CompressedAttentionSpec(
        heads, rank, width, qk_nope_head_dim=width, qk_rope_head_dim=0, v_head_dim=width,
        window_tokens=window, indexer=replace(own, heads=0), output_groups=groups, output_rank=out,
    )  # fmt: skip
    indexed = replace(every, indexer=own)
    return [replace(indexed if r == mixers.INDEXED_RATIO else every, ratio=r) for r in ratios]


def is_latent(fields: ConfigFields) -> bool:
    """Whether vLLM runs it as latent attention: the fields may exist and be null."""
    is_known = fields.is_type("latent") or not fields.is_listed
    return is_known and fields.get("kv_lora_rank") is not None


def _grouped(fields: ConfigFields) -> AttentionSpec:
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("kv_heads", default=heads)
    if _is_multi_query(fields):
        kv_heads = 1
    if heads % kv_heads:
        raise fields.error(f"{kv_heads} KV heads do not divide {heads} heads")
    width = mixers.head_width(fields, heads)
    if not fields.is_listed and fields.get("v_head_dim") not in (None, width):
        raise fields.error("values of another width than keys are not supported")
    wide, gate = map(fields.is_type, ("full_width_qk_norm", "gated_attention"))
    return AttentionSpec(heads, kv_heads, width, qk_norm_full_width=wide, output_gate=gate)


def _is_multi_query(fields: ConfigFields) -> bool:
    several = fields.get("new_decoder_architecture") or fields.get("multi_query") is False
    return fields.is_type("multi_query") and not several


def _latent(fields: ConfigFields) -> LatentAttentionSpec:
    heads = fields.integer("num_attention_heads")
    rank = None if fields.get("q_lora_rank") is None else fields.integer("q_lora_rank")
    widths = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    latent, plain, rotary, value = map(fields.integer, widths)
    return LatentAttentionSpec(heads, rank, latent, plain, rotary, value)


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
    window: object = fields.get("sliding_window")
    if window is None or fields.get("use_sliding_window") is False:
        return None, []
    if isinstance(window, list):  # Mistral's own format: a pattern, repeated
        if not window:
            return None, []
        pattern = [entry is not None for entry in window]
        sizes = [entry for entry in window if entry is not None]
        for size in sizes:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise fields.error(f"sliding_window must list tokens or null, got {size!r:.60}")
        return next(iter(sizes), None), [pattern[i % len(pattern)] for i in range(layers)]
    tokens = fields.integer("sliding_window", least=0) or None
    types = fields.per_layer("layer_types", layers)
    if types is not None:
        return tokens, [str(kind) not in _FULL for kind in types]
    if fields.get("window_pattern") is not None:
        return tokens, _pattern_layers(fields, layers)
    if fields.get("use_sliding_window"):  # Qwen: the layers from max_window_layers on
        first = fields.integer("max_window_layers", default=0, least=0)
        return tokens, [i >= first for i in range(layers)]
    return tokens, [True] * layers


def _pattern_layers(fields: ConfigFields, layers: int) -> list[bool]:
    pattern = fields.get("window_pattern")
    if isinstance(pattern, str) and pattern:  # EXAONE: such as "LLLG", local and global
        return [pattern[i % len(pattern)] == "L" for i in range(layers)]
    step = fields.integer("window_pattern", least=0)
    return [step > 0 and (i + 1) % step != 0 for i in range(layers)]


# The feed-forward part of each layer of a config.json: which layers have experts, and widths.

_LLAMA4 = frozenset({"llama4", "llama4_text"})


def feed_forwards(fields: ConfigFields, layers: int) -> list[DenseFfnSpec | MoeFfnSpec]:
    """The feed-forward part of each layer, first to last.

    Raises:
        PinnError: If a needed size is missing or the experts do not add up.
    """
    moe = moe_spec(fields)
    plan = [moe is not None and is_moe for is_moe in moe_plan(fields, layers)]
    if not all(plan):
        dense = DenseFfnSpec(_dense_width(fields), fields.is_gated)
    return [moe if is_moe and moe is not None else dense for is_moe in plan]


def moe_spec(fields: ConfigFields) -> MoeFfnSpec | None:
    """The shape of the mixture-of-experts layers; None where the config names no experts."""
    experts = 0 if fields.get("experts") == [] else fields.integer("experts", default=0, least=0)
    if not experts:
        return None
    top_k = fields.integer("top_k")
    if top_k > experts:
        raise fields.error(f"{top_k} experts per token exceed the {experts} experts")
    width = fields.integer("expert_width", "dense_width")
    latent = fields.get("moe_latent_size")
    return MoeFfnSpec(
        experts,
        top_k,
        width,
        _shared_width(fields, width),
        gated=fields.is_gated,
        latent_width=None if latent is None else fields.integer("moe_latent_size"),
    )


def _shared_width(fields: ConfigFields, expert_width: int) -> int:
    if fields.model_type in _LLAMA4:  # llama4.py: Llama4MoE always has one, without a key
        return fields.integer("intermediate_size")
    if fields.get("shared_width") is not None:
        return fields.integer("shared_width", least=0)
    return fields.integer("shared_experts", default=0, least=0) * expert_width


def _dense_width(fields: ConfigFields) -> int:
    if fields.model_type in _LLAMA4:
        return fields.integer("intermediate_size_mlp")
    if fields.is_type("wide"):
        return fields.integer("dense_width", default=4 * fields.integer("hidden_size"))
    if fields.model_type == "granitemoehybrid":  # its dense layers are the shared part alone
        return fields.integer("shared_intermediate_size", "dense_width")
    return fields.integer("dense_width")


def moe_plan(fields: ConfigFields, layers: int) -> list[bool]:
    """Which layers are mixtures of experts, in a model that has experts.

    The keys and their meaning are those of vLLM 0.15.1's model files: ``mlp_layer_types``;
    ``moe_layers`` or ``interleave_moe_layer_step`` (llama4.py); ``decoder_sparse_step`` and
    ``mlp_only_layers`` (qwen2_moe.py, qwen3_moe.py); ``first_k_dense_replace`` and
    ``moe_layer_freq`` (deepseek_v2.py); ``moe_layer_start_index``, ``_end_index`` and
    ``_interval`` (ernie45_moe.py); ``expert_layer_period`` and ``expert_layer_offset`` (jamba.py);
    letters of ``hybrid_override_pattern`` or ``layers_block_type`` (nemotron_h.py). Without any of
    them, every layer is.
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
    end = fields.integer("moe_layer_end_index", default=-1, least=-1)  # ERNIE 4.5
    last = end if end >= 0 else layers - 1
    frequency = fields.get("moe_layer_freq")
    if isinstance(frequency, list):
        flags = fields.per_layer("moe_layer_freq", layers) or []
        return [first <= i <= last and bool(on) for i, on in enumerate(flags)]
    step = fields.integer("moe_layer_freq", default=1)
    return [first <= i <= last and i % step == 0 for i in range(layers)]
