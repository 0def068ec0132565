"""Encoders of images and audio: sizes and weights, from a config.json and a table of families."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pinn.specs.config_fields import models_file

VISION, AUDIO = "vision", "audio"
#: Default ratio of a feed-forward layer's inner width to the encoder's width (mlp_ratio of
#: Qwen2-VL).
_FFN_RATIO = 4
#: Activation function that implies gated feed-forward layers if the encoder family is unknown.
_GATED = "silu"
#: Assumed projector of an encoder of an unknown family: that of Qwen and Kimi (vLLM
#: kimi_k25_vit.py: KimiK25MultiModalProjector).
_PROJECTOR = (("merged", "merged", "output"), ("merged", "out", "input"))


class ProjectorMatrix(NamedTuple):
    """A projector's matrix, between the encoder's layers and the language model.

    Attributes:
        inputs: Input width, the rows of the matrix.
        outputs: Output width, the columns of the matrix.
        divided: Dimension of the matrix that tensor parallelism splits: ``input`` or ``output``;
            empty for none.
        copies: Number of matrices of these sizes; several for Qwen3-VL's
            ``deepstack_visual_indexes``.
    """

    inputs: int
    outputs: int
    divided: str
    copies: int


class Product(NamedTuple):
    """A convolution of an encoder, before its layers or in them, as a matrix product.

    Attributes:
        rows: Number of input rows of the matrix, per position in the encoder's layers.
        inputs: Input width, the rows of the matrix.
        outputs: Output width, the columns of the matrix.
        copies: Number of matrices of these sizes.
    """

    rows: int
    inputs: int
    outputs: int
    copies: int


@dataclass(frozen=True)
class EncoderSpec:
    """Sizes of an encoder of images or audio and its projector, without biases and norms.

    Attributes:
        width: Width of the residual stream.
        layers: Number of layers.
        heads: Number of attention heads; 0 if unknown.
        ffn_width: Inner width of a feed-forward layer.
        gated: Whether a feed-forward layer has three matrices instead of two.
        full_layers: Number of layers in which all positions of a sequence attend to each other.
        window_patches: Positions per attention window in all other layers.
        patch_values: Number of values in one patch, the input width of the patch embedding; 0 for
            audio.
        positions: Number of rows of the position embedding table.
        projector: Matrices after the layers; each input row becomes one token of the prompt.
        products: Convolutions before the layers and in them, as matrices.
        attention_width: Width of the queries of all heads, and of keys and values; 0 if it equals
            ``width``.
        other_weights: Number of all other weights, which take memory but negligible time.
        replicated: Whether every GPU of a tensor-parallel group runs the whole encoder.
    """

    width: int
    layers: int
    heads: int
    ffn_width: int
    gated: bool
    full_layers: int
    window_patches: int
    patch_values: int
    positions: int
    projector: tuple[ProjectorMatrix, ...]
    products: tuple[Product, ...] = ()
    attention_width: int = 0
    other_weights: int = 0
    replicated: bool = False

    @property
    def layer_weights(self) -> int:
        """Return the number of weights in all layers: 4 attention and 2 or 3 FFN matrices each."""
        matrices = 3 if self.gated else 2
        attention = 4 * self.width * (self.attention_width or self.width)
        return self.layers * (attention + matrices * self.width * self.ffn_width)

    @property
    def projector_weights(self) -> int:
        """Return the number of weights in the projector."""
        return sum(each.copies * each.inputs * each.outputs for each in self.projector)

    @property
    def product_weights(self) -> int:
        """Return the number of weights in ``products``, such as convolutions."""
        return sum(each.copies * each.inputs * each.outputs for each in self.products)

    @property
    def parameters(self) -> int:
        """Return the number of weights in the encoder and its projector."""
        rows = self.patch_values + self.positions
        beside = self.product_weights + self.projector_weights + self.other_weights
        return self.layer_weights + rows * self.width + beside


def encoder_parameters(config: Mapping[str, object]) -> int:
    """Return the number of weights of a model's encoders and projectors; 0 without encoders.

    Args:
        config: Content of a config.json.
    """
    found = (read_encoder(config, part) for part in (VISION, AUDIO))
    return sum(each.parameters for each in found if each is not None)


def read_encoder(config: Mapping[str, object], part: str = VISION) -> EncoderSpec | None:
    """Return the encoder in a config.json; None if it is absent or its sizes are unknown.

    Args:
        config: Content of a config.json.
        part: ``vision`` or ``audio``.
    """
    config = thinker(config)
    own, family = encoder_config(config, part), family_of(config, part)
    if own is None or (part == AUDIO and not family):
        return None
    sizes = sizes_of(config, own)
    depth = sizes["layers"]
    full = own.get("fullatt_block_indexes")  # Qwen2.5-VL: layers without windows
    patch = first_size(own, "patch_size")
    frames = first_size(own, "temporal_patch_size") or 1
    deep = own.get("deepstack_visual_indexes")
    projectors = 1 + (len(deep) if isinstance(deep, list) else 0)
    return EncoderSpec(
        width=sizes["width"],
        layers=depth,
        heads=stated(own, "heads"),
        ffn_width=sizes[family.get("feed_forward", "inner")],
        gated=bool(family.get("gated", own.get("hidden_act") == _GATED)),
        full_layers=len(full) if isinstance(full, list) else depth,
        window_patches=(first_size(own, "window_size") // max(patch, 1)) ** 2,
        patch_values=(stated(own, "channels") or 3) * patch**2 * frames,
        positions=_positions(family, own, sizes),
        projector=tuple(
            ProjectorMatrix(size_of(inputs, sizes), size_of(outputs, sizes), divided, projectors)
            for inputs, outputs, divided in family.get("projector", _PROJECTOR)
        ),
        products=tuple(
            Product(*(size_of(each, sizes) for each in (*product, 1)[:4]))
            for product in family.get("products", ())
        ),
        attention_width=first_size(own, "qkv_hidden_size"),
        other_weights=size_of(family.get("other", 0), sizes),
        replicated=bool(family.get("replicated")),
    )


def thinker(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the part of Qwen-Omni's config that processes prompts; else the whole config."""
    found = config.get("thinker_config")
    return found if isinstance(found, Mapping) else config


