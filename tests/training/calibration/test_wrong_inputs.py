"""Inputs that do not match their flags are named before a fit; inputs that match are not."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from benchmark_files import ASKED, write
from checked_servers import (
    SERVER,
    before,
    check_runs,
    check_tables,
    engine_run,
    flags_of,
    ingested,
    tables_of,
    target,
    traced,
    truth,
)
from served_load import served
from trace_writer import WriterOptions, trace_lines

import pinn
from pinn.calibration.checks import check_traces, refuse
from pinn.engines.configurations import make_deployment
from pinn.errors import PinnError
from pinn.measurements.benchmarks.benchmark_run import (
    BenchmarkRun,
    Lengths,
    Load,
    StatedServer,
)
from pinn.measurements.benchmarks.read import read_benchmarks
from pinn.measurements.benchmarks.reading import GivenLoad
from pinn.measurements.traces.ingestion import ingest_vllm
from pinn.measurements.traces.trace_tables import read_trace_tables


def scaled(column, factor):
    def change(table):
        return table.assign(**{column: (table[column] * factor).astype(table[column].dtype)})

    return change


def absurd(table):
    odd = np.arange(len(table)) % 100 == 50
    return table.assign(**{"batch.prefill_tokens": table["batch.prefill_tokens"].mask(odd, 2e9)})


def percent(table):
    return scaled("kv.usage_gpu_ratio", 100.0)(table)


def renumbered(table):
    return table.iloc[::8].assign(**{"step.id": np.arange(1, len(table.iloc[::8]) + 1)})


def backwards(table):
    start = table["step.ts_start_ns"]
    return table.assign(**{"step.ts_start_ns": start.max() + start.min() - start})


def still(table):
    odd = np.arange(len(table)) % 10 == 5
    start = table["step.ts_start_ns"]
    return table.assign(**{"step.ts_start_ns": start.mask(odd, start.shift(1)).astype("int64")})


def two_models(table):
    other = traced(model="meta-llama/Llama-3.1-8B", tensor_parallel_size=1)
    return pd.concat([table.assign(experiment_id="a"), other.assign(experiment_id="b")])


def two_speeds(table):
    start = table["step.ts_start_ns"]
    slow = table.assign(**{"step.ts_start_ns": start.min() + 2 * (start - start.min())})
    return pd.concat([table.assign(experiment_id="a"), slow.assign(experiment_id="b")])


def unchanged(table):
    return table


#: Name -> (server that was traced, fault of the file, flags that the user gave, words of the
#: finding).
WRONG_STEPS = {
    "TP 8 for 4": ({"tensor_parallel_size": 4}, unchanged, {"tensor_parallel_size": 8},
                   "they fit --tensor-parallel-size 4"),
    "TP 4 for 2": ({}, unchanged, {"tensor_parallel_size": 4}, "they fit --tensor-parallel-size 2"),
    "TP 1 for 2": ({}, unchanged, {"tensor_parallel_size": 1}, "they fit --tensor-parallel-size 2"),
    "an 8B model for 34B": ({}, unchanged, {"model": "meta-llama/Llama-3.1-8B"}, "KV cache blocks"),
    "a 70B model for 34B": ({}, unchanged, {"model": "meta-llama/Llama-3.1-70B"}, "KV cache block"),
    "A100 for H100": ({}, unchanged, {"gpu": "A100-SXM-80GB"}, "as short as predicted"),
    "H200 for H100": ({}, unchanged, {"gpu": "H200"}, "KV cache blocks"),
    "fp8 for bf16": ({}, unchanged, {"precision": "fp8"}, "they fit --quantization bf16"),
    "an fp8 cache": ({}, unchanged, {"kv_cache_dtype": "fp8"}, "they fit --kv-cache-dtype auto"),
    "blocks of 32": ({}, unchanged, {"block_size": 32}, "--block-size 16"),
    "less memory": ({}, unchanged, {"gpu_memory_utilization": 0.7}, "--gpu-memory-utilization 0.9"),
    "few seats": ({}, unchanged, {"max_num_seqs": 4}, "but --max-num-seqs is 4: did you"),
    "no seats": ({}, unchanged, {"max_num_seqs": 0}, "--max-num-seqs must be a positive"),
    "a small budget": ({}, unchanged, {"max_num_batched_tokens": 256},
                       "--max-num-batched-tokens is 256"),
    "a large budget": ({"max_num_batched_tokens": 512, "rate_per_s": 40.0}, unchanged,
                       {"max_num_batched_tokens": 8192}, "--max-num-batched-tokens 512?"),
    "many seats": ({"max_num_seqs": 8, "rate_per_s": 40.0}, unchanged, {"max_num_seqs": 1024},
                   "--max-num-seqs 8?"),
    "two models in one file": ({}, two_models, {}, "several KV cache sizes"),
    "two servers of one size": ({}, two_speeds, {}, "the file has 2 processes"),
    "1 % of rows with 2e9 tokens": ({}, absurd, {}, "which is implausible"),
    "KV usage in percent": ({}, percent, {}, "if the column is in percent"),
    "no rows": ({}, lambda table: table.iloc[:0], {}, "has no usable step"),
    "negative counts": ({}, scaled("batch.num_decode_reqs", -1), {"max_num_seqs": 128},
                        "a count is negative or implausibly large"),
    "times in us": ({}, scaled("step.ts_start_ns", 1e-3), {}, "start times are in ns"),
    "times in ms": ({}, scaled("step.ts_start_ns", 1e-6), {}, "start times are in ns"),
    "times in ps": ({}, scaled("step.ts_start_ns", 1e3), {}, "the unit of the file's times"),
    "a clock that runs back": ({}, backwards, {}, "the column has no values"),
    "a clock that stands still": ({}, still, {}, "the clock stops"),
    "steps renumbered after sampling": ({}, renumbered, {}, "as long as predicted"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("servers")


@pytest.mark.parametrize("name", WRONG_STEPS)
def test_traces_that_do_not_match_are_named(name, folder, tmp_path):
    server, change, flags, words = WRONG_STEPS[name]

    def ingest_and_check():
        if change is unchanged:
            tables = tables_of(folder, **server)
        else:
            tables = ingested(change(traced(**server)), tmp_path, **flags)
        refuse(check_tables(tables, **flags))

    with pytest.raises(PinnError, match=re.escape(words)):
        ingest_and_check()


def test_the_flag_goes_before_the_floor(tmp_path):
    tables = ingested(traced(), tmp_path, tensor_parallel_size=1)
    assert "they fit --tensor-parallel-size 2" in str(check_tables(tables, tensor_parallel_size=1))


@pytest.mark.parametrize(
    ("flags", "span", "words"),
    [
        ({"enable_prefix_caching": False}, "codellama/CodeLlama-34b-Instruct-hf",
         "remove --no-enable-prefix-caching"),
        ({}, "meta-llama/Llama-3.1-8B", "the file names the model meta-llama/Llama-3.1-8B"),
        ({"max_model_len": 256}, "codellama/CodeLlama-34b-Instruct-hf", "--max-model-len 256"),
    ],
)  # fmt: skip
def test_requests_that_do_not_match_are_named(flags, span, words, tmp_path):
    run = engine_run(60, 12.0, truth(make_deployment(SERVER)))
    run = replace(run, arrivals=tuple(replace(a, cached_tokens=32) for a in run.arrivals))
    lines = [
        line.replace('"stringValue":"model"', f'"stringValue":"{span}"').replace(
            '"key":"prefill.done_tokens","value":{"intValue":"0"}',
            '"key":"prefill.done_tokens","value":{"intValue":"32"}',
        )
        for line in trace_lines(run, WriterOptions(step_sampling=1.0))
    ]
    (tmp_path / "traces.json").write_text("\n".join(lines) + "\n")
    named = target(**flags)
    tables = ingest_vllm(tmp_path / "traces.json", tmp_path / "tables", named)
    found = check_traces(tables, named.deployment(), before)
    assert words in " ".join(map(str, found))


def test_a_file_without_rows_leaves_good_tables_alone(tmp_path):
    rows = len(ingested(traced(), tmp_path).steps)
    with pytest.raises(PinnError, match="has no usable step"):
        ingested(traced().iloc[:0], tmp_path)
    assert len(read_trace_tables(tmp_path / "tables").steps) == rows


LLAMA = "meta-llama/Llama-3.1-8B"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a benchmark of Llama-3.1-8B on an H100 that matches its flags."""
    of = served(truth, prompt=Lengths(512.0), output=Lengths(64.0), requests=160)
    (path,) = write(of, "aiperf", tmp_path_factory.mktemp("run"))
    (found,), _ = read_benchmarks([path])
    return found


