"""Which mixer and which feed-forward part each layer of a config.json has.

One declarative table, by ``model_type``: how the family writes its plan down, and how it describes
its recurrent mixer. Types that are not in it have attention and a network in every layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pinn.errors import PinnError
from pinn.specs.attention import attentions
from pinn.specs.config_fields import ConfigFields
from pinn.specs.feed_forward import feed_forwards
from pinn.specs.limits import MOST_LAYERS, check_size, written
from pinn.specs.linear_mixers import (
    falcon_h1_mixer,
    gated_delta_mixer,
    granite_mixer,
    jamba_mixer,
    kda_mixer,
    lightning_mixer,
    mamba1_mixer,
    mamba2_mixer,
    nemotron_mixer,
)
from pinn.specs.mixers import CrossAttentionSpec, LinearMixerSpec
from pinn.specs.model import AttentionSpec, FeedForward, Mixer

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
    check_size(layers, MOST_LAYERS, f"{fields.source}: layers", "correct the file")
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
    "falcon_h1": Family(_all(BOTH), falcon_h1_mixer),
    "mamba": Family(_all(LINEAR), mamba1_mixer, parts=True),
    "falcon_mamba": Family(_all(LINEAR), mamba1_mixer, parts=True),
    "mamba2": Family(_all(LINEAR), mamba2_mixer, parts=True),
    "mllama_text_model": Family(_cross_layers),
}
