"""Which kernels multiply the experts: what is asked for, what a release picks, what is timed."""

from __future__ import annotations

import pytest

from pinn.engines.configurations import canonical, make_deployment
from pinn.engines.deployment import Deployment
from pinn.engines.kernel_choice import (
    AUTO,
    CUTLASS,
    MARLIN,
    MARLIN_FORMAT,
    TRITON,
    as_in_tables,
    kernel_names,
    named_kernels,
)
from pinn.engines.recipe import DEFAULT, FLAG
from pinn.engines.recipe_rules import effective_recipe
from pinn.errors import PinnError
from pinn.physics.costs import step_costs
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.featurizer import DESCRIPTORS, featurize

MINIMAX = "MiniMaxAI/MiniMax-M2.5"


def deployed(gpu: str = "H200", model: str = MINIMAX, **flags) -> Deployment:
    """MiniMax-M2.5, whose experts are block-scaled fp8, on four GPUs."""
    given = {"model": model, "gpu": gpu, "tensor_parallel_size": 4} | flags
    return make_deployment(canonical(given))


def test_every_engines_spelling_is_one_of_four():
    assert named_kernels("FLASHINFER_CUTLASS") == named_kernels("CUTLASS") == CUTLASS
    assert named_kernels("triton") == TRITON
    assert named_kernels("Marlin") == MARLIN
    # The gpt-oss kernels of the same name are timed as the engine's own.
    assert named_kernels("triton_kernels") == named_kernels("deep_gemm") == AUTO
    asked = deployed("B200", engine="sglang", moe_runner_backend="triton")
    assert asked.expert_kernels == TRITON


@pytest.mark.parametrize("name", ["tritn", "vllm_auto", "0.15.0"])
def test_an_unknown_name_is_refused_with_those_that_are_known(name):
    with pytest.raises(PinnError, match=f"--moe-backend '{name}' is unknown") as error:
        deployed(moe_backend=name)
    assert ", ".join(sorted(kernel_names())) in str(error.value)


@pytest.mark.parametrize(
    ("gpu", "flags", "expected"),
    [
        ("H200", {"moe_backend": "cutlass"}, CUTLASS),
        ("H200", {"moe_backend": "triton"}, AUTO),  # which it is by itself
        ("H200", {"moe_backend": "cutlass", "enable_expert_parallel": True}, AUTO),
        ("H200", {"moe_backend": "cutlass", "precision": "bf16"}, AUTO),
        ("B200", {"moe_backend": "triton"}, TRITON),
        ("GB300", {"moe_backend": "triton", "enable_expert_parallel": True}, TRITON),
        ("B200", {"moe_backend": "cutlass"}, AUTO),
        ("B200", {"moe_backend": "triton", "precision": "nvfp4"}, AUTO),
        ("GB300", {"moe_backend": "flashinfer_cutlass", "precision": "nvfp4"}, CUTLASS),
        (
            "B200",
            {"moe_backend": "cutlass", "precision": "nvfp4", "enable_expert_parallel": True},
            CUTLASS,
        ),
        ("RTX-PRO-6000-Server", {"moe_backend": "cutlass", "precision": "nvfp4"}, AUTO),  # its own
        ("RTX-PRO-6000-Server", {"moe_backend": "triton"}, AUTO),
        ("B200", {"moe_backend": "triton", "model": "Llama-3.1-8B"}, AUTO),
        ("H100", {"moe_backend": "marlin", "model": "gpt-oss-120b"}, MARLIN),
        ("H200", {"moe_backend": "triton", "model": "gpt-oss-120b"}, AUTO),
        ("A100-SXM-80GB", {"moe_backend": "marlin", "model": "gpt-oss-120b"}, AUTO),  # its own
        ("H200", {"moe_backend": "marlin"}, AUTO),  # of fp8: not timed
    ],
)
def test_kernels_count_where_they_take_another_time_than_the_engines_own(gpu, flags, expected):
    assert deployed(gpu, **flags).expert_kernels == expected