def figures(run, **factors):
    return replace(run, figures={k: v * factors.get(k[:4], 1.0) for k, v in run.figures.items()})


def stated(run, **facts):
    return replace(run, server=replace(run.server, **facts))


def loaded(run, **load):
    return replace(run, load=replace(run.load, **load))


#: Name -> (runs with a fault, flags that the user gave, words of the finding).
WRONG_RUNS = {
    "TP 4 for the file's 2": (
        lambda r: [stated(r, flags={"tensor_parallel_size": 2})], {"tensor_parallel_size": 4},
        "the file states --tensor-parallel-size 2"),
    "vLLM for SGLang": (
        lambda r: [stated(r, engine="sglang 0.5.9", flags={"enable_dp_attention": False})],
        {"engine": "vllm"}, "the file states --engine sglang, but the flag is vllm"),
    "two engines": (lambda r: [stated(r, engine="vllm"), stated(r, engine="trt 1.2.0")], {},
                    "the files have 2 values of --engine"),
    "another GPU": (lambda r: [r], {"gpu": "L40S"}, "the file names the GPU H100-SXM"),
    "another model": (lambda r: [r], {"model": "meta-llama/Llama-3.1-70B",
                                      "tensor_parallel_size": 4}, "the file names the model"),
    "a model as wide and deep": (
        lambda r: [stated(r, model="meta-llama/Llama-2-7b-hf")],
        {"model": "mistralai/Mistral-7B-v0.1"},
        "did you mean --model meta-llama/Llama-2-7b-hf?"),
    "a KV cache of another TP": (
        lambda r: [stated(r, kv_tokens=1_900_000)], {}, "--tensor-parallel-size"),
    "two models": (lambda r: [r, stated(r, model="Qwen/Qwen3-8B")], {}, "files have 2 models"),
    "two servers": (
        lambda r: [stated(r, flags={"tensor_parallel_size": 1}),
                   stated(r, flags={"tensor_parallel_size": 2})], {}, "2 values of --tensor"),
    "two KV caches": (lambda r: [stated(r, kv_tokens=400_000), stated(r, kv_tokens=500_000)], {},
                      "KV caches of 400,000 and 500,000"),
    "the same file twice": (lambda r: [r, replace(r, name="copy")], {}, "is the same run as"),
    "drafted tokens": (lambda r: [stated(r, speculative=True)], {}, "speculative"),
    "milliseconds for seconds": (
        lambda r: [figures(r, ttft=1e3, tpot=1e3, itl_=1e3, e2e_=1e3)], {}, "check its unit"),
    "seconds for milliseconds": (
        lambda r: [figures(r, ttft=1e-3, tpot=1e-3, itl_=1e-3, e2e_=1e-3)], {}, "check its unit"),
    "half the time a token": (lambda r: [figures(r, tpot=0.5)], {}, "check --output-tokens"),
    "a stop at the end token": (
        lambda r: [loaded(r, output=Lengths(200.0))], {}, "check --output-tokens"),
    "another concurrency": (lambda r: [loaded(r, concurrency=4)], {}, "--concurrency 16?"),
    "a concurrency never reached": (
        lambda r: [loaded(r, concurrency=64, requests=640)], {}, "--concurrency"),
    "a rate below what was served": (
        lambda r: [loaded(r, concurrency=None, rate_per_s=1.0)], {}, "--request-rate"),
    "percentiles that fall": (lambda r: [replace(r, figures=r.figures | {"ttft_p99_s": 1e-3})], {},
                              "the percentiles of TTFT are not in increasing order"),
    "prompts from the cache": (
        lambda r: [replace(r, load=replace(r.load, prompt=Lengths(8000.0)),
                           figures={"ttft_mean_s": 0.02})], {}, "prompts repeat"),
    "requests beyond the context": (lambda r: [r], {"max_model_len": 400}, "--max-model-len"),
    "faster than the weights": (
        lambda r: [figures(r, tpot=0.3, itl_=0.3, e2e_=0.3, ttft=0.9, requ=3.3, outp=3.3)], {},
        "reading the weights"),
    "twice as slow as any": (
        lambda r: [figures(r, tpot=3, itl_=3, e2e_=3, ttft=3, requ=1 / 3, outp=1 / 3)], {},
        "the TPOT mean of file is 2.9 times as long as predicted"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_RUNS)
def test_benchmarks_that_do_not_match_are_named(name, run):
    make, flags, words = WRONG_RUNS[name]
    found = check_runs(make(run), **{"model": LLAMA, "gpu": "H100", **flags})
    assert words in " ".join(map(str, found))


def test_there_are_forty_wrong_ones():
    assert len(WRONG_STEPS) + len(WRONG_RUNS) + 3 >= 40


RIGHT_STEPS = (
    {}, {"requests": 60, "rate_per_s": 3.0}, {"rate_per_s": 40.0}, {"max_num_batched_tokens": 512},
    {"max_num_seqs": 8}, {"tensor_parallel_size": 4}, {"gpu": "H200"}, {"precision": "fp8"},
    {"kv_cache_dtype": "fp8"}, {"block_size": 32}, {"gpu_memory_utilization": 0.8},
    {"model": LLAMA, "tensor_parallel_size": 1}, {"gpu": "B200"}, {"enforce_eager": True},
    {"model": "meta-llama/Llama-3.1-70B", "tensor_parallel_size": 4},
    {"model": "mistralai/Mixtral-8x7B-v0.1"},
)  # fmt: skip


@pytest.mark.parametrize("server", RIGHT_STEPS, ids=str)
def test_traces_that_match_are_not_refused(server, folder):
    assert check_tables(tables_of(folder, **server), **flags_of(server)) == []


RIGHT_SERVERS = (
    {"model": LLAMA}, {"model": LLAMA, "tensor_parallel_size": 2},
    {"model": LLAMA, "precision": "fp8"}, {"model": LLAMA, "enforce_eager": True},
    {"model": "Qwen/Qwen3-30B-A3B", "tensor_parallel_size": 2},
    {"model": "meta-llama/Llama-3.1-70B", "tensor_parallel_size": 4},
)  # fmt: skip
RIGHT_RUNS = [
    (server, kind)
    for i, server in enumerate(RIGHT_SERVERS)
    for kind in (
        ("vllm bench", "aiperf", "guidellm", "metrics pages")
        if i % 2
        else ("vllm bench, detailed", "inference-perf", "llm-d", "spans")
    )
]


@pytest.mark.parametrize(("server", "kind"), RIGHT_RUNS, ids=str)
def test_benchmarks_that_match_are_not_refused(server, kind, tmp_path):
    of = served(truth, requests=64, **server)
    runs, _ = read_benchmarks(write(of, kind, tmp_path), GivenLoad(**ASKED.get(kind, {})))
    assert check_runs(runs, **{"gpu": "H100", **server}) == []


def test_there_are_forty_right_ones():
    assert len(RIGHT_STEPS) + len(RIGHT_RUNS) >= 40


def test_force_goes_on_and_says_what_is_wrong(run):
    findings = check_runs([figures(run, tpot=0.5)], model=LLAMA, gpu="H100")
    with pytest.raises(PinnError, match="calibrate anyway with --force"):
        refuse(findings)
    assert refuse(findings, force=True) == findings


def test_a_load_of_unknown_server_asks_for_it():
    run = BenchmarkRun("a.json", "t", Load(1, Lengths(1.0), Lengths(1.0)), {}, 1,
                       server=StatedServer("m"))  # fmt: skip
    with pytest.raises(PinnError, match="give --gpu"):
        check_runs([run])


def test_flags_that_the_engine_refuses_are_not_those_of_the_measured_server(tmp_path):
    # The token budget is below the 128 requests of max_num_seqs, with which vLLM does not start.
    tables = ingested(traced(), tmp_path, max_num_batched_tokens=64)
    with pytest.raises(
        PinnError, match=r"do not match the flags: the engine would not start, because .*64"
    ):
        pinn.calibrate(observations=tables.folder)
    found = pinn.calibrate(observations=tables.folder, force=True)
    assert any("WARNING: the engine would not start" in note for note in found.notes)
