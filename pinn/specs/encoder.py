"""Vision encoders: their weights, which lie in GPU memory beside the text."""

from collections.abc import Mapping

#: Keys of a ``vision_config`` for each size, in the order that counts. Qwen2-VL calls the text's
#: width ``hidden_size`` and the encoder's ``embed_dim``.
_WIDTH = ("embed_dim", "hidden_size", "vt_hidden_size")
_DEPTH = ("depth", "num_hidden_layers", "vt_num_hidden_layers")
_FFN = ("intermediate_size", "vt_intermediate_size")
_CHANNELS = ("in_channels", "in_chans", "num_channels")
#: Without an ``intermediate_size``, a layer is so many times as wide inside (Qwen2-VL's mlp_ratio).
_FFN_RATIO = 4
#: Activation of encoders whose feed-forward layers have a gate, and so three matrices: Pixtral,
#: Qwen2.5-VL (vLLM models/pixtral.py: PixtralHFMLP; qwen2_5_vl.py: Qwen2_5_VisionMLP).
_GATED = "silu"


def encoder_parameters(config: Mapping[str, object]) -> int:
    """Return the parameters of a model's vision encoder and projector; 0 without a vision_config.

    Each layer has four attention matrices and two or three of the feed-forward part. The projector
    has two matrices over ``spatial_merge_size`` squared patches, and each of Qwen3-VL's
    ``deepstack_visual_indexes`` one more projector (vLLM models/qwen3_vl.py:
    Qwen3_VisionPatchMerger; kimi_k25_vit.py: KimiK25MultiModalProjector). Biases and norms are
    left out. Audio encoders are not counted.

    Args:
        config: Content of a config.json.
    """
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return 0
    width, _, layers = layer_sizes(vision)
    patch = first_size(vision, "patch_size") ** 2 * (first_size(vision, "temporal_patch_size") or 1)
    embedding = (first_size(vision, *_CHANNELS) or 3) * patch * width
    positions = first_size(vision, "num_position_embeddings", "position_embedding_size") * width
    return layers + embedding + positions + _projector(config, vision, width)


def layer_sizes(vision: Mapping[str, object]) -> tuple[int, int, int]:
    """Return the width of an encoder, its layers, and the weights of all of them."""
    width, depth = first_size(vision, *_WIDTH), first_size(vision, *_DEPTH)
    depth += first_size(vision, "num_global_layers")  # of Llama 3.2
    ffn = first_size(vision, *_FFN) or _FFN_RATIO * width
    matrices = 3 if vision.get("hidden_act") == _GATED else 2
    return width, depth, depth * (4 * width * width + matrices * width * ffn)


def merged_patches(config: Mapping[str, object], vision: Mapping[str, object]) -> int:
    """Return the patches of a token's edge."""
    kernel = vision.get("merge_kernel_size")
    if isinstance(kernel, list) and kernel and isinstance(kernel[0], int):
        return kernel[0]
    key = "spatial_merge_size"
    return first_size(vision, key) or first_size(config, key) or 1


def _projector(config: Mapping[str, object], vision: Mapping[str, object], width: int) -> int:
    """Return the parameters between the encoder and the text's residual stream."""
    nested = config.get("text_config")
    text = nested if isinstance(nested, Mapping) else config
    out = first_size(vision, "out_hidden_size", "text_hidden_size") or first_size(
        text, "hidden_size"
    )
    merge = merged_patches(config, vision)
    merged, deep = width * merge * merge, vision.get("deepstack_visual_indexes")
    projectors = 1 + (len(deep) if isinstance(deep, list) else 0)
    return projectors * (merged * merged + merged * out)


def first_size(config: Mapping[str, object], *names: str) -> int:
    """Return the first of these keys that is a positive whole number; 0 without one."""
    values = (config.get(name) for name in names)
    return next((v for v in values if isinstance(v, int) and v > 0), 0)
