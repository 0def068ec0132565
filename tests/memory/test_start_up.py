"""Start-up checks: whether an engine starts, with which change, and the memory of its GPUs."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pinn.cli.main import app
from pinn.engines.configurations import make_deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.memory.kv_cache import (
    DOES_NOT_START,
    MAY_NOT_START,
    STARTS,
    NoStartError,
    cache_ends,
    kv_layout,
    memory_fit,
    started,
)
from pinn.memory.ledger import half_share, kinds_of, memory_ledger
from pinn.memory.ledger_text import ledger_grid, log_grid
from pinn.memory.start_up import check_starts, start_up
from pinn.memory.startup_log import StartupLog
from pinn.units import GIB

LLAMA_FP8 = {"model": "meta-llama/Llama-3.3-70B-Instruct", "precision": "fp8", "gpu": "H100"}
#: Start-ups that failed for lack of memory, by public reports: vLLM's issue 27508, llm-d-planner's
#: table of start-ups, and kaito's issue 2132 (22.5 GiB needed).
FAILED = [
    {**LLAMA_FP8, "engine_version": "0.11.0", "max_model_len": 16_000, "block_size": 128,
     "gpu_memory_utilization": 0.9},
    {"model": "openai/gpt-oss-120b", "gpu": "H100", "engine_version": "0.11.0",
     "max_num_batched_tokens": 1024, "gpu_memory_utilization": 0.95},
    {"model": "mistralai/Mistral-Small-4-119B-2603", "gpu": "H100-NVL", "precision": "nvfp4",
     "kv_cache_dtype": "bf16", "engine_version": "0.20.0"},
]  # fmt: skip


def deployed(**given):
    return make_deployment(given)


@pytest.mark.parametrize("given", FAILED)
def test_what_failed_to_start_is_named_and_each_remedy_helps(given):
    found = start_up(deployed(**given))
    assert found.verdict in {DOES_NOT_START, MAY_NOT_START}
    assert found.verdict.upper() in str(found)
    assert any(each.startswith("--tensor-parallel-size") for each in found.remedies)
    for remedy in found.remedies:
        flag, value = shlex.split(remedy)
        name = flag.removeprefix("--").replace("-", "_")
        number = float(value) if "." in value else int(value)
        assert start_up(deployed(**given | {name: number})).verdict == STARTS


def test_the_context_that_failed_needs_as_much_as_its_log_says():
    with pytest.raises(PinnError, match=r"\(22\.50 GiB\)"):
        kv_layout(deployed(**FAILED[2]), EngineSpec())


def test_weights_larger_than_the_card_start_on_more_of_them_alone():
    found = start_up(deployed(**LLAMA_FP8 | {"precision": "bf16"}))
    assert [each.split()[0] for each in found.remedies] == ["--tensor-parallel-size"]
    assert found.smallest_tensor_parallel_size == int(found.remedies[0].split()[1])
    assert start_up(deployed(model="deepseek-ai/DeepSeek-V3", gpu="L4")).verdict == DOES_NOT_START


def test_what_lies_on_a_card_adds_up_to_the_board():
    found = start_up(deployed(model="openai/gpt-oss-120b", gpu="H200", tensor_parallel_size=2))
    cells = [row.cells for row in ledger_grid(found).rows]
    assert sum(float(gib) for _, gib, *_ in cells) == pytest.approx(
        found.ledger.board / GIB, abs=0.05
    )
    assert {"weights", "context", "communication", "activations", "KV cache"} <= {
        name for name, *_ in cells
    }


def test_a_log_takes_the_place_of_what_was_predicted():
    target = deployed(model="openai/gpt-oss-120b", gpu="H200", tensor_parallel_size=2)
    log = StartupLog(engine="vllm", weights=40 * GIB, kv_cache=70 * GIB)
    found = start_up(target, log)
    rows = {row.cells[0]: row.cells for row in ledger_grid(found).rows}
    assert rows["weights"][1] == "40.00"
    assert rows["KV cache"][1] == "70.00"
    assert rows["weights"][-1].startswith("start-up log;")
    assert not rows["context"][-1].startswith("start-up log;")
    assert found.fit.byte_ends == (70 * GIB, 70 * GIB)
    assert [row.cells[1] for row in log_grid(found).rows] == ["40.00", "70.00", "", ""]


@pytest.mark.parametrize(
    ("engine", "lines"),
    [
        ("vllm", ["Model loading took", "Available KV cache memory", "GPU KV cache size",
                  "Maximum concurrency for"]),
        ("sglang", ["Load weight end", "KV Cache is allocated", "max_total_num_tokens="]),
        ("trtllm", ["Allocated"]),
    ],
)  # fmt: skip
def test_lines_are_those_of_the_engine(engine, lines):
    found = start_up(deployed(model="meta-llama/Llama-3.1-8B", gpu="H100", engine=engine))
    shown = [row.cells[0] for row in log_grid(found).rows]
    assert len(shown) == len(lines)
    assert all(line.startswith(start) for line, start in zip(shown, lines, strict=True))


def test_intervals_hold_the_estimate_and_are_the_widest_of_the_kinds():
    one, two = (
        deployed(model="openai/gpt-oss-120b", gpu="H200", tensor_parallel_size=n) for n in (1, 2)
    )
    assert kinds_of(one) == ("mixture",)
    assert kinds_of(two) == ("mixture", "several GPUs")
    assert half_share(two) >= half_share(one) > 0
    fit = memory_fit(two)
    assert fit.byte_ends[0] < fit.kv_bytes < fit.byte_ends[1]
    assert fit.token_ends[0] < fit.kv_tokens < fit.token_ends[1]
    unseen = deployed(model="Qwen/Qwen3-Next-80B-A3B-Instruct", gpu="H200", tensor_parallel_size=2)
    assert kinds_of(unseen)[0] == "hybrid"
    assert half_share(unseen) > half_share(two)


def test_a_cache_that_is_given_has_no_interval():
    target = deployed(model="meta-llama/Llama-3.1-8B", gpu="H100")
    fit = memory_fit(target, EngineSpec(kv_cache_memory_bytes=20 * GIB))
    assert fit.byte_ends == (20 * GIB, 20 * GIB)
    assert fit.token_ends[0] == fit.token_ends[1]


def test_plans_count_what_starts_with_the_least_memory():
    edge = deployed(model="Qwen/Qwen3-32B", gpu="H100", max_model_len=30_000)
    fit = memory_fit(edge)
    assert fit.fits
    assert not fit.is_certain
    with pytest.raises(PinnError, match=r"MAY NOT START.*--force"):
        check_starts(edge, EngineSpec())
    check_starts(edge, EngineSpec(num_gpu_blocks_override=5000))
    check_starts(deployed(model="Qwen/Qwen3-32B", gpu="H200"), EngineSpec())


def test_sglang_starts_with_less_than_a_context():
    given = {"model": "Qwen/Qwen3-32B", "gpu": "H100", "engine": "sglang", "max_model_len": 40_960}
    fit = memory_fit(deployed(**given))
    assert fit.kv_tokens is not None
    assert fit.kv_tokens < 40_960


def test_a_server_that_ran_has_started_whatever_is_predicted():
    refused = deployed(**FAILED[1])
    assert not memory_fit(refused).fits
    layout = kv_layout(refused, started(refused))
    assert layout.request_blocks(131_072, refused.recipe.block_tokens) <= layout.blocks
    kept = EngineSpec(num_gpu_blocks_override=9000)
    assert started(refused, kept) is kept
    easy = deployed(model="meta-llama/Llama-3.1-8B", gpu="H100")
    assert started(easy) == EngineSpec()


def test_a_server_that_ran_has_started_though_the_predicted_reserve_leaves_nothing():
    crowded = deployed(model="openai/gpt-oss-120b", gpu="H100", max_num_seqs=4096)
    ledger = memory_ledger(crowded)
    assert ledger.left_bytes < 0 < ledger.usable_bytes - ledger.weights
    assert kv_layout(crowded, started(crowded)).blocks > 0
    heavy = deployed(model="meta-llama/Llama-3.3-70B-Instruct", gpu="H100")
    with pytest.raises(NoStartError, match="does not fit"):
        started(heavy)


def test_both_ends_of_a_cache_hold_the_longest_request():
    target = deployed(model="Qwen/Qwen3-32B", gpu="H100", max_model_len=30_000)
    most, least = cache_ends(target, None, tokens=20_000)
    large, small = (kv_layout(target, engine).blocks for engine in (most, least))
    assert small < kv_layout(target, EngineSpec()).blocks < large
    fixed = EngineSpec(num_gpu_blocks_override=4000)
    assert cache_ends(target, fixed, tokens=20_000) == (fixed, fixed)


#: Verdict on a start -> options of a configuration with it.
VERDICTS = {
    STARTS: ("Qwen/Qwen3-32B", "H200"),
    MAY_NOT_START: ("Qwen/Qwen3-32B", "H100", "--max-model-len", "30000"),
    DOES_NOT_START: ("meta-llama/Llama-3.1-70B", "H100"),
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_json_python_and_command_have_one_verdict(tmp_path: Path, verdict):
    (model, gpu, *flags), target = VERDICTS[verdict], tmp_path / "found.json"
    result = CliRunner().invoke(
        app, ["coefficients", "--model", model, "--gpu", gpu, *flags, "--json", str(target)]
    )
    found = json.loads(target.read_text())["memory"]
    assert found["verdict"] == verdict
    assert found["starts"] is (verdict == STARTS)
    assert (found["reason"] is None) is (verdict == STARTS)
    assert " ".join(found["sentence"].split()) in " ".join(result.stdout.split())
    assert (verdict if verdict == STARTS else verdict.upper()) in found["sentence"]
    lengths = {"max_model_len": int(flags[1])} if flags else {}
    assert start_up(deployed(model=model, gpu=gpu, **lengths)).to_json() == found


def test_json_has_each_part_of_memory():
    found = start_up(deployed(model="openai/gpt-oss-120b", gpu="H100")).to_json()
    assert found["remedies"]
    assert not found["fits"]
    assert {"weights", "context", "activations", "kv_cache"} <= set(found["gib_per_gpu"])
    gib = found["gib_per_gpu"]
    assert gib["kv_cache_low"] < gib["kv_cache"] < gib["kv_cache_high"]


def test_more_of_the_card_is_never_less_cache():
    base = deployed(model="openai/gpt-oss-20b", gpu="H100", gpu_memory_utilization=0.5)
    sizes = [
        memory_fit(replace(base, serving=replace(base.serving, gpu_memory_utilization=s))).kv_bytes
        for s in (0.5, 0.6, 0.7, 0.8, 0.9)
    ]
    assert sizes == sorted(sizes)
