"""Every kind of file gives back the load and the figures that it was written of."""

import json
import os
from pathlib import Path

import pytest
from assumed_priors import prior_coefficients
from benchmark_files import ASKED, KINDS, aiperf, guidellm, llm_d, vllm_bench, write
from engine_pages import metrics_pages
from served_load import served

from pinn.common.files import json_text
from pinn.engines.recipe import reference_version
from pinn.errors import PinnError
from pinn.measurements.benchmarks.benchmark_run import (
    BenchmarkRun,
    Lengths,
    Load,
    SharedPrefix,
    StatedServer,
)
from pinn.measurements.benchmarks.loads import benchmark_figures, benchmark_workload
from pinn.measurements.benchmarks.read import read_benchmarks
from pinn.measurements.benchmarks.reading import GivenLoad
from pinn.measurements.benchmarks.tree import Tree
from pinn.measurements.benchmarks.vllm_bench import sglang_server
from pinn.measurements.traces.ingestion import benchmark_target
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.workload import AIOHTTP_TIMEOUT_S


def prior(deployment):
    found = prior_coefficients(1)
    return LinearLatency(deployment, found.beta[0], found.alpha[0])


@pytest.fixture(scope="module")
def closed():
    return served(prior)


def one(paths, **given):
    (run,), report = read_benchmarks(paths, GivenLoad(**given))
    assert (report.read, report.accepted) == (1, 1)
    return run


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_loop_comes_back(kind, closed, tmp_path):
    run = one(write(closed, kind, tmp_path / "run"), **ASKED.get(kind, {}))
    assert run.load.requests == closed.load.requests
    assert run.load.concurrency == closed.load.concurrency
    assert run.load.prompt.mean == pytest.approx(closed.load.prompt.mean, rel=2e-3)
    assert run.load.output.mean == pytest.approx(closed.load.output.mean, rel=2e-2)
    assert run.load.rate_per_s is None
    # The log has ITL alone, and that to the second.
    assert run.figures.keys() >= ({"itl_mean_s"} if kind == "log" else {"ttft_mean_s"})
    for name, value in run.figures.items():
        within = {"log": 0.02, "printed table": 2e-3}.get(kind, 1e-4)
        within = 0.5 if name == "itl_p99_s" else within
        if kind != "vllm bench, detailed" or not name.startswith("itl_p"):
            assert value == pytest.approx(closed.figures[name], rel=within), name
    assert BenchmarkRun.from_json(json.loads(json_text(run))) == run


def test_a_stored_run_with_a_misspelt_key_is_refused(closed, tmp_path):
    run = one(write(closed, "vllm bench", tmp_path / "run"))
    values = json.loads(json_text(run))
    values["load"]["concurency"] = 9
    with pytest.raises(PinnError, match=r"unknown keys load\.concurency"):
        BenchmarkRun.from_json(values)


@pytest.mark.parametrize("kind", ["vllm bench", "aiperf", "guidellm", "inference-perf", "llm-d"])
def test_an_open_loop_keeps_its_rate(kind, tmp_path):
    sent = served(prior, concurrency=None, rate_per_s=4.0)
    run = one(write(sent, kind, tmp_path / "run"))
    assert (run.load.rate_per_s, run.load.concurrency) == (4.0, None)
    assert run.figures["ttft_mean_s"] == pytest.approx(sent.figures["ttft_mean_s"])


def test_what_a_file_says_of_its_server(closed, tmp_path):
    log, page, sglang, report = (
        one(write(closed, kind, tmp_path / kind), **ASKED.get(kind, {})).server
        for kind in ("log", "metrics pages", "sglang", "llm-d")
    )
    assert {s.model for s in (log, page, sglang, report)} == {"meta-llama/Meta-Llama-3.1-8B"}
    assert log.engine == "vllm 0.15.1"
    assert log.flags["tensor_parallel_size"] == 1
    assert page.kv_tokens == pytest.approx(log.kv_tokens, rel=1e-3)
    assert page.flags["gpu_memory_utilization"] == 0.9
    assert sglang.flags["max_num_batched_tokens"] == 8192
    assert sglang.kv_tokens == 400_000
    assert report.gpu == "NVIDIA-H100-80GB-HBM3"


