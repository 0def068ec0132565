"""Vision encoders, counted from their config, against what is published."""

from __future__ import annotations

import pytest

from pinn.specs.encoder import encoder_parameters

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
