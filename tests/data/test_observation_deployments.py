import json

import pytest
from observation_row import observation_row

from pinn.errors import PinnError
from pinn.measurements.deployments.launch_facts import LOAD_FLAGS, SERVING_FLAGS
from pinn.measurements.deployments.measured import (
    measured_deployments,
    observed_deployment,
    observed_deployments,
    run_deployment,
)
from pinn.specs.model import Sampling
from pinn.specs.model_names import find_in_catalog
from pinn.training.data.silicon import read_silicon

ROW = observation_row(
    model="MiniMaxAI/MiniMax-M2.5",
    precision="fp8_block",
    tensor_parallel_size=4,
    enable_expert_parallel=True,
)
RUN = {
    "config": "meta-llama/Llama-2-7b-hf",
    "model": "meta-llama/Llama-2-7b-hf",
    "gpu": "h100_sxm",
    "tensor_parallel_size": 1,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 128,
    "max_model_len": 4096,
    "engine_version": "0.15.1",
}


def test_an_expert_parallel_row():
    deployment = observed_deployment(ROW)
    assert deployment.recipe.expert_parallel_size == 4
    assert not deployment.serving.enable_prefix_caching
    assert deployment.model.precisions.experts.name == "fp8_block"
    assert deployment.kv_cache_precision.name == "bf16"


@pytest.mark.parametrize(
    ("change", "attention", "experts", "kv_cache"),
    [
        ({"precision": "nvfp4"}, "bf16", "nvfp4", "fp8"),
        ({"model": "openai/gpt-oss-120b", "precision": "mxfp4"}, "bf16", "mxfp4", "bf16"),
        ({"model": "moonshotai/Kimi-K2.5", "precision": "int4"}, "bf16", "int4_wo", "bf16"),
        ({"kv_cache_dtype": "fp8"}, "fp8_block", "fp8_block", "fp8"),
        (
            {"model": "openai/gpt-oss-120b", "gpu": "b200_sxm", "precision": "mxfp4_mxfp8"},
            "bf16",
            "mxfp4_mxfp8",
            "bf16",
        ),
    ],
)
def test_number_formats(change, attention, experts, kv_cache):
    deployment = observed_deployment(ROW | change)
    assert deployment.model.precisions.attention.name == attention
    assert deployment.model.precisions.experts.name == experts
    assert deployment.kv_cache_precision.name == kv_cache


@pytest.mark.parametrize(
    ("flag", "text", "value"),
    [
        ("max_num_batched_tokens", "2048", 2048),
        ("max_cudagraph_capture_size", "1024", 1024),
        ("gpu_memory_utilization", "0.95", 0.95),
        ("fuse_all_reduce", "yes", True),
        ("enable_prefix_caching", "", True),
        ("block_size", "", None),
    ],
)
def test_a_flag_is_that_of_the_row_or_was_not_passed(flag, text, value):
    assert getattr(observed_deployment(ROW | {flag: text}).serving, flag) == value


def test_a_row_has_the_defaults_of_its_own_release():
    """vLLM plans ahead from 0.14 on; a build without a number is taken for the table's release."""
    row = ROW | {"model": "openai/gpt-oss-120b", "precision": "mxfp4"}
    assert not observed_deployment(row | {"engine_version": "0.10.2"}).recipe.overlap
    assert observed_deployment(row | {"engine_version": "0.15.1"}).recipe.overlap
    assert observed_deployment(row | {"engine_version": "unknown"}).serving.engine_version == ""


def test_every_measured_row_has_a_deployment_and_equal_ones_are_shared():
    rows, _ = read_silicon()
    deployments = observed_deployments(rows)
    assert list(deployments) == list(rows["row_id"])
    flags = [
        "model", "gpu", "precision", "tensor_parallel_size", "data_parallel_size",
        "enable_expert_parallel", "engine_version", *SERVING_FLAGS,
    ]  # fmt: skip
    different = len(rows[flags].drop_duplicates())
    assert len({id(deployment) for deployment in deployments.values()}) == different
    shared = {one.deployment for one in measured_deployments(rows)}
    assert len(shared) == len(rows[[f for f in flags if f not in LOAD_FLAGS]].drop_duplicates())


def test_a_serving_run():
    serving = run_deployment(RUN).serving
    assert (serving.max_num_seqs, serving.max_model_len) == (128, 4096)
    assert serving.max_num_batched_tokens == 2048
    assert serving.enable_prefix_caching
    assert serving.engine_version == "0.15.1"


def test_benchmarks_are_greedy_and_runs_sample_as_their_model_asks():
    assert observed_deployment(ROW).sampling.is_greedy
    assert run_deployment(RUN).sampling == Sampling(temperature=0.6, top_p=0.9)


def test_a_run_of_a_bare_config_samples_as_the_model_it_names(tmp_path):
    config = find_in_catalog("Qwen/Qwen2.5-7B-Instruct").documents()[0]
    (tmp_path / "config.json").write_text(json.dumps(config))
    named = {"config": str(tmp_path / "config.json"), "model": "Qwen/Qwen2.5-7B-Instruct"}
    assert run_deployment(RUN | named).sampling.top_k == 20
    assert run_deployment(RUN | named | {"model": "mine/other"}).sampling == Sampling()


@pytest.mark.parametrize(
    "change", [{"gpu": "h900"}, {"precision": "fp6"}, {"tensor_parallel_size": 7}]
)
def test_what_does_not_exist_raises(change):
    with pytest.raises(PinnError):
        observed_deployment(ROW | change)