@pytest.mark.parametrize(
    ("kind", "engine", "prompt", "output", "schedule"),
    [
        ("sglang", "sglang", Lengths(512.0, 1, 1023), Lengths(64.0, 1, 127), "prefill_first"),
        ("InferenceX", "trtllm", Lengths(921.6, 819.2, 1024), Lengths(115.2, 102.4, 128), "fused"),
        ("InferenceX", "sglang", Lengths(921.6, 819.2, 1024), Lengths(115.2, 102.4, 128),
         "prefill_first"),
    ],
)  # fmt: skip
def test_a_run_is_simulated_under_its_engines_schedule(
    kind, engine, prompt, output, schedule, tmp_path
):
    flags = {"engine": engine, "enable_prefix_caching": kind == "sglang"}
    flags |= {"engine_version": "0.5.9"} if engine == "sglang" else {}  # which the files name
    sent = served(prior, prompt=prompt, output=output, **flags)
    run = one(write(sent, kind, tmp_path))
    deployment = benchmark_target([run], gpu="H100").deployment()
    assert (deployment.serving.engine, deployment.recipe.schedule) == (engine, schedule)
    assert deployment.recipe == sent.deployment.recipe
    again = simulate(deployment, benchmark_workload(run), prior(deployment))
    found = benchmark_figures(again, ("ttft_mean_s", "tpot_mean_s"))
    assert found == pytest.approx({name: run.figures[name] for name in found}, rel=0.03)


