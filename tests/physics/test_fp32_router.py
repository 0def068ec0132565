"""Routers in fp32 are multiplied outside the tensor cores, unless a flag or a release says TF32."""

import numpy as np
import pytest

from pinn.engines.configurations import canonical, make_deployment
from pinn.physics.costs import step_costs
from pinn.physics.layer_work import dense_matmuls
from pinn.specs.gpu import load_gpu
from pinn.specs.precision import FP32_PRODUCT, precision

SERVER = {"model": "MiniMaxAI/MiniMax-M2.5", "gpu": "B200", "tensor_parallel_size": 4}
LAYERS, HIDDEN, EXPERTS = 62, 3072, 256


def served(**flags):
    return make_deployment(canonical(SERVER | {"engine_version": "0.19.0"} | flags))


def costs(**flags):
    """Costs without and with the tensor cores."""
    return [
        step_costs([served(**flags, float32_matmul_precision=name)]) for name in ("highest", "high")
    ]


@pytest.mark.parametrize(
    ("gpu", "tflops"),  # NVIDIA's datasheets: FP32
    [("T4", 8.1), ("A100-SXM-80GB", 19.5), ("A10", 31.2), ("L40S", 91.6), ("RTX-4090", 82.6),
     ("H100", 67), ("H200", 67), ("B200", 75), ("RTX-PRO-6000-Server", 120)],
)  # fmt: skip
def test_the_fp32_rate_is_that_of_the_datasheet(gpu, tflops):
    chip = load_gpu(gpu)
    assert chip.matmul_flop_per_s(FP32_PRODUCT) == pytest.approx(tflops * 1e12, rel=0.05)


def test_tf32_is_half_as_fast_as_bf16_where_tensor_cores_have_it():
    bf16 = precision("bf16")
    for name in ("A100-SXM-80GB", "H100", "B200"):
        chip = load_gpu(name)
        tf32 = chip.matmul_flop_per_s(FP32_PRODUCT, tf32=True)
        assert tf32 == chip.matmul_flop_per_s(bf16) / 2
        assert chip.matmul_flop_per_s(bf16, tf32=True) == chip.matmul_flop_per_s(bf16)
    old = load_gpu("T4")
    assert old.matmul_flop_per_s(FP32_PRODUCT, tf32=True) == old.matmul_flop_per_s(FP32_PRODUCT)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, False),
        ({"float32_matmul_precision": "high"}, True),
        ({"float32_matmul_precision": "medium"}, True),
        ({"engine_version": "0.30.0"}, True),  # a kernel of bf16 products for data-center Blackwell
        ({"engine_version": "0.30.0", "gpu": "H200"}, False),
        ({"engine_version": "0.30.0", "model": "zai-org/GLM-4.5"}, False),
        ({"engine_version": "0.31.0", "model": "zai-org/GLM-4.5"}, True),
        ({"engine": "sglang", "engine_version": "0.5.12"}, False),
        ({"engine": "sglang", "engine_version": "0.5.15.post1"}, True),
    ],
)
def test_who_uses_the_tensor_cores(flags, expected):
    assert served(**flags).recipe.tf32 is expected


def test_costs_of_the_router_by_hand():
    slow, fast = costs()
    flop, gpu = 2.0 * LAYERS * HIDDEN * EXPERTS, load_gpu("B200")
    per_token = flop / gpu.matmul_flop_per_s(FP32_PRODUCT) - flop / (2.25e15 / 2)
    np.testing.assert_allclose(slow.gemm_token_s - fast.gemm_token_s, per_token, rtol=1e-9)
    np.testing.assert_allclose(slow.quantized_layers - fast.quantized_layers, LAYERS)
    np.testing.assert_allclose(slow.gemm_weights_s, fast.gemm_weights_s)


def test_other_models_have_routers_in_16_bits():
    flags = {"model": "Qwen/Qwen3-30B-A3B"}
    slow, fast = costs(**flags)
    assert slow == fast
    (router,) = (m for m in dense_matmuls(served().model, 4) if m.name == "router")
    assert (router.weights, router.n, router.k) == (FP32_PRODUCT, EXPERTS, HIDDEN)
