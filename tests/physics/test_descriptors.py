"""The features of a deployment describe shapes and datasheets, never names."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from strategies import deployments

from pinn.engines.deployment import Deployment
from pinn.kernels.gemm_attention_moe import family
from pinn.kernels.hardware import hardware
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.precision import PRECISIONS, precision
from pinn.specs.serving import ServingSpec
from pinn.surrogate.featurizer import DESCRIPTORS, RATES, featurize


def describe(deployment):
    free, rates = featurize([deployment])
    return dict(zip((*DESCRIPTORS, *RATES), [*free[0], *rates[0]], strict=True))


@given(deployments())
def test_every_descriptor_is_finite(deployment):
    free, rates = featurize([deployment, deployment])
    assert free.shape == (2, len(DESCRIPTORS))
    assert rates.shape == (2, len(RATES))
    assert np.isfinite(free).all()
    assert np.isfinite(rates).all()


@given(deployments())
def test_names_do_not_matter(deployment):
    renamed = replace(
        deployment,
        model=replace(deployment.model, name="another"),
        gpu=replace(deployment.gpu, name="another", source="elsewhere"),
    )
    for a, b in zip(featurize([deployment]), featurize([renamed]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_llama_8b_on_an_h100(llama_8b_h100):
    found = describe(llama_8b_h100)
    assert found["layers"] == 5  # log2 of 32
    assert found["heads"] == 5
    assert found["kv_heads"] == 3
    assert found["hidden_size"] == pytest.approx(np.log2(1 + 4096 / 64))
    assert found["moe_share"] == found["expert_parallel"] == found["tensor_parallel"] == 0
    assert found["dense_bytes"] == 1  # log2 of 2 bytes
    # Rates are relative to this GPU, the H100.
    assert [found[name] for name in RATES] == pytest.approx([0, 0, 0], abs=1e-3)


@pytest.mark.parametrize("name", ["A100-SXM-80GB", "L40S", "H100", "B200", "B300", "RTX PRO 6000"])
def test_formats_of_experts_that_other_kernels_multiply_are_told_apart(name):
    # mxfp4 with 16-bit activations takes up to four times as long as with 8-bit ones on Blackwell.
    gpu = load_gpu(name)
    blackwell = 10 <= gpu.compute_capability < 11  # elsewhere nothing multiplies mxfp4 by mxfp8
    formats = [form for form in PRECISIONS if blackwell or form != "mxfp4_mxfp8"]
    served = [deployed(gpu, form) for form in formats]
    ids = np.arange(len(formats))
    families = family(hardware([gpu], np.zeros(len(formats), dtype=int), formats, ids))
    free, _ = featurize(served)
    for i, j in combinations(ids, 2):
        if families[i] != families[j]:
            assert (free[i] != free[j]).any(), f"{formats[i]} and {formats[j]} on {name}"


def deployed(gpu, expert_format):
    """Return gpt-oss-120b with experts of a format, even without an engine's kernels for it."""
    model = load_model("openai/gpt-oss-120b")
    formats = replace(model.precisions, experts=precision(expert_format))
    return Deployment(replace(model, precisions=formats), gpu, ServingSpec(), force=True)


@pytest.mark.parametrize(
    ("flags", "mib"),
    [
        ({"tensor_parallel_size": 8, "engine_version": "0.15.1"}, 0),
        ({"tensor_parallel_size": 8, "engine_version": "0.19.0"}, 0.5),
        ({"tensor_parallel_size": 4, "engine_version": "0.19.0"}, 2),
        ({"tensor_parallel_size": 4, "engine_version": "0.19.0", "fuse_all_reduce": False}, 0),
        ({"engine_version": "0.19.0"}, 0),
    ],
)
def test_the_largest_fused_message_is_a_descriptor(llama_8b_h100, flags, mib):
    """In steps of 256 KiB, as log2(1 + n): 0 where nothing is fused."""
    found = describe(replace(llama_8b_h100, serving=ServingSpec(**flags)))
    assert found["fused_all_reduce"] == pytest.approx(np.log2(1 + mib * 4))


def test_fusing_moves_its_descriptor_alone(llama_8b_h100):
    own, fused = (
        describe(replace(llama_8b_h100, serving=ServingSpec(tensor_parallel_size=4, **flags)))
        for flags in ({"fuse_all_reduce": False}, {"fuse_all_reduce": True})
    )
    assert [name for name in own if own[name] != fused[name]] == ["fused_all_reduce"]
    assert len(DESCRIPTORS) == 45


def test_sampling_is_no_descriptor(llama_8b_h100):
    # Sampling is a cost: it changes no input of the network, and so none of its betas.
    flags = ServingSpec(override_generation_config='{"temperature": 0}')
    assert describe(replace(llama_8b_h100, serving=flags)) == describe(llama_8b_h100)


def test_doubling_a_rate_moves_that_rate_alone(llama_8b_h100):
    gpu = llama_8b_h100.gpu
    faster = replace(gpu, memory_bandwidth_bytes_per_s=2 * gpu.memory_bandwidth_bytes_per_s)
    before, after = describe(llama_8b_h100), describe(replace(llama_8b_h100, gpu=faster))
    moved = {name: after[name] - before[name] for name in before if after[name] != before[name]}
    assert moved == {"memory_bandwidth": pytest.approx(np.log(2))}