def test_resolved_flags_of_sglang_are_what_the_user_gave():
    """Attention data parallelism divides the chunk, and leaves 0.3 of the conservativeness."""
    server = sglang_server(Tree({
        "model_path": "m", "version": "0.5.8", "tp_size": 8, "dp_size": 8, "ep_size": 8,
        "enable_dp_attention": True, "chunked_prefill_size": 1024, "page_size": 64,
        "schedule_conservativeness": 0.3, "disable_radix_cache": True, "max_running_requests": None,
        "kv_cache_dtype": "fp8_e4m3", "mem_fraction_static": 0.8,
    }))  # fmt: skip
    assert server.all_flags == pytest.approx({
        "engine": "sglang", "engine_version": "0.5.8", "tensor_parallel_size": 8,
        "data_parallel_size": 8, "ep_size": 8, "enable_dp_attention": True,
        "max_num_batched_tokens": 8192, "block_size": 64, "schedule_conservativeness": 1.0,
        "enable_prefix_caching": False, "kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.8,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "engine"), [("sglang", "sglang"), ("openai", "vllm"), ("tensorrt-llm", "trtllm")]
)
def test_the_protocol_tells_the_engine_where_it_is_its_own(backend, engine, closed, tmp_path):
    (tmp_path / "f.json").write_text(json.dumps(vllm_bench(closed) | {"backend": backend}))
    run = one([tmp_path / "f.json"])
    assert benchmark_target([run], gpu="H100").serving.engine == engine
    (tmp_path / "f.json").write_text(json.dumps(vllm_bench(closed) | {"backend": "lmdeploy"}))
    with pytest.raises(
        PinnError, match="the engine was lmdeploy, whose scheduler is not simulated"
    ):
        read_benchmarks([tmp_path / "f.json"])


def test_details_give_lengths_one_by_one_and_moments_of_sending(tmp_path):
    sent = served(prior, None, 4.0, prompt=Lengths(300.0, 100, 500), output=Lengths(30.0, 10, 50))
    run = one(write(sent, "vllm bench, detailed", tmp_path))
    r = sent.run.requests
    assert run.load.prompt.each == tuple(r.prompt_tokens)
    assert run.load.output.each == tuple(r.output_tokens)
    assert run.load.offsets_s == pytest.approx(r.arrival_s - r.arrival_s[0])
    assert run.figures["e2e_p90_s"] == pytest.approx(sent.figures["e2e_p90_s"])


def test_guidellms_time_per_output_token_is_not_read(closed, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(llm_d(closed, "guidellm")))
    assert one([path]).figures["tpot_mean_s"] == pytest.approx(closed.figures["tpot_mean_s"])


def test_points_of_a_file_are_counted_one_by_one(closed, tmp_path):
    values = guidellm(closed, closed)
    values["benchmarks"][1]["config"]["strategy"] = {"type_": "trace replay"}
    (tmp_path / "g.json").write_text(json.dumps(values))
    (tmp_path / "odd.json").write_text('{"a": 1}')
    (tmp_path / "cut.json").write_text(json.dumps(vllm_bench(closed))[:-20])
    (tmp_path / "empty.json").touch()
    unserved = vllm_bench(closed) | {"completed": 0}
    (tmp_path / "none.json").write_text(json.dumps(unserved))
    runs, report = read_benchmarks([tmp_path])
    assert [run.name for run in runs] == [f"{tmp_path / 'g.json'}#1"]
    assert report.read == 6
    assert dict(report.refused) == {
        "the JSON is malformed, perhaps truncated": 1,
        "the file is empty": 1,
        "the type of the load is 'trace replay', expected synchronous, concurrent, throughput, "
        "constant or poisson": 1,
        "the run has no completed request": 1,
        "the file was not written by a known tool": 1,
    }


@pytest.mark.parametrize(
    ("kind", "words"),
    [("metrics pages", "--concurrency"), ("aiperf csv", "--concurrency")],
)
def test_what_a_file_leaves_out_is_asked_for(kind, words, closed, tmp_path):
    with pytest.raises(PinnError, match=f"does not state {words}"):
        read_benchmarks(write(closed, kind, tmp_path / "run"))


def _guidellm_without(of):
    values = guidellm(of)
    metrics = values["benchmarks"][0]["metrics"]
    del metrics["time_to_first_token_ms"], metrics["prompt_token_count"]
    return values


def _aiperf_without(of):
    values = aiperf(of)
    values["time_to_first_token"] = {"unit": "ms"}
    del values["input_sequence_length"]
    return values


@pytest.mark.parametrize("without", [_guidellm_without, _aiperf_without])
def test_a_run_that_did_not_stream_is_counted_whatever_else_it_leaves_out(
    without, closed, tmp_path
):
    (tmp_path / "a.json").write_text(json_text(guidellm(closed)))
    (tmp_path / "b.json").write_text(json_text(without(closed)))
    runs, report = read_benchmarks([tmp_path / "a.json", tmp_path / "b.json"])
    assert (len(runs), report.read) == (1, 2)
    (reason,) = report.refused
    assert "the run did not stream" in reason


def test_a_rate_that_the_user_gives_takes_the_place_of_a_concurrency(closed, tmp_path):
    paths = write(closed, "inference-perf", tmp_path / "run")
    assert one(paths).load.concurrency == closed.load.concurrency
    load = one(paths, request_rate=4.0).load
    assert (load.concurrency, load.rate_per_s) == (None, 4.0)


def test_groups_of_prompts_that_the_user_gives_take_the_place_of_those_in_the_file(
    closed, tmp_path
):
    paths = write(closed, "inference-perf", tmp_path / "run")
    run = one(paths)
    assert run.load.prefix == SharedPrefix(10, closed.load.requests // 10, 0)
    assert any("as stated in config.yaml (--prompt-groups)" in text for text in run.assumed)
    run = one(paths, prompt_groups=2, prompts_per_group=3, shared_tokens=64)
    assert run.load.prefix == SharedPrefix(2, 3, 64)
    assert not any("share prefixes" in text for text in run.assumed)


@pytest.mark.parametrize("lone", [{"prompts_per_group": 3}, {"shared_tokens": 64}])
def test_properties_of_groups_of_prompts_need_groups(lone):
    with pytest.raises(PinnError, match="--prompt-groups is missing: add --prompt-groups 1"):
        GivenLoad(**lone)


def test_clients_of_inference_perf_abort_requests_after_their_timeout(closed, tmp_path):
    (folder,) = write(closed, "inference-perf", tmp_path / "run")
    assert one([folder]).load.timeout_s == AIOHTTP_TIMEOUT_S
    config = folder / "results/config.yaml"
    config.write_text(config.read_text().replace("load:", "load:\n  request_timeout: 45"))
    assert (benchmark_workload(one([folder])).timeout_s == 45).all()


def test_what_a_file_says_otherwise_is_refused(closed, tmp_path):
    with pytest.raises(PinnError, match="--concurrency is 8, but the file states 16: remove --c"):
        read_benchmarks(write(closed, "vllm bench", tmp_path), GivenLoad(concurrency=8))


def test_what_is_assumed_is_said_until_the_user_says_it(closed, tmp_path):
    paths = write(closed, "vllm bench", tmp_path)
    assumed = " ".join(one(paths).assumed)
    assert "--length-range" in assumed
    assert "--prompt-groups" in assumed
    run = one(paths, length_range="0.8,1", prompt_groups=4, shared_tokens=100)
    assert run.assumed == ()
    assert run.load.prompt == Lengths(512.0, 0.8 * 512 / 0.9, 512 / 0.9)
    assert run.load.prefix.groups == 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a, b: (b, a), "a counter decreases"),
        (lambda a, _: (a, a), "the server completed no request between the scrapes"),
        (lambda a, b: (a, b.replace("e+09", "e+08")), "restarted between the scrapes"),
        (lambda a, b: (a, b.replace("Meta-Llama-3.1-8B", "other")), "have 2 models"),
    ],
)
def test_two_scrapes_must_be_of_one_server(change, reason, closed, tmp_path):
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, text in zip(paths, change(*metrics_pages(closed)), strict=True):
        path.write_text(text)
    with pytest.raises(PinnError, match=reason):
        read_benchmarks(paths, GivenLoad(concurrency=16))


