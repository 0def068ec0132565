"""Vision encoders, counted from their config, against what is published."""

from __future__ import annotations

import pytest

from pinn.specs.audio import audio_reader
from pinn.specs.encoder import encoder_parameters, has_encoder, read_encoder
from pinn.specs.images import image_reader
from pinn.specs.media import Unread

QWEN3_VL = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "in_channels": 3,
            "patch_size": 16, "temporal_patch_size": 2, "num_position_embeddings": 2304,
            "spatial_merge_size": 2, "out_hidden_size": 4096, "hidden_act": "gelu_pytorch_tanh",
            "deepstack_visual_indexes": [8, 16, 24]}  # fmt: skip
PIXTRAL = {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096,
           "num_channels": 3, "patch_size": 14, "hidden_act": "silu"}  # fmt: skip
QWEN2_VL = {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "in_chans": 3, "patch_size": 14,
            "temporal_patch_size": 2, "spatial_merge_size": 2}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "billion", "within"),
    [
        # Tensors of Qwen3-VL-8B (8.77) less those of Qwen3-8B (8.19).
        ({"vision_config": QWEN3_VL}, 0.576, 0.01),
        # A start-up of Mistral-Small-3.2 logs 0.85 GiB more than its text part takes.
        ({"vision_config": PIXTRAL, "spatial_merge_size": 2, "text_config": {"hidden_size": 5120}},
         0.85 * 2**30 / 2e9, 0.05),
        # arXiv 2409.12191: a vision encoder of 675M parameters; its projector included here.
        ({"vision_config": QWEN2_VL, "hidden_size": 3584}, 0.675, 0.03),
    ],
)  # fmt: skip
def test_encoders_are_as_large_as_published(config, billion, within):
    assert encoder_parameters(config) / 1e9 == pytest.approx(billion, rel=within)


def test_text_alone_has_no_encoder():
    assert encoder_parameters({"hidden_size": 4096}) == 0
    assert encoder_parameters({"vision_config": None}) == 0


_SMALL = {"depth": 3, "hidden_size": 64, "num_heads": 4, "intermediate_size": 96,
          "out_hidden_size": 128}  # fmt: skip
_CLIPPED = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
            "intermediate_size": 96, "image_size": 56, "patch_size": 14}  # fmt: skip
_SIGLIP = {"model_type": "siglip_vision_model", "vision_use_head": False}
#: Families of which transformers has the modules, and sizes of their encoder.
FAMILIES = {
    "qwen2_vl": {"depth": 3, "embed_dim": 64, "num_heads": 4, "hidden_size": 8192},
    "qwen2_5_vl": _SMALL | {"fullatt_block_indexes": [1]},
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "cosmos3_omni"),
                    _SMALL | {"deepstack_visual_indexes": [0, 1]}),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "glm4v", "glm4v_moe", "glm46v", "glm_ocr"),
                    _SMALL),
    **dict.fromkeys(("gemma3", "paligemma"), _CLIPPED | _SIGLIP),
    **dict.fromkeys(("mistral3", "mistral_large4", "lighton_ocr", "llava", "llava_next",
                     "llava_next_video", "internvl", "qianfan_ocr", "idefics3", "smolvlm",
                     "minimax_m3_vl"), _CLIPPED),
    "llava_onevision": _CLIPPED | _SIGLIP,
    "gemma4": _CLIPPED | {"model_type": "gemma4_vision", "head_dim": 16, "num_key_value_heads": 4},
    "llama4": _CLIPPED | {
        "model_type": "llama4_vision_model", "intermediate_size": 256, "vision_output_dim": 192,
        "projector_input_dim": 192, "projector_output_dim": 192,
    },
}  # fmt: skip
#: Families with audio, and sizes of their encoder; empty for transformers' defaults.
HEARING = {
    "qwen2_audio": {"d_model": 64, "encoder_layers": 2, "encoder_ffn_dim": 96,
                    "encoder_attention_heads": 4, "max_source_positions": 50},
    "voxtral": {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 256,
                "num_attention_heads": 4, "max_source_positions": 50},
    "qwen3_asr": {"d_model": 64, "encoder_layers": 2, "encoder_ffn_dim": 96, "output_dim": 128,
                  "encoder_attention_heads": 4},
    "gemma4": {"model_type": "gemma4_audio", "num_hidden_layers": 2, "output_proj_dims": 96},
    "audioflamingo3": {},
}  # fmt: skip


