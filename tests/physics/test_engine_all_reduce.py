"""Savings of an engine's own all-reduce: by hand, and laws."""

import numpy as np
import pytest
from batch_work import batch_work

from pinn.engines.deployment import Deployment
from pinn.physics.costs import step_costs
from pinn.specs.batch import Batch
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.model_variants import with_precision
from pinn.specs.serving import ServingSpec
from pinn.surrogate.step_features import STEP_FEATURES, step_features

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
@pytest.mark.parametrize("engine", ["vllm", *LATENCY])
def test_fusing_lets_no_feature_of_communication_grow(engine, tokens):
    batch = Batch.decode(tokens, 512)
    names = [n for n, f in STEP_FEATURES.items() if f.part == "communication"]
    places = [list(STEP_FEATURES).index(n) for n in names]
    own, other = (
        step_features(*batch_work(deployed, [batch]))[0, places]
        for deployed in (
            deploy(engine, 8, fuse_all_reduce=True), deploy("vllm", 8, fuse_all_reduce=False)
        )
    )  # fmt: skip
    assert (own <= other).all()
    assert np.any(own < other)


def test_vllm_that_fuses_takes_what_the_kernel_does_that_can():
    fused, sglang = (costs(engine, 4, fuse_all_reduce=True) for engine in ("vllm", "sglang"))
    assert fused.parallel_layers == pytest.approx(LAYERS * 0.68 * 0.7)
    for name in ("parallel_layers", "all_reduces", "small_all_reduce_token_s"):
        assert getattr(fused, name) == pytest.approx(getattr(sglang, name))


#: Engine, release, GPU and ranks -> MiB of the largest message that is fused with a norm.
FUSED_MIB = [
    ("vllm", "0.19.0", "B200", 2, 64),
    ("vllm", "0.19.0", "B200", 4, 32),
    ("vllm", "0.19.0", "B200", 8, 1),
    ("vllm", "0.19.0", "B300", 8, 2),
    ("vllm", "0.19.0", "H100", 2, 64),
    ("vllm", "0.19.0", "H100", 4, 2),
    ("vllm", "0.19.0", "H100", 8, 0.5),
    ("vllm", "0.15.1", "H100", 8, 0),
    ("vllm", "0.15.1", "B200", 4, 0),
    ("vllm", "0.19.0", "L40S", 4, 0),
    ("vllm", "0.19.0", "A100-SXM", 4, 0),
    ("vllm", "0.19.0", "B200", 1, 0),
    ("trtllm", None, "B200", 4, 8),
    ("trtllm", None, "H100", 8, 8),
    ("trtllm", None, "L40S", 4, 0),
]


@pytest.mark.parametrize(("engine", "version", "gpu", "tp", "mib"), FUSED_MIB)
def test_the_largest_fused_message_by_engine_release_gpu_and_ranks(engine, version, gpu, tp, mib):
    named = {} if version is None else {"engine_version": version}
    deployed = deploy(engine, tp, gpu, **named)
    assert deployed.recipe.fused_all_reduce_bytes == mib * 2**20
    one_shot = step_costs([deployed]).one_shot_bytes
    assert one_shot == max(mib * 2**20, 2**18)


def test_fusing_that_is_asked_for_takes_the_table_of_its_release():
    """0.15.1 has a table, too, though it fuses by default nowhere; 0.10.0 is taken as 0.11.1."""
    for version in ("0.10.0", "0.15.1"):
        asked = deploy("vllm", 8, "H100", engine_version=version, fuse_all_reduce=True)
        assert asked.recipe.fused_all_reduce_bytes == 2**19
    refused = deploy("vllm", 8, "H100", engine_version="0.19.0", fuse_all_reduce=False)
    assert refused.recipe.fused_all_reduce_bytes == 0


def test_sglang_fuses_up_to_8_mib_the_models_that_it_fuses():
    """By default none of Llama; asked for, as much as TensorRT-LLM's kernel takes."""
    for asked, mib in ((None, 0), (True, 8), (False, 0)):
        for gpu in ("H100", "B200"):
            deployed = deploy("sglang", 4, gpu, fuse_all_reduce=asked)
            assert deployed.recipe.fused_all_reduce_bytes == mib * 2**20
    assert deploy("sglang", 4, "L40S").recipe.fused_all_reduce_bytes == 0


def test_where_the_largest_fused_message_comes_from_is_said():
    origin = deploy("vllm", 4, "B200", engine_version="0.19.0").recipe.origins
    assert "FI_ALLREDUCE_FUSION_MAX_SIZE_MB" in origin["fused_all_reduce_bytes"].text
