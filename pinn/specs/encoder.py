"""Vision encoders: sizes and weights, from a config.json and a table of families."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pinn.specs.config_fields import models_file

#: Keys of a ``vision_config`` for each size, in order of precedence. In Qwen2-VL, ``embed_dim`` is
#: the encoder's width and ``hidden_size`` the width of the language model.
_WIDTH = ("embed_dim", "hidden_size", "vt_hidden_size")
_DEPTH = ("depth", "num_hidden_layers", "vt_num_hidden_layers")
_FFN = ("intermediate_size", "vt_intermediate_size")
_HEADS = ("num_heads", "num_attention_heads", "vt_num_attention_heads")
_CHANNELS = ("in_channels", "in_chans", "num_channels")
_POSITIONS = ("num_position_embeddings", "position_embedding_size")
#: Default ratio of a feed-forward layer's inner width to the stream's width (Qwen2-VL's mlp_ratio).
_FFN_RATIO = 4
#: Activation function that implies gated feed-forward layers, if the encoder family is unknown.
_GATED = "silu"
#: Projector of an encoder of unknown family: the one of Qwen and Kimi (vLLM kimi_k25_vit.py:
#: KimiK25MultiModalProjector).
_PROJECTOR = (("merged", "merged", "output"), ("merged", "out", "input"))


class ProjectorMatrix(NamedTuple):
    """A matrix between the encoder's layers and the language model's residual stream.

    Attributes:
        inputs: Input width, the rows of the matrix.
        outputs: Output width, the columns of the matrix.
        divided: Dimension that tensor parallelism divides: ``input`` or ``output``; empty for none.
        copies: Number of such matrices; several for Qwen3-VL's ``deepstack_visual_indexes``.
    """

    inputs: int
    outputs: int
    divided: str
    copies: int


@dataclass(frozen=True)
class EncoderSpec:
    """Sizes of a vision encoder and its projector, without biases and norms.

    Attributes:
        width: Width of the residual stream.
        layers: Number of layers.
        heads: Attention heads; 0 if unknown.
        ffn_width: Inner width of a feed-forward layer.
        gated: Whether a feed-forward layer has three matrices instead of two.
        full_layers: Number of layers in which all patches of an image attend to each other.
        window_patches: Patches per attention window in all other layers.
        patch_values: Numbers per patch (pixels x channels), the input width of the patch embedding.
        positions: Rows of the position embedding table.
        projector: Matrices after the layers; each row of their input becomes one image token.
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

    @property
    def layer_weights(self) -> int:
        """Return the weights of all layers, each with 4 attention and 2 or 3 FFN matrices."""
        matrices = 3 if self.gated else 2
        return self.layers * (4 * self.width**2 + matrices * self.width * self.ffn_width)

    @property
    def projector_weights(self) -> int:
        """Return the number of weights in the projector."""
        return sum(each.copies * each.inputs * each.outputs for each in self.projector)

    @property
    def parameters(self) -> int:
        """Return the number of weights in the encoder and its projector."""
        rows = self.patch_values + self.positions
        return self.layer_weights + rows * self.width + self.projector_weights


def encoder_parameters(config: Mapping[str, object]) -> int:
    """Return the number of weights of a vision encoder and projector; 0 without a vision_config.

    Audio encoders are not counted.

    Args:
        config: Content of a config.json.
    """
    found = read_encoder(config)
    return 0 if found is None else found.parameters


def read_encoder(config: Mapping[str, object]) -> EncoderSpec | None:
    """Return the vision encoder that a config.json describes; None without a vision_config."""
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return None
    family, sizes = _family(config, vision), _sizes(config, vision)
    depth = first_size(vision, *_DEPTH)
    # Llama 3.2's encoder has further, global layers
    depth += first_size(vision, "num_global_layers")
    # all other layers of Qwen2.5-VL attend within windows
    full = vision.get("fullatt_block_indexes")
    patch = first_size(vision, "patch_size")
    frames = first_size(vision, "temporal_patch_size") or 1
    deep = vision.get("deepstack_visual_indexes")
    projectors = 1 + (len(deep) if isinstance(deep, list) else 0)
    return EncoderSpec(
        width=sizes["width"],
        layers=depth,
        heads=first_size(vision, *_HEADS),
        ffn_width=sizes[family.get("feed_forward", "inner")],
        gated=bool(family.get("gated", vision.get("hidden_act") == _GATED)),
        full_layers=len(full) if isinstance(full, list) else depth,
        window_patches=(first_size(vision, "window_size") // max(patch, 1)) ** 2,
        patch_values=(first_size(vision, *_CHANNELS) or 3) * patch**2 * frames,
        positions=_positions(family, vision, patch),
        projector=tuple(
            ProjectorMatrix(sizes[inputs], sizes[outputs], divided, projectors)
            for inputs, outputs, divided in family.get("projector", _PROJECTOR)
        ),
    )


def _family(config: Mapping[str, object], vision: Mapping[str, object]) -> dict[str, Any]:
    """Return the table's entry for a model type and an encoder type; an empty one if unknown.

    An unlisted model has no entry, even if it names a known encoder: it may have modified the
    encoder (MiniMax-M3 has no position embedding).
    """
    families: list[dict[str, Any]] = models_file("encoders.json")["families"]
    kinds = (config.get("model_type"), vision.get("model_type"))
    whole, part = (next((f for f in families if kind in f["types"]), None) for kind in kinds)
    return {} if whole is None else whole | (part or {})


def _sizes(config: Mapping[str, object], vision: Mapping[str, object]) -> dict[str, int]:
    """Return the widths of an encoder that its projector depends on, by name."""
    nested = config.get("text_config")
    text = first_size(nested if isinstance(nested, Mapping) else config, "hidden_size")
    width = first_size(vision, *_WIDTH)
    return {
        "width": width,
        "merged": width * merged_patches(config, vision) ** 2,
        "out": first_size(vision, "out_hidden_size", "text_hidden_size") or text,
        "text": text,
        "inner": first_size(vision, *_FFN) or _FFN_RATIO * width,
    }


def _positions(family: Mapping[str, Any], vision: Mapping[str, object], patch: int) -> int:
    """Return the number of rows of the position embedding table."""
    if "class_tokens" not in family:
        return first_size(vision, *_POSITIONS)
    return (first_size(vision, "image_size") // max(patch, 1)) ** 2 + int(family["class_tokens"])


def merged_patches(config: Mapping[str, object], vision: Mapping[str, object]) -> int:
    """Return the number of patches along the edge of one image token."""
    kernel = vision.get("merge_kernel_size")
    if isinstance(kernel, list) and kernel and isinstance(kernel[0], int):
        return kernel[0]
    key = "spatial_merge_size"
    return first_size(vision, key) or first_size(config, key) or 1


def first_size(config: Mapping[str, object], *names: str) -> int:
    """Return the first positive whole number under the given keys; 0 if there is none."""
    values = (config.get(name) for name in names)
    return next((v for v in values if isinstance(v, int) and v > 0), 0)
