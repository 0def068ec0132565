"""Every engine's start command, read back, gives the deployment that was planned."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from assumed_priors import prior_coefficients

from pinn.engines.configurations import canonical, make_deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.labels import hardware_label
from pinn.planning.candidate import Candidate
from pinn.planning.candidates import SearchSpace, grid_configurations
from pinn.planning.commands import serve_command, simulate_command
from pinn.simulator.linear_latency import LinearLatency

MODEL = "Qwen/Qwen3-30B-A3B"
GRID = """
gpus_per_machine: 8
grid:
  tensor_parallel_size: [1, 2]
  data_parallel_size: [1, 2]
  enable_expert_parallel: [false, true]
  max_num_batched_tokens: [4096]
  max_num_seqs: [64]
"""
#: Field -> its name in TensorRT-LLM's command or its file of options.
TRTLLM = {
    "tp_size": "tensor_parallel_size", "pp_size": "pipeline_parallel_size",
    "kv_cache_free_gpu_memory_fraction": "gpu_memory_utilization", "dtype": "kv_cache_dtype",
    "max_batch_size": "max_num_seqs", "enable_padding": "cudagraph_padding",
    "enable_attention_dp": "enable_dp_attention",
}  # fmt: skip


def candidate(settings=None, **flags):
    row = canonical({"model": MODEL, "gpu": "H100"} | flags)
    deployment, prior = make_deployment(row), prior_coefficients(1)
    return Candidate(
        row, LinearLatency(deployment, prior.beta[0], prior.alpha[0]), settings or EngineSpec()
    )


def read_back(engine, command):
    """Return the configuration that a command starts."""
    words = shlex.split(command.partition("  #")[0].replace("<(", " ").replace(")", " "))
    row = {"model": MODEL, "gpu": "H100", "engine": engine}
    extra = {}
    for word, value in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("{"):
            extra = json.loads(word)
        if word.startswith("--") and word not in ("--model-path", "--backend", "--quantization"):
            row[word[2:].replace("-", "_")] = True if value.startswith("--") else value
    row.pop("extra_llm_api_options", None)
    for key, value in extra.items():
        row |= value if isinstance(value, dict) else {key: value}
    return make_deployment(canonical({TRTLLM.get(k, k): v for k, v in row.items()}))


def test_several_tensor_parallel_sizes_take_the_place_of_the_grids():
    def labels(**given):
        space = SearchSpace({"model": MODEL}, ["H100", "H200"], [None], EngineSpec(), None, **given)
        return [hardware_label(make_deployment(canonical(r))) for r in grid_configurations(space)]

    every = labels()
    found = labels(sizes=[2, 4])
    assert found
    assert set(found) == {x for x in every if "TP 2" in x or "TP 4" in x}
    assert len(found) == len([x for x in every if "TP 2" in x or "TP 4" in x])


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_grids_of_other_engines_are_the_same_deployments_in_their_words(engine, tmp_path):
    (tmp_path / "grid.yaml").write_text(GRID)
    labels = {}
    for name in ("vllm", engine):
        space = SearchSpace({"model": MODEL}, ["H100"], [None], EngineSpec(), None, [name])
        rows = grid_configurations(space, tmp_path / "grid.yaml")
        if name == "trtllm":  # all of its GPUs are attention replicas, or none
            rows = [r for r in rows if r["data_parallel_size"] in (1, r["tensor_parallel_size"])]
        labels[name] = {hardware_label(make_deployment(canonical(row))) for row in rows}
    mine = {label.removesuffix(f" {engine}") for label in labels[engine]}
    assert mine <= labels["vllm"]
    assert len(mine) == {"sglang": 7, "trtllm": 5}[engine]


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("sglang", {"tensor_parallel_size": 4, "max_num_seqs": 64, "max_model_len": 2048}),
        ("sglang", {"tensor_parallel_size": 4, "data_parallel_size": 2, "enable_dp_attention": True,
                    "ep_size": 4, "enable_prefix_caching": False, "enforce_eager": True}),
        ("sglang", {"gpu_memory_utilization": 0.8, "kv_cache_dtype": "fp8_e5m2", "block_size": 16,
                    "cudagraph_padding": False, "schedule_conservativeness": 0.5}),
        ("trtllm", {"tensor_parallel_size": 2, "max_num_batched_tokens": 4096, "max_num_seqs": 64}),
        ("trtllm", {"tensor_parallel_size": 2, "enable_dp_attention": True, "ep_size": 2,
                    "gpu_memory_utilization": 0.8, "max_model_len": 4096}),
        ("trtllm", {"enable_prefix_caching": False, "kv_cache_dtype": "fp8", "block_size": 64,
                    "enable_chunked_prefill": True}),
    ],
)  # fmt: skip
def test_a_start_line_says_every_flag_in_the_engines_spelling(engine, flags):
    planned = candidate(engine=engine, **flags)
    command = serve_command(planned)
    assert "#" not in command
    assert read_back(engine, command) == planned.deployment


def test_what_an_engine_cannot_be_told_stands_in_a_comment():
    settings = EngineSpec(kv_cache_memory_bytes=1e10)
    flags = {"async_scheduling": False, "precision": "fp8"}
    sglang = candidate(settings, engine="sglang", generation_config="vllm", **flags)
    assert serve_command(sglang) == (
        f"python -m sglang.launch_server --model-path {MODEL} --quantization fp8 "
        "--disable-overlap-schedule  # it has no --generation-config, --kv-cache-memory-bytes"
    )
    trtllm = candidate(settings, engine="trtllm", **flags)
    assert serve_command(trtllm) == (
        f"trtllm-serve {MODEL} --backend pytorch --extra_llm_api_options "
        """<(echo '{"disable_overlap_scheduler": true}')"""
        "  # with a checkpoint in fp8; it has no --kv-cache-memory-bytes"
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_static_scales_come_with_a_checkpoint(engine):
    """No engine makes static scales from 16-bit weights; a checkpoint with them is needed."""
    asked = serve_command(candidate(engine=engine, precision="fp8_static"))
    assert "# with a checkpoint in fp8_static" in asked
    assert "--quantization" not in asked
    own = candidate(engine=engine, model="nvidia/Llama-3.1-70B-Instruct-FP8")
    assert "#" not in serve_command(own)
    assert "--quantization" not in serve_command(own)


def test_the_simulation_names_the_engine():
    sglang = candidate(engine="sglang")
    words = shlex.split(
        simulate_command(sglang, ["--workload", "load.yaml"], 3.0, 2, "round-robin")
    )
    assert words[words.index("--engine") + 1] == "sglang"
    vllm = serve_command(candidate(engine_version="0.15.1"))
    assert not re.search("--engine", vllm)
