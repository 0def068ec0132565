"""Weights on a GPU, compared with releases' padding and servers' logs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pinn.engines.configurations import make_deployment
from pinn.memory.kv_cache import memory_fit
from pinn.memory.lora import lora_bytes
from pinn.memory.weights import gpu_weight_bytes
from pinn.units import GIB

#: Padded width of a slice of 2,880 / TP, by release, GPU and TP. Up to 0.18 by mxfp4.py:
#: create_weights, then oracle/mxfp4.py: mxfp4_round_up_hidden_size_and_intermediate_size.
PADDED = [
    ("0.11.0", "H100", 1, 2880), ("0.11.0", "B200", 1, 3072), ("0.11.0", "B300", 1, 2880),
    ("0.22.1", "B200", 2, 1536), ("0.22.1", "H200", 2, 1536), ("0.22.1", "B300", 1, 3072),
    ("0.33.0", "B200", 1, 2944), ("0.33.0", "A100-SXM-80GB", 1, 2944), ("0.33.0", "L40S", 2, 1536),
]  # fmt: skip
#: Layers, experts and bytes per weight of gpt-oss-120b; its hidden size is padded to 3,072.
LAYERS, EXPERTS, BYTES = 36, 128, 4.25 / 8


def gpt_oss(**served):
    return gpu_weight_bytes(make_deployment({"model": "openai/gpt-oss-120b"} | served))


@pytest.mark.parametrize(("release", "gpu", "tp", "width"), PADDED)
def test_mxfp4_experts_are_padded_as_the_release_pads_them(release, gpu, tp, width):
    found = gpt_oss(gpu=gpu, engine_version=release, tensor_parallel_size=tp)
    # All else is equal in the first release on H100, which pads widths to 64.
    plain = gpt_oss(gpu="H100", engine_version="0.11.0", tensor_parallel_size=tp)
    added = width - -(-2880 // tp // 64) * 64
    expected = LAYERS * EXPERTS * 3 * BYTES * 3072 * added
    assert found - plain == pytest.approx(expected, abs=GIB / 1000)


def test_marlin_pads_by_its_own_multiple():
    served = {"gpu": "B200", "engine_version": "0.22.1"}
    own, marlin = gpt_oss(**served), gpt_oss(**served, moe_backend="marlin")
    assert marlin / own == pytest.approx(2944 / 3072, rel=0.01)


def test_lora_slots_take_two_matrices_of_every_slice():
    """Llama-3.1-8B by hand: hidden 4,096, keys 1,024, feed-forward 14,336, 32 layers."""
    served = {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100", "enable_lora": True}
    with pytest.warns(UserWarning, match="LoRA"):
        one, four, cut = (
            make_deployment(served | flags)
            for flags in (
                {},
                {"max_loras": 4, "max_lora_rank": 64},
                {"tensor_parallel_size": 2},
            )
        )
    attention = 3 * 4096 + 4096 + 2 * 1024 + 4096 + 4096
    ffn = 3 * (4096 + 14_336)
    assert lora_bytes(one) == 16 * 2 * 32 * (attention + ffn)
    assert lora_bytes(four) == 16 * lora_bytes(one)
    assert lora_bytes(one) / 2 < lora_bytes(cut) < lora_bytes(one)
    plain = make_deployment({"model": "meta-llama/Llama-3.1-8B", "gpu": "H100"})
    assert lora_bytes(plain) == 0
    left = memory_fit(plain).kv_bytes - memory_fit(four).kv_bytes
    assert left == pytest.approx(lora_bytes(four), rel=1e-9)


@pytest.mark.parametrize(("mode", "shares"), [("weights", 4), ("data", 1)])
def test_an_encoder_that_takes_whole_images_is_on_every_gpu(mode, shares):
    served = {"model": "Qwen/Qwen3-VL-8B-Instruct", "gpu": "H100", "tensor_parallel_size": 4}
    found = make_deployment(served | {"mm_encoder_tp_mode": mode})
    alone = replace(found, model=replace(found.model, encoder_parameters=0, images=None))
    encoder = gpu_weight_bytes(found) - gpu_weight_bytes(alone)
    assert encoder == pytest.approx(2 * found.model.encoder_parameters / shares)