def test_a_load_says_what_is_impossible():
    with pytest.raises(PinnError, match="at least 1 request, got 0"):
        Load(0, Lengths(1.0), Lengths(1.0))
    with pytest.raises(PinnError, match="at least 1 token"):
        Lengths(float("nan"))


def samples() -> Path:
    folder = os.environ.get("PINN_BENCHMARK_FILES")
    if not folder:
        pytest.skip("PINN_BENCHMARK_FILES names no folder of sample files")
    return Path(folder)


def test_real_files_of_aiperf_agree_with_each_other():
    folder = samples()
    whole = one([folder / "aiperf_0.1_profile_export_aiperf.json"])
    table = one([folder / "aiperf_0.1_profile_export_aiperf.csv"], concurrency=100)
    assert (whole.served, whole.failed, whole.load.concurrency) == (89, 11, 100)
    assert whole.server.model == "openai/gpt-oss-20b"
    for name, value in table.figures.items():
        assert value == pytest.approx(whole.figures[name], rel=2e-3), name


def test_real_files_of_guidellm_and_llm_d():
    folder = samples()
    run = one([folder / "guidellm_v2_benchmarks.json"])
    # One of its tool's own: 11.48 ms, then 7 gaps of 1.151 ms.
    assert run.figures["e2e_mean_s"] == pytest.approx(
        run.figures["ttft_mean_s"] + 7 * run.figures["tpot_mean_s"], rel=0.02
    )
    with pytest.raises(PinnError, match="2 replicas behind one router"):
        read_benchmarks([folder / "llmd_br_v0_2_1_example.yaml"])


def test_a_release_is_carried_whether_or_not_it_is_the_defaults():
    default = reference_version("vllm").value
    for release in (default, "0.16.0"):
        flags = StatedServer(engine=f"vllm v{release}-cu130").all_flags
        assert flags == {"engine": "vllm", "engine_version": release}
    assert StatedServer(engine="vllm").all_flags == {"engine": "vllm"}