@pytest.mark.parametrize(
    ("gpu", "version", "spread", "kernels", "timed_as"),
    [
        ("H200", "0.10.2", False, "triton", AUTO),
        ("H200", "0.11.0", True, "deepgemm", AUTO),
        ("B300", "0.11.0", False, "triton", TRITON),
        ("B200", "0.11.0", False, "deepgemm", AUTO),
        ("H200", "0.14.1", False, "deepgemm", AUTO),
        ("H200", "0.15.0", False, "flashinfer_cutlass", CUTLASS),
        ("H200", "0.15.0", True, "flashinfer_cutlass", AUTO),
        ("H100", "0.16.2", False, "flashinfer_cutlass", CUTLASS),
        ("H200", "0.17.0", False, "triton", AUTO),
        ("H200", "0.17.0", True, "flashinfer_cutlass", AUTO),
        ("B200", "0.15.1", False, "flashinfer_trtllm", AUTO),
        ("H20", "0.33.0", False, "triton", AUTO),
    ],
)
def test_releases_of_vllm_pick_kernels_by_gpu_and_spread(gpu, version, spread, kernels, timed_as):
    # Block-scaled fp8 as MiniMax-M2.5, but known to every release that was read.
    flags = {"engine_version": version, "enable_expert_parallel": spread}
    flags["model"] = "Qwen/Qwen3-235B-A22B-FP8"
    found = deployed(gpu, **flags)
    assert (found.recipe.moe_kernels, found.expert_kernels) == (kernels, timed_as)
    assert found.recipe.origins["moe_kernels"].kind == DEFAULT
    named = deployed(gpu, **flags, moe_backend="Triton").recipe
    assert (named.moe_kernels, named.origins["moe_kernels"].kind) == (TRITON, FLAG)


@pytest.mark.parametrize(
    ("gpu", "version", "model", "precision", "kernels", "timed_as"),
    [
        ("GB300", "0.5.12", MINIMAX, "nvfp4", "cutlass", CUTLASS),
        ("B200", "0.5.9", MINIMAX, "nvfp4", "cutlass", CUTLASS),
        ("B200", "0.5.16", MINIMAX, "nvfp4", "auto", AUTO),
        ("B200", "0.5.12", "deepseek-ai/DeepSeek-R1", "nvfp4", "flashinfer_trtllm", AUTO),
        ("B200", "0.5.12", MINIMAX, "fp8_block", "triton", TRITON),
        ("B200", "0.5.12", MINIMAX, "bf16", "auto", AUTO),
        ("H200", "0.5.12", MINIMAX, "fp8_block", "auto", AUTO),
    ],
)
def test_releases_of_sglang_pick_kernels_by_format_unless_they_name_the_model(
    gpu, version, model, precision, kernels, timed_as
):
    flags = {"engine": "sglang", "engine_version": version, "precision": precision}
    found = deployed(gpu, model, **flags)
    assert (found.recipe.moe_kernels, found.expert_kernels) == (kernels, timed_as)
    assert found.recipe.origins["moe_kernels"].kind == DEFAULT
    named = deployed(gpu, model, **flags, moe_backend="flashinfer_trtllm")
    assert (named.expert_kernels, named.recipe.origins["moe_kernels"].kind) == (AUTO, FLAG)


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
@pytest.mark.parametrize("gpu", ["H200", "B200"])
def test_other_engines_pick_what_is_timed_as_their_own(engine, gpu):
    found = effective_recipe(ServingSpec(engine=engine), load_gpu(gpu), "deepseek_v3")
    assert named_kernels(found.moe_kernels) == AUTO


def test_the_embedding_tells_other_kernels_by_their_descriptor_alone():
    for gpu, name in (("H200", CUTLASS), ("B200", TRITON)):
        flags = (as_in_tables(load_gpu(gpu)), name)
        own, other = (deployed(gpu, moe_backend=kernels) for kernels in flags)
        free, rates = featurize([own, other])
        moved = {d for d, (a, b) in zip(DESCRIPTORS, free.T, strict=True) if a != b}
        assert moved == {f"expert_{name}"}
        assert free[:, DESCRIPTORS.index(f"expert_{name}")].tolist() == [0, 1]
        assert (rates[0] == rates[1]).all()


def test_marlin_makes_mxfp4_experts_look_like_those_of_any_four_bits():
    own, other = (
        deployed("H200", "gpt-oss-120b", moe_backend=name) for name in ("triton", "marlin")
    )
    assert (own.expert_kernel_format.name, other.expert_kernel_format.name) == (
        "mxfp4",
        MARLIN_FORMAT,
    )
    free, _ = featurize([own, other])
    moved = {d for d, (a, b) in zip(DESCRIPTORS, free.T, strict=True) if a != b}
    assert moved == {"expert_bytes", "expert_mx_scales"}
    # What is read and held are still the checkpoint's own weights.
    assert step_costs([own]).expert_read_s == step_costs([other]).expert_read_s


@pytest.mark.parametrize("version", ["0.14.1", "0.15.1", "0.19.0"])
@pytest.mark.parametrize("gpu", ["H100", "H20", "B200", "A100-SXM-80GB"])
def test_auto_is_as_if_nothing_was_said(gpu, version):
    said, unsaid = (
        deployed(gpu, engine_version=version, moe_backend=name) for name in ("auto", "")
    )
    assert said.recipe.moe_kernels == unsaid.recipe.moe_kernels
    assert deployed(gpu, moe_backend=as_in_tables(load_gpu(gpu))).expert_kernels == AUTO
