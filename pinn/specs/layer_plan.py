"""Which layer of a model is of which kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pinn.common.documents import MOST_LAYERS, written
from pinn.errors import PinnError
from pinn.specs.config_fields import ConfigFields
from pinn.specs.layers import attentions, feed_forwards
from pinn.specs.mixers import (
    CHUNK_TOKENS,
    GATED_DELTA,
    KDA,
    LIGHTNING,
    MAMBA1,
    MAMBA2,
    CrossAttentionSpec,
    LinearMixerSpec,
)
from pinn.specs.model import AttentionSpec, FeedForward, Mixer

# The recurrent mixer of each family's config.json.

_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


def gated_delta_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Qwen3-Next and Qwen3.5 (vLLM's qwen3_next.py: Qwen3NextGatedDeltaNet)."""
    return LinearMixerSpec(
        GATED_DELTA,
        heads=fields.integer("linear_num_value_heads"),
        key_heads=fields.integer("linear_num_key_heads"),
        key_dim=fields.integer("linear_key_head_dim"),
        value_dim=fields.integer("linear_value_head_dim"),
        conv_width=fields.integer("linear_conv_kernel_dim", default=4),
        chunk_tokens=CHUNK_TOKENS[GATED_DELTA],
        state_bytes_per_element=_state_bytes(fields),
    )


