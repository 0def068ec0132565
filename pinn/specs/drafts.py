"""The layers that draft: of a model's own prediction head, of EAGLE, or of a smaller model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from pinn.errors import PinnError
from pinn.specs.catalog import load_model
from pinn.specs.model import (
    Attention,
    DenseFfnSpec,
    LayerGroup,
    ModelSpec,
    MoeFfnSpec,
    WeightPrecisions,
)
from pinn.specs.model_names import find_in_catalog
from pinn.specs.speculation import DRAFT_MODEL, EAGLE3, MTP, Speculation

#: Vocabulary of EAGLE-3's drafts (``draft_vocab_size`` of those published for Llama 3).
EAGLE3_VOCABULARY = 32_000


@dataclass(frozen=True)
class Draft:
    """What a pass of the draft runs through.

    Attributes:
        model: Its layers and head, as a model.
        joined: Hidden states beside each other that a projection joins to one: the token's
            embedding and what the layers above have said; 0 without one. Its weights have 16 bits
            and every GPU holds them all.
        shares_head: Whether head and embedding are the target's.
    """

    model: ModelSpec
    joined: int = 0
    shares_head: bool = False

    @property
    def projection_weights(self) -> int:
        """Weights of the projection."""
        return self.joined * self.model.hidden_size**2


@lru_cache(maxsize=1024)
def draft_of(target: ModelSpec, speculation: Speculation) -> Draft | None:
    """The draft of a model; None where nothing drafts on the GPU.

    A multi-token-prediction layer is one more layer like the model's last (DeepSeek-V3, arXiv
    2412.19437, section 2.2), EAGLE one dense layer (arXiv 2401.15077) of 16 bits, and EAGLE-3's
    sees three of the target's layers (arXiv 2503.01840). Where EAGLE's config.json is not at hand,
    its layer has the target's attention and as wide a feed-forward part as a token passes there.

    Raises:
        PinnError: If a draft model is not found.
    """
    if speculation.passes == 0:
        return None
    if speculation.method == DRAFT_MODEL:
        return Draft(load_model(speculation.draft))
    if speculation.method == MTP:
        last = replace(_attention_group(target), count=1)
        return Draft(_layers(target, last, f"{target.name} MTP"), 2, True)
    joined = 3 if speculation.method == EAGLE3 else 2
    model = _published(speculation.draft) or _dense_layer(target)
    if speculation.method == EAGLE3:
        model = replace(model, vocab_size=min(model.vocab_size, EAGLE3_VOCABULARY))
    return Draft(model, joined, speculation.method != EAGLE3)


def _layers(target: ModelSpec, group: LayerGroup, name: str) -> ModelSpec:
    return replace(target, name=name, layer_groups=(group,), extra_parameters=0)


def _published(draft: str) -> ModelSpec | None:
    """The draft's own config.json, where it is a file or in the catalog."""
    if draft and (Path(draft).expanduser().exists() or find_in_catalog(draft) is not None):
        return load_model(draft)
    return None


def _attention_group(target: ModelSpec) -> LayerGroup:
    """The last layers with attention over keys and a network: what drafts beside other mixers."""
    usual = [g for g in target.layer_groups if isinstance(g.attention, Attention) and g.ffn]
    if not usual:
        raise PinnError(
            f"{target.name} has no layer of attention and a network that a draft's would be like: "
            "name a draft model, or draft by n-grams"
        )
    return usual[-1]


def _dense_layer(target: ModelSpec) -> ModelSpec:
    last = _attention_group(target)
    assert isinstance(last.attention, Attention)
    attention = replace(last.attention, window_tokens=None)
    ffn = last.ffn
    if isinstance(ffn, MoeFfnSpec):
        ffn = DenseFfnSpec(ffn.top_k * ffn.width + ffn.shared_width)
    layer = _layers(target, LayerGroup(1, attention, ffn), f"{target.name} EAGLE")
    return replace(layer, precisions=WeightPrecisions())
