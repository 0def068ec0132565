"""What the benchmark's launch scripts passed: by model, GPU, number format, day and label."""

from datetime import date, timedelta

import pandas as pd
import pytest
from observation_row import observation_row

from pinn.data.deployments import observed_deployment
from pinn.data.launch_scripts import (
    ALWAYS,
    AS_LABELLED,
    NEVER,
    PROMPTS_PER_STEP,
    SCRIPTS,
    script_of,
    with_launch_flags,
)
from pinn.data.silicon import read_silicon
from pinn.errors import PinnError
from pinn.specs.expert_kernels import AUTO, CUTLASS, TRITON
from pinn.specs.gpu_catalog import load_gpu
from pinn.specs.recipe_rules import effective_recipe
from pinn.specs.serving import ServingSpec

MINIMAX, KIMI = "MiniMaxAI/MiniMax-M2.5", "moonshotai/Kimi-K2.5"
LLAMA, GPT_OSS = "meta-llama/Llama-3.3-70B-Instruct", "openai/gpt-oss-120b"
ROW = {
    "model": MINIMAX,
    "gpu": "b200_sxm",
    "precision": "fp8_block",
    "date": "2026-04-10",
    "prompt_tokens": 1024,
    "tensor_parallel_size": 4,
    "enable_expert_parallel": False,
}


def launched(**changes):
    """A row as it ran."""
    return with_launch_flags(pd.DataFrame([ROW | changes])).iloc[0]


@pytest.fixture(scope="module")
def measured():
    return read_silicon()[0]


def day_before(day):
    return (date.fromisoformat(day) - timedelta(days=1)).isoformat()


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.since or s.until])
@pytest.mark.parametrize("labelled", [False, True])
def test_a_script_holds_from_its_first_day_to_the_day_before_the_next(script, labelled):
    first, end = script.since, script.until
    precision = script.precision or "fp8_block"

    def runs(day):
        return script_of(script.model, script.gpus[0], precision, day) is script

    assert not first or (runs(first) and not runs(day_before(first)))
    assert not end or (runs(day_before(end)) and not runs(end))
    row = launched(
        model=script.model,
        gpu=script.gpus[0],
        precision=precision,
        date=first or day_before(end),
        enable_expert_parallel=labelled,
    )
    wanted = {ALWAYS: True, NEVER: False, AS_LABELLED: labelled}[script.expert_parallel]
    assert row["enable_expert_parallel"] == wanted
    assert row["kv_cache_dtype"] == script.kv_cache_dtype
    assert row["max_cudagraph_capture_size"] == (script.graph_tokens or 512)


@pytest.mark.parametrize(
    ("model", "gpu", "precision", "day", "dtype"),
    [
        (LLAMA, "b200_sxm", "fp8", "2025-10-29", "fp8"),
        (LLAMA, "h200_sxm", "fp8", "2025-10-29", "fp8"),
        (LLAMA, "h100_sxm", "fp8", "2025-10-29", "auto"),
        (GPT_OSS, "b200_sxm", "mxfp4", "2026-01-01", "fp8"),
        (GPT_OSS, "h200_sxm", "mxfp4", "2026-01-01", "auto"),
        (MINIMAX, "b200_sxm", "fp8_block", "2026-04-02", "auto"),
        (MINIMAX, "b200_sxm", "fp8_block", "2026-04-03", "fp8"),
        (MINIMAX, "b300_sxm", "nvfp4", "2026-04-08", "fp8"),
        (MINIMAX, "h100_sxm", "fp8_block", "2026-04-10", "auto"),
        (KIMI, "b200_sxm", "nvfp4", "2026-04-16", "auto"),
        (KIMI, "b200_sxm", "nvfp4", "2026-04-17", "fp8"),
        (KIMI, "b200_sxm", "int4", "2026-04-17", "auto"),
    ],
)
def test_the_kv_cache_flag(model, gpu, precision, day, dtype):
    row = launched(model=model, gpu=gpu, precision=precision, date=day)
    assert row["kv_cache_dtype"] == dtype


