"""Savings of an engine's own all-reduce: by hand, and laws."""

import numpy as np
import pytest

from pinn.engines.deployment import Deployment
from pinn.physics.costs import step_costs
from pinn.specs.batch import Batch
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.model_variants import with_precision
from pinn.specs.serving import ServingSpec
from pinn.surrogate.step_features import STEP_FEATURES, step_features
from pinn.surrogate.surrogate import batch_work

LLAMA = with_precision(load_model("meta-llama/Llama-3.3-70B-Instruct"), "fp8")
LAYERS = 80
#: Latency of an engine's all-reduce over vLLM's, for the releases assumed by default.
LATENCY = {"sglang": 0.66, "trtllm": 0.68}


def deploy(engine, tp, gpu="H200", **flags):
    serving = ServingSpec(engine=engine, tensor_parallel_size=tp, **flags)
    return Deployment(LLAMA, load_gpu(gpu), serving)


def costs(*arguments, **flags):
    return step_costs([deploy(*arguments, **flags)])


@pytest.mark.parametrize("engine", LATENCY)
def test_a_fused_faster_all_reduce_by_hand(engine):
    """SGLang fuses with a copy of TensorRT-LLM's kernel, whatever its own kernel takes."""
    found = costs(engine, 4, fuse_all_reduce=True)
    latency = LATENCY["trtllm"]
    assert found.parallel_layers == pytest.approx(LAYERS * latency * 0.7)
    assert found.all_reduces == pytest.approx((2 * LAYERS + 1) * latency)
    assert found.quantized_layers == (0 if engine == "trtllm" else LAYERS)
    small = found.small_all_reduce_token_s / found.all_reduce_token_s
    assert small == pytest.approx(latency)


@pytest.mark.parametrize("engine", LATENCY)
def test_without_fusion_norms_and_quantization_are_kernels_of_their_own(engine):
    found = costs(engine, 4, fuse_all_reduce=False)
    assert found.parallel_layers == pytest.approx(LAYERS * LATENCY[engine])
    assert found.quantized_layers == LAYERS


@pytest.mark.parametrize("engine", LATENCY)
def test_one_gpu_reduces_nothing_whatever_the_engine(engine):
    own, other = costs(engine, 1), costs("vllm", 1)
    for name in ("parallel_layers", "all_reduces", "quantized_layers", "small_all_reduce_token_s"):
        assert getattr(own, name) == getattr(other, name)


def test_vllm_is_what_the_others_are_measured_against():
    found = costs("vllm", 4, fuse_all_reduce=False)
    assert found.parallel_layers == found.quantized_layers == LAYERS
    assert found.small_all_reduce_token_s == found.all_reduce_token_s


def test_without_nvlink_every_engine_takes_as_long():
    gpu = load_gpu("L40S")
    assert not gpu.has_nvlink
    own, other = (costs(e, 4, "L40S", fuse_all_reduce=False) for e in ("sglang", "vllm"))
    assert own.parallel_layers == other.parallel_layers


@pytest.mark.parametrize("tokens", [1, 64, 512, 8192])
def test_no_feature_of_communication_grows(tokens):
    batch = Batch.decode(tokens, 512)
    names = [n for n, f in STEP_FEATURES.items() if f.part == "communication"]
    places = [list(STEP_FEATURES).index(n) for n in names]
    own, other = (
        step_features(*batch_work(deploy(engine, 8), [batch]))[0, places]
        for engine in ("trtllm", "vllm")
    )
    assert (own <= other).all()
    assert np.any(own < other)
