"""A model's layer plan in words."""

from __future__ import annotations

from pinn.specs.mixers import CrossAttentionSpec, LinearMixerSpec
from pinn.specs.model import LatentAttentionSpec, Mixer, ModelSpec, MoeFfnSpec

_LINEAR = {
    "gated_delta": "gated delta net",
    "kda": "KDA",
    "lightning": "lightning attention",
    "mamba1": "Mamba-1",
    "mamba2": "Mamba-2",
}


def mixer_name(mixer: Mixer | None) -> str:
    """What mixes tokens in a layer, in words."""
    if mixer is None:
        return "no mixer"
    if isinstance(mixer, LinearMixerSpec):
        return _LINEAR[mixer.kind]
    if isinstance(mixer, CrossAttentionSpec):
        return "cross-attention"
    if isinstance(mixer, LatentAttentionSpec):
        return "latent attention" if mixer.indexer is None else "sparse latent attention"
    return "full attention" if mixer.window_tokens is None else "windowed attention"


def mixer_names(model: ModelSpec) -> str:
    """The plan of a model: layers by mixer and by experts.

    >>> from pinn.specs.catalog import load_model
    >>> mixer_names(load_model("Qwen/Qwen3-Next-80B-A3B-Instruct"))
    '36 gated delta net, 12 full attention; 48 with experts'
    >>> mixer_names(load_model("Qwen/Qwen3-8B"))
    '36 full attention'
    """
    counts: dict[str, int] = {}
    for group in model.layer_groups:
        if group.attention is not None:
            name = mixer_name(group.attention)
            counts[name] = counts.get(name, 0) + group.count
    text = ", ".join(f"{count} {name}" for name, count in counts.items())
    experts = sum(g.count for g in model.layer_groups if isinstance(g.ffn, MoeFfnSpec))
    return f"{text}; {experts} with experts" if experts else text