def test_a_script_without_a_budget_has_that_of_vllm_for_the_gpu():
    row = launched(gpu="h100_sxm", prompt_tokens=8192)
    assert (
        row["max_num_batched_tokens"]
        == effective_recipe(ServingSpec(), load_gpu("H100")).token_budget
    )
    assert launched(gpu="a30")["max_num_batched_tokens"] == 2048


@pytest.mark.parametrize("prompt", [1024, 8192])
def test_later_scripts_let_two_prompts_into_a_step(prompt):
    for script in SCRIPTS:
        if script.two_prompts_per_step:
            row = launched(
                model=script.model,
                gpu=script.gpus[-1],
                precision=script.precision,
                date="2026-04-20",
                prompt_tokens=prompt,
            )
            assert row["max_num_batched_tokens"] == PROMPTS_PER_STEP * prompt
            # They raise what a CUDA graph holds too; vLLM's own default is 512 at most.
            assert row["max_cudagraph_capture_size"] == 2048
    assert launched(gpu="h100_sxm")["max_cudagraph_capture_size"] == 512


@pytest.mark.parametrize("day", ["2026-03-01", "2026-03-20", "2026-04-10"])
@pytest.mark.parametrize("gpu", ["b200_sxm", "h200_sxm", "h100_sxm"])
def test_one_gpu_has_no_expert_parallelism_whatever_the_label(gpu, day):
    row = launched(gpu=gpu, date=day, tensor_parallel_size=1, enable_expert_parallel=True)
    assert not row["enable_expert_parallel"]


@pytest.mark.parametrize(
    ("gpu", "day", "kernels"),
    [
        ("b200_sxm", "2026-04-02", TRITON),
        ("b200_sxm", "2026-04-03", AUTO),
        ("h200_sxm", "2026-03-12", CUTLASS),
        ("h200_sxm", "2026-03-13", AUTO),
        ("h100_sxm", "2026-03-01", AUTO),
    ],
)
def test_kernels_of_the_experts_are_those_of_the_script_and_reach_the_deployment(gpu, day, kernels):
    row = launched(gpu=gpu, date=day)
    # Rows name no release, so that of the reference decides nothing.
    assert observed_deployment(observation_row(**row)).expert_kernels == kernels


def test_mxfp4_on_b200_has_eight_bit_activations():
    row = launched(model=GPT_OSS, precision="mxfp4")
    assert row["precision"] == "mxfp4_mxfp8"
    assert launched(model=GPT_OSS, precision="mxfp4", gpu="h200_sxm")["precision"] == "mxfp4"


def test_rows_keep_their_place_and_index():
    rows = pd.DataFrame([ROW, ROW | {"model": LLAMA, "date": ""}], index=[7, 3])
    found = with_launch_flags(rows)
    assert list(found.index) == [7, 3]
    assert list(found["model"]) == [MINIMAX, LLAMA]
    alone = with_launch_flags(rows.iloc[1:])
    pd.testing.assert_frame_equal(found.iloc[1:], alone)


def test_an_unknown_gpu_is_refused():
    with pytest.raises(PinnError, match="unknown GPU"):
        launched(gpu="h900_sxm")


def test_no_two_scripts_claim_a_measured_row(measured):
    labels = measured.assign(precision=measured["precision"].replace("mxfp4_mxfp8", "mxfp4"))
    for row in labels.drop_duplicates(["model", "gpu", "precision", "date"]).to_dict("records"):
        named = (row["model"], row["gpu"], row["precision"], row["date"])
        assert sum(script.runs(*named) for script in SCRIPTS) <= 1, named


def test_every_script_ran_some_measured_row(measured):
    """A date or a name that was mistyped would leave a script without rows."""
    labels = measured.assign(precision=measured["precision"].replace("mxfp4_mxfp8", "mxfp4"))
    columns = [labels[c] for c in ("model", "gpu", "precision", "date")]
    ran = {script_of(*row).source for row in zip(*columns, strict=True)}
    assert {script.source for script in SCRIPTS} <= ran


def test_measured_rows_on_one_gpu_have_no_expert_parallelism(measured):
    assert not measured[measured["tensor_parallel_size"] == 1]["enable_expert_parallel"].any()
    assert measured["enable_expert_parallel"].sum() > 100