def _outer(model_type, sizes):
    """A configuration of transformers with an encoder of these sizes."""
    mapping = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    default = mapping[model_type]().vision_config
    vision = {} if default is None else default.to_dict()
    return mapping[model_type](vision_config=vision | sizes)


@pytest.mark.parametrize("own_sizes", [True, False])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_weights_are_those_of_the_modules(model_type, own_sizes):
    torch = pytest.importorskip("torch")
    models = pytest.importorskip("transformers", minversion="5.24")
    kept = FAMILIES[model_type]
    if not own_sizes:  # transformers' defaults
        kept = {n: v for n, v in kept.items() if n in ("vision_use_head", "model_type")}
        kept |= {"hidden_size": 8192} if model_type == "qwen2_vl" else {}
    config = _outer(model_type, kept)
    with torch.device("meta"):
        parameters = models.AutoModel.from_config(config).named_parameters()
    beside = ("language_model", "text_model", "image_newline")
    sizes = (p.numel() for n, p in parameters if p.ndim > 1 and not n.startswith(beside))
    found = read_encoder(config.to_dict())
    assert found.parameters == sum(sizes)
    assert found.heads > 0


@pytest.mark.parametrize("own_sizes", [True, False])
@pytest.mark.parametrize("model_type", HEARING)
def test_weights_of_audio_encoders_are_those_of_the_modules(model_type, own_sizes):
    torch = pytest.importorskip("torch")
    models = pytest.importorskip("transformers", minversion="5.24")
    mapping = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    kept = HEARING[model_type] if own_sizes else {}
    kept |= {"model_type": "gemma4_audio"} if model_type == "gemma4" else {}
    own = mapping[model_type]().audio_config
    config = mapping[model_type](audio_config=({} if own is None else own.to_dict()) | kept)
    with torch.device("meta"):
        parameters = models.AutoModel.from_config(config).named_parameters()
    parts = ("audio_tower", "embed_audio", "multi_modal_projector")
    sizes = (p.numel() for n, p in parameters if p.ndim > 1 and n.startswith(parts))
    found = read_encoder(config.to_dict(), "audio")
    assert found.parameters == sum(sizes)
    assert found.heads > 0


def test_the_window_of_qwen2_5_is_read():
    vision = {"depth": 32, "hidden_size": 1280, "num_heads": 16, "intermediate_size": 3420,
              "patch_size": 14, "spatial_merge_size": 2, "window_size": 112,
              "fullatt_block_indexes": [7, 15, 23, 31], "out_hidden_size": 3584}  # fmt: skip
    config = {"model_type": "qwen2_5_vl", "hidden_size": 3584, "vision_config": vision}
    found = read_encoder(config)
    assert (found.full_layers, found.window_patches) == (4, 64)
    # All pairs of 28 layers lie within windows of 64 patches; those of 4 do not.
    patches = 64 * 64
    pairs = patches * (4 * patches + 28 * 64)
    products = 2 * (found.layer_weights + found.patch_values * 1280) * patches
    projector = 2 * found.projector_weights * patches / 4
    reader = image_reader(config)
    flop = reader.item(896, 896).flop(reader.encoder)
    assert flop == pytest.approx(products + projector + 4 * 1280 * pairs)


def test_an_unknown_model_with_a_known_encoder_is_not_taken_for_its_family():
    vision = {"model_type": "clip_vision_model", "hidden_size": 64, "num_hidden_layers": 2,
              "image_size": 56, "patch_size": 14}  # fmt: skip
    assert read_encoder({"model_type": "brand_new", "vision_config": vision}).positions == 0


@pytest.mark.parametrize("model_type", ["qwen3_5", [0, 0]])
@pytest.mark.parametrize("size", [[[0], [0]], [], [1, 2], "x"])
def test_a_list_in_the_place_of_a_word_or_a_size_says_nothing(model_type, size):
    config = {"model_type": model_type, "vision_config": {"hidden_size": size},
              "audio_config": {"hidden_size": size, "model_type": [0]}}  # fmt: skip
    assert has_encoder(config)
    assert encoder_parameters(config) == 0
    assert isinstance(image_reader(config), Unread)
    assert isinstance(audio_reader(config), Unread)