def kda_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Kimi-Linear; its state is fp32 (vLLM's mamba_utils.py: kda_state_dtype)."""
    config = fields.get("linear_attn_config")
    inner = ConfigFields(config, config, f"{fields.source}: linear_attn_config")
    heads, width = inner.integer("num_heads"), inner.integer("head_dim")
    taps = inner.integer("short_conv_kernel_size", default=4)
    return LinearMixerSpec(
        KDA, heads, heads, width, width, taps, 0, CHUNK_TOKENS[KDA], _BYTES["float32"]
    )


def lightning_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """MiniMax-01 (vLLM's layers/mamba/linear_attn.py), without a convolution.

    Its state has the model's format (mamba_utils.py: linear_attention_state_dtype).
    """
    heads, width = fields.integer("num_attention_heads"), fields.integer("head_dim")
    return LinearMixerSpec(
        LIGHTNING, heads, heads, width, width, 0, 0, CHUNK_TOKENS[LIGHTNING], _BYTES["bfloat16"]
    )


def jamba_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Jamba: Mamba-1."""
    channels = fields.integer("mamba_expand", default=2) * fields.integer("hidden_size")
    return _mamba1(fields, channels, "mamba_d_state", "mamba_d_conv", "mamba_dt_rank")


def mamba1_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Mamba and Falcon-Mamba."""
    channels = fields.integer(
        "intermediate_size", "d_inner", default=2 * fields.integer("hidden_size")
    )
    return _mamba1(fields, channels, "state_size", "conv_kernel", "time_step_rank")


def _mamba1(
    fields: ConfigFields, channels: int, state: str, taps: str, rank: str
) -> LinearMixerSpec:
    stated = fields.get(rank)
    default = -(-fields.integer("hidden_size") // 16)  # "auto", as Mamba's own code
    return LinearMixerSpec(
        MAMBA1,
        heads=channels,
        key_heads=1,
        key_dim=fields.integer(state, default=16),
        value_dim=1,
        conv_width=fields.integer(taps, default=4),
        step_rank=default if stated in (None, "auto") else fields.integer(rank),
        chunk_tokens=CHUNK_TOKENS[MAMBA1],
        state_bytes_per_element=_state_bytes(fields),
    )


def granite_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Granite-4, Bamba and Falcon-H1: Mamba-2."""
    return _mamba2(fields, "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups")


def nemotron_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Nemotron-H and Nemotron-3: Mamba-2."""
    return _mamba2(fields, "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups")


def mamba2_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Mamba-2 by itself."""
    return _mamba2(fields, "num_heads", "head_dim", "state_size", "n_groups")


def _mamba2(
    fields: ConfigFields, heads: str, width: str, state: str, groups: str
) -> LinearMixerSpec:
    return LinearMixerSpec(
        MAMBA2,
        heads=fields.integer(heads),
        key_heads=fields.integer(groups, default=1),
        key_dim=fields.integer(state),
        value_dim=fields.integer(width),
        conv_width=fields.integer("mamba_d_conv", "conv_kernel", default=4),
        chunk_tokens=fields.integer("mamba_chunk_size", "chunk_size", default=CHUNK_TOKENS[MAMBA2]),
        state_bytes_per_element=_state_bytes(fields),
    )


def _state_bytes(fields: ConfigFields) -> float:
    """Bytes of an element: what the config asks for, else the model's 16 bits.

    vLLM's ``--mamba-ssm-cache-dtype auto`` (v1 config/cache.py) does the same.
    """
    stated: Any = fields.get("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    if stated is None:
        return _BYTES["bfloat16"]
    if not isinstance(stated, str) or stated not in _BYTES:
        raise PinnError(
            f"{fields.source}: mamba_ssm_dtype must be one of {', '.join(_BYTES)}, got "
            f"{written(stated)}"
        )
    return _BYTES[stated]


# Which mixer and which feed-forward part each layer of a config.json has.
#
# One declarative table, by ``model_type``: how the family writes its plan down, and how it
# describes its recurrent mixer. Types that are not in it have attention and a network in every
# layer.

FULL, LINEAR, BOTH, CROSS, NETWORK = "full", "linear", "both", "cross", "network"
#: What configs call a layer -> what it is here.
_WORDS: dict[object, str] = {
    **dict.fromkeys(("full_attention", "attention", "*", 1), FULL),
    **dict.fromkeys(("linear_attention", "mamba", "M", 0), LINEAR),
    **dict.fromkeys(("mlp", "moe", "-", "E"), NETWORK),
}


class LayerPart(NamedTuple):
    """A layer, or one half of a layer that is built of two.

    Attributes:
        layer: Which layer of the config it belongs to, counted from 0.
        mixer: What mixes tokens; None for a feed-forward part alone.
        ffn: The feed-forward part; None for a mixer alone.
    """

    layer: int
    mixer: Mixer | None
    ffn: FeedForward | None


@dataclass(frozen=True)
class Family:
    """How a family of models describes its layers.

    Attributes:
        plan: The word of each layer, first to last.
        mixer: Its recurrent mixer; None where it has none.
        parts: Whether a layer is a mixer or a network, not both.
    """

    plan: Callable[[ConfigFields], list[str]]
    mixer: Callable[[ConfigFields], LinearMixerSpec] | None = None
    parts: bool = False


def layer_count(fields: ConfigFields) -> int:
    """Layers of the config; Nemotron-3-Ultra's states them by their list alone."""
    types = fields.get("layers_block_type")
    default = len(types) if isinstance(types, list) else None
    keys = ("num_hidden_layers", "num_layers", "n_layer")
    return fields.integer(*keys, default=default, most=MOST_LAYERS)


def layer_parts(fields: ConfigFields, max_position: int) -> list[LayerPart]:
    """The parts of each layer, first to last.

    Raises:
        PinnError: If a needed size is missing or wrong, or a layer's kind is unknown.
    """
    layers = layer_count(fields)
    family = FAMILIES.get(fields.model_type)
    if family is None:
        plain = zip(attentions(fields, layers, max_position), feed_forwards(fields, layers),
                    strict=True)  # fmt: skip
        return [LayerPart(i, mixer, ffn) for i, (mixer, ffn) in enumerate(plain)]
    return list(_parts(family, fields, layers, max_position))


def _parts(
    family: Family, fields: ConfigFields, layers: int, max_position: int
) -> Iterator[LayerPart]:
    plan = family.plan(fields)
    has_attention = any(word in (FULL, BOTH, CROSS) for word in plan)
    attention = attentions(fields, layers, max_position) if has_attention else []
    linear = family.mixer(fields) if family.mixer else None
    networks = not family.parts or NETWORK in plan
    ffns: Sequence[FeedForward | None] = (
        feed_forwards(fields, layers) if networks else [None] * layers
    )
    for i, word in enumerate(plan):
        ffn = None if family.parts and word != NETWORK else ffns[i]
        if word == BOTH:  # attention and state space side by side, each with an all-reduce
            yield LayerPart(i, attention[i], None)
        mixer: Mixer | None = linear
        if word == FULL:
            mixer = attention[i]
        elif word == CROSS:
            mixer = _cross(attention[i])
        elif word == NETWORK:
            mixer = None
        yield LayerPart(i, mixer, ffn)


def _cross(attention: Mixer) -> CrossAttentionSpec:
    assert isinstance(attention, AttentionSpec)
    return CrossAttentionSpec(attention.heads, attention.kv_heads, attention.head_dim)


def _listed(*keys: str) -> Callable[[ConfigFields], list[str]]:
    """A plan that is a list with a word per layer, or a text with a letter per layer."""

    def plan(fields: ConfigFields) -> list[str]:
        layers, found = layer_count(fields), fields.get(*keys)
        words = list(found) if isinstance(found, list | str) else []
        if len(words) < layers:
            raise PinnError(
                f"{fields.source}: {' or '.join(keys)} must name each of {layers} layers, got "
                f"{written(found)}"
            )
        return [_word(fields, each) for each in words[:layers]]

    return plan


def _word(fields: ConfigFields, each: object) -> str:
    known = isinstance(each, str | int) and not isinstance(each, bool) and each in _WORDS
    if not known:
        raise PinnError(
            f"{fields.source}: layers of type {written(each)} are unknown: expected "
            f"{', '.join(str(word) for word in _WORDS)}"
        )
    return _WORDS[each]


def _interval(fields: ConfigFields) -> list[str]:
    """Full attention every few layers (qwen3_next.py: ``full_attention_interval``)."""
    if fields.get("layer_types") is not None:
        return _listed("layer_types")(fields)
    step = fields.integer("full_attention_interval", default=4)
    return [LINEAR if (i + 1) % step else FULL for i in range(layer_count(fields))]


def _period(fields: ConfigFields) -> list[str]:
    """Jamba: ``i % attn_layer_period == attn_layer_offset`` (configuration_jamba.py)."""
    step = fields.integer("attn_layer_period", default=8)
    first = fields.integer("attn_layer_offset", default=4, least=0)
    return [FULL if i % step == first else LINEAR for i in range(layer_count(fields))]


def _bamba(fields: ConfigFields) -> list[str]:
    full = fields.layer_indices("attn_layer_indices")
    return [FULL if i in full else LINEAR for i in range(layer_count(fields))]


def _kimi(fields: ConfigFields) -> list[str]:
    """Kimi-Linear counts its layers from 1 (configuration_kimi.py: ``is_kda_layer``)."""
    config = fields.get("linear_attn_config")
    listed = config.get("kda_layers") if isinstance(config, dict) else None
    if not isinstance(listed, list):
        raise PinnError(f"{fields.source}: linear_attn_config must list its kda_layers")
    return [LINEAR if i + 1 in listed else FULL for i in range(layer_count(fields))]


def _cross_layers(fields: ConfigFields) -> list[str]:
    cross = fields.layer_indices("cross_attention_layers")
    return [CROSS if i in cross else FULL for i in range(layer_count(fields))]


def _all(word: str) -> Callable[[ConfigFields], list[str]]:
    return lambda fields: [word] * layer_count(fields)


#: ``model_type`` -> its family.
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), Family(_interval, gated_delta_mixer)
    ),
    "kimi_linear": Family(_kimi, kda_mixer),
    "minimax_text_01": Family(_listed("attn_type_list"), lightning_mixer),
    "minimax": Family(_listed("layer_types", "attn_type_list"), lightning_mixer),
    "jamba": Family(_period, jamba_mixer),
    "nemotron_h": Family(
        _listed("layers_block_type", "hybrid_override_pattern"), nemotron_mixer, parts=True
    ),
    "granitemoehybrid": Family(_listed("layer_types"), granite_mixer),
    "bamba": Family(_bamba, granite_mixer),
    "falcon_h1": Family(_all(BOTH), granite_mixer),
    "mamba": Family(_all(LINEAR), mamba1_mixer, parts=True),
    "falcon_mamba": Family(_all(LINEAR), mamba1_mixer, parts=True),
    "mamba2": Family(_all(LINEAR), mamba2_mixer, parts=True),
    "mllama_text_model": Family(_cross_layers),
}