def has_encoder(config: Mapping[str, object]) -> bool:
    """Return whether a config.json describes or requires an encoder for images or audio."""
    own = thinker(config)
    is_named = str(own.get("model_type")) in models_file("encoders.json")["unread"]
    return is_named or any(encoder_config(own, part) is not None for part in (VISION, AUDIO))


def encoder_config(config: Mapping[str, object], part: str) -> Mapping[str, Any] | None:
    """Return an encoder's part of a config, or its sizes from the engine's code; None if absent."""
    family = family_of(config, part)
    for path in (f"{part}_config", family.get("config", "")):
        found = at(config, path)
        if isinstance(found, Mapping):
            return found
    return family.get("sizes")


def family_of(config: Mapping[str, object], part: str) -> dict[str, Any]:
    """Return the entry of encoders.json for a model type and an encoder type; empty if unknown.

    A model type that is not in the table has no entry, even if it refers to a known encoder,
    because it may have modified this encoder.

    Args:
        config: Content of a config.json.
        part: List in ``data/models/encoders.json``: ``vision`` or ``audio``.
    """
    families: list[dict[str, Any]] = models_file("encoders.json")[part]
    kinds = (config.get("model_type"), at(config, f"{part}_config.model_type"))
    whole, own = (next((f for f in families if kind in f["types"]), None) for kind in kinds)
    return {} if whole is None else whole | (own or {})


def at(config: Mapping[str, object], path: str) -> Any:
    """Return the value of a config under nested keys joined by dots, or None if there is none.

    >>> at({"size": {"longest_edge": 7}}, "size.longest_edge")
    7
    """
    found: Any = config
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def size_of(text: str | int, sizes: Mapping[str, int]) -> int:
    """Evaluate a size that is given as a sum of products of numbers and names of sizes.

    >>> size_of("3*width+2", {"width": 5})
    17
    """
    terms = (term.split("*") for term in str(text).split("+"))
    return sum(
        math.prod(int(f) if f.lstrip("-").isdecimal() else sizes.get(f, 0) for f in factors)
        for factors in terms
    )


def sizes_of(config: Mapping[str, object], own: Mapping[str, object]) -> dict[str, int]:
    """Return an encoder's sizes by name: the whole numbers in its config, and derived sizes."""
    nested = next((config[k] for k in ("text_config", "llm_config") if config.get(k)), config)
    text = first_size(nested if isinstance(nested, Mapping) else config, "hidden_size", "d_model")
    width = stated(own, "width")
    whole = {k: v for each in (config, own) for k, v in each.items() if type(v) is int}
    projected = first_size(config, "hidden_size")  # Ultravox: width inside its projector
    halved = 2 if config.get("projector_act", "swiglu") == "swiglu" else 1
    return whole | {
        "width": width,
        "layers": stated(own, "layers") + first_size(own, "num_global_layers"),
        "merged": width * (first_size(config, "stack_factor") or merged_patches(config, own) ** 2),
        "out": first_size(own, "out_hidden_size", "text_hidden_size") or text,
        "text": text,
        "inner": stated(own, "inner") or _FFN_RATIO * width,
        "projected": projected,
        "half": projected // halved,
    }


def _positions(family: Mapping[str, Any], own: Mapping[str, object], sizes: dict[str, int]) -> int:
    """Return the number of rows of the encoder's position embedding table."""
    if "positions" in family:
        return size_of(family["positions"], sizes)
    if "class_tokens" not in family:
        return stated(own, "positions")
    patches = first_size(own, "image_size") // max(first_size(own, "patch_size"), 1)
    return int(patches**2 + int(family["class_tokens"]))


def merged_patches(config: Mapping[str, object], own: Mapping[str, object]) -> int:
    """Return the patches along the edge of the square that becomes one image token."""
    kernel = own.get("merge_kernel_size")
    if isinstance(kernel, list | tuple) and kernel and isinstance(kernel[0], int):
        return kernel[0]
    for part in (own, config):
        if found := stated(part, "merge"):
            return found
        values = (part.get(key) for key in models_file("encoders.json")["keys"]["shuffled"])
        if ratio := next((each for each in values if isinstance(each, float)), None):
            return round(1 / ratio)
    return 1


def stated(config: Mapping[str, object], size: str) -> int:
    """Return an encoder's size, such as ``width``, under its keys in encoders.json; 0 if absent."""
    return first_size(config, *models_file("encoders.json")["keys"][size])


def first_size(config: Mapping[str, object], *names: str) -> int:
    """Return the first positive whole number under given keys of a config; 0 if there is none."""
    values = (config.get(name) for name in names)
    found = (
        v[0] if isinstance(v, list | tuple) and v == v[:1] * len(v) and v else v for v in values
    )
    return next((v for v in found if type(v) is int and v > 0), 0)
