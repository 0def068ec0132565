"""Readers say how they recognize a file, and skip and name the rest; files that people post."""

import json
import os
from pathlib import Path

import pytest
from assumed_priors import prior_coefficients
from benchmark_files import aiperf, inference_perf, sglang_bench, vllm_bench
from engine_pages import metrics_pages
from other_files import latency_profile, llmperf, printed_table, sweep_table
from served_load import served

from pinn.errors import PinnError
from pinn.measurements.benchmarks.benchmark_run import Lengths
from pinn.measurements.benchmarks.companions import result_files
from pinn.measurements.benchmarks.read import read_benchmarks
from pinn.measurements.benchmarks.reading import GivenLoad
from pinn.simulator.linear_latency import LinearLatency


def prior(deployment):
    found = prior_coefficients(1)
    return LinearLatency(deployment, found.beta[0], found.alpha[0])


@pytest.fixture(scope="module")
def closed():
    return served(prior, requests=48)


def public_case(name):
    folder = os.environ.get("PINN_PUBLIC_CASES")
    if not folder:
        pytest.skip("PINN_PUBLIC_CASES names no folder of public cases")
    return Path(folder) / name


def without(values, *names):
    return {name: value for name, value in values.items() if name not in names}


def only_medians(values):
    return {name: value for name, value in values.items() if not name.startswith(("mean_", "std_"))}


# Lines, runs and files that cannot be read.


def test_lines_that_are_no_json_are_left_out_and_named(closed, tmp_path):
    line, path = json.dumps(sglang_bench(closed)), tmp_path / "s.jsonl"
    path.write_text(f"max_prefill:8192,is_dp:False\n{line}\n\n{line[:-9]}\n{line}\n")
    runs, report = read_benchmarks([path])
    assert [run.name for run in runs] == [f"{path}#1", f"{path}#2"]
    assert dict(report.refused) == {"no JSON object": 1, "malformed JSON, perhaps cut off": 1}
    assert dict(report.places) == {
        "no JSON object": (f"{path}, line 1",),
        "malformed JSON, perhaps cut off": (f"{path}, line 4",),
    }
    assert f"       1  refused: no JSON object ({path}, line 1)\n" in report.table()


def test_a_run_that_cannot_be_read_is_named_by_its_line(closed, tmp_path):
    rows = [vllm_bench(closed), vllm_bench(closed) | {"completed": 0}, vllm_bench(closed)]
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs, report = read_benchmarks([path])
    assert len(runs) == 2
    assert report.places == {"the run has no completed request": (f"{path}, line 2",)}


def test_rows_of_another_width_are_left_out_of_a_table(closed, tmp_path):
    path = tmp_path / "summary.csv"
    path.write_text(sweep_table([vllm_bench(closed)] * 3).replace("\n1,", "\n1,1,"))
    runs, report = read_benchmarks([path])
    assert len(runs) == 2
    (reason,) = report.refused
    assert reason.endswith("columns")
    assert report.places[reason] == (f"{path}, line 3",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: without(v, "duration", "total_input_tokens"),
         "lacks the keys duration, total_input_tokens"),
        (lambda v: without(v, "completed"), "those of vllm bench serve, but lack completed"),
        (lambda v: {k: x for k, x in v.items() if not k.endswith("_ms")},
         "the file has no latency, expected keys such as mean_ttft_ms, median_ttft_ms"),
        (lambda v: v | {"duration": "long"}, "duration: expected a number, got 'long'"),
    ],
)  # fmt: skip
def test_keys_that_are_missing_are_named(change, words, closed, tmp_path):
    path = tmp_path / "f.json"
    path.write_text(json.dumps(change(vllm_bench(closed))))
    with pytest.raises(PinnError) as error:
        read_benchmarks([path])
    assert str(error.value).startswith(f"{path}: ")
    assert words in str(error.value)


def test_a_json_file_that_was_cut_off_is_named_with_its_line(closed, tmp_path):
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(vllm_bench(closed), indent=1)[:-40])
    lines = path.read_text().count("\n") + 1
    with pytest.raises(
        PinnError, match=f"cut.json, line {lines}: the JSON is malformed, perhaps truncated"
    ):
        read_benchmarks([path])


def test_a_folder_goes_on_after_a_file_that_lacks_a_flag(closed, tmp_path):
    (tmp_path / "a.json").write_text(latency_profile(closed))
    (tmp_path / "b.json").write_text(json.dumps(vllm_bench(closed)))
    (tmp_path / "c.json").write_text(json.dumps(vllm_bench(closed) | {"max_concurrency": 3}))
    runs, report = read_benchmarks([tmp_path])
    assert [run.load.concurrency for run in runs] == [closed.load.concurrency, 3]
    (reason,) = report.refused
    assert (
        "does not state --concurrency (maximum number of requests in flight) and --request-rate"
        in reason
    )
    assert report.places[reason] == (str(tmp_path / "a.json"),)
    runs, report = read_benchmarks([tmp_path], GivenLoad(concurrency=16))
    assert [run.load.concurrency for run in runs] == [16, 16]
    (reason,) = report.refused
    assert "--concurrency is 16, but the file states 3: remove --concurrency" in reason


def test_what_tools_write_beside_their_results_is_passed_over(closed, tmp_path):
    sweep = tmp_path / "SERVE--max_num_seqs=64-BENCH--max_concurrency=16"
    sweep.mkdir()
    values = vllm_bench(closed) | {"max_num_seqs": 64, "run_number": 0}
    for name in ("run=0.json", "run=1.json", "warmup.json"):
        (sweep / name).write_text(json.dumps(values))
    (sweep / "summary.json").write_text(json.dumps([values, values]))
    (tmp_path / "summary.csv").write_text(sweep_table([values, values]))
    (tmp_path / "aiperf").mkdir()
    (tmp_path / "aiperf" / "profile_export_aiperf.json").write_text(json.dumps(aiperf(closed)))
    (tmp_path / "aiperf" / "profile_export_aiperf.csv").write_text("Metric,avg,p50\n")
    runs, report = read_benchmarks([tmp_path])
    assert (len(runs), report.read, report.accepted) == (3, 3, 3)
    assert {run.server.flags.get("max_num_seqs") for run in runs[:2]} == {64}
    alone, _ = read_benchmarks([tmp_path / "summary.csv"])
    assert [run.server.flags for run in alone] == [run.server.flags for run in runs[:2]]
    assert [run.figures for run in alone] == [run.figures for run in runs[:2]]


def test_the_summary_of_stages_is_passed_over_in_their_folder(closed, tmp_path):
    folder = inference_perf(closed, tmp_path)
    inside = folder if folder.is_dir() else folder.parent
    (stage,) = (path for path in inside.rglob("stage_*_lifecycle_metrics.json"))
    (stage.parent / "summary_lifecycle_metrics.json").write_text(stage.read_text())
    assert read_benchmarks([inside])[1].refused == {}
    with pytest.raises(
        PinnError, match="the file summarizes stages, whose own reports are read instead"
    ):
        read_benchmarks([stage.parent / "summary_lifecycle_metrics.json"])


# Kinds of files.


def test_medians_stand_where_means_are_missing(closed, tmp_path):
    path = tmp_path / "f.json"
    path.write_text(json.dumps(only_medians(vllm_bench(closed))))
    (run,), _ = read_benchmarks([path])
    assert not [name for name in run.figures if "mean" in name]
    assert run.typical_s("ttft") == pytest.approx(closed.figures["ttft_p50_s"])
    assert run.typical_s("tpot", "itl") == pytest.approx(closed.figures["tpot_p50_s"])
    assert run.typical_s("e2e") is None


def test_one_metrics_page_counts_from_the_servers_start(closed, tmp_path):
    paths = [tmp_path / "start.txt", tmp_path / "now.txt"]
    for path, text in zip(paths, metrics_pages(closed, (0.0, 0.0)), strict=True):
        path.write_text(text)
    with pytest.raises(
        PinnError,
        match="only one scrape of the /metrics page was given: give an earlier scrape, too",
    ):
        read_benchmarks(paths[1:])
    (between,), _ = read_benchmarks(paths, GivenLoad(duration=20.0))
    (run,), _ = read_benchmarks(paths[1:], GivenLoad(duration=20.0))
    assert (run.figures, run.load, run.server) == (between.figures, between.load, between.server)
    assert run.load.rate_per_s == pytest.approx(closed.load.requests / 20.0)
    assert "all requests since the server's start belong to this load" in run.assumed
    with pytest.raises(
        PinnError, match=r"start.txt: the server completed no request since the server's"
    ):
        read_benchmarks(paths[:1], GivenLoad(duration=20.0))


def test_several_tables_are_printed_into_one_log(closed, tmp_path):
    first = printed_table(vllm_bench(closed))
    values = vllm_bench(closed) | {"max_concurrency": 4, "failed": 2}
    second = printed_table(values).replace("\n", "\nclient-1 | ")
    path = tmp_path / "client.log"
    path.write_text(f"Starting initial single prompt test run...\n{first}\nnext\n{second}")
    runs, report = read_benchmarks([path])
    assert [run.load.concurrency for run in runs] == [closed.load.concurrency, 4]
    assert [run.failed for run in runs] == [0, 2]
    assert runs[1].load.requests == closed.load.requests + 2
    assert report.refused == {}
    path.write_text(first.replace("Benchmark duration", "Duration"))
    with pytest.raises(PinnError, match=r"the printed table lacks Benchmark duration \(s\)"):
        read_benchmarks([path])


@pytest.mark.parametrize(
    "prefix", ["INFO ", "INFO:root:", "INFO: ", "Node A | ", "(Client pid=1) "]
)
def test_a_log_may_stand_before_every_line_of_a_printed_table(prefix, closed, tmp_path):
    lines = printed_table(vllm_bench(closed)).splitlines()
    logged = [prefix + line for line in [*lines, "Attention Backend: FLASH_ATTN"]]
    runs = []
    for name, text in (("plain.txt", lines), ("logged.txt", logged)):
        (tmp_path / name).write_text("\n".join(text))
        runs += read_benchmarks([tmp_path / name])[0]
    assert runs[1].figures == runs[0].figures
    assert (runs[1].load, runs[1].tool) == (runs[0].load, "vllm bench serve, printed")


def test_files_that_appear_between_two_readings_are_companions(closed, tmp_path):
    text = json.dumps(vllm_bench(closed))
    (tmp_path / "warmup.json").write_text(text)
    assert result_files([tmp_path]) == [tmp_path / "warmup.json"]
    (tmp_path / "run=0.json").write_text(text)
    assert result_files([tmp_path]) == [tmp_path / "run=0.json"]


def test_sglangs_printed_table_names_its_backend(closed, tmp_path):
    text = printed_table(vllm_bench(closed)).replace("Failed requests:", "Concurrency:")
    text = text.replace("Successful", "Backend:   sglang\nSuccessful").replace(
        "Maximum request", "Max request"
    )
    end = "Mean E2E Latency (ms):                   9000.00\nAccept length:   2.5\n" + "=" * 50
    text = text.replace("=" * 50, end)
    path = tmp_path / "out.txt"
    path.write_text(text)
    (run,), _ = read_benchmarks([path])
    assert run.tool == "sglang.bench_serving, printed"
    assert (run.server.engine, run.server.speculative) == ("sglang", True)
    assert run.figures["e2e_mean_s"] == 9.0


def test_other_engines_of_the_latency_profile_are_refused(closed, tmp_path):
    path = tmp_path / "lpg.json"
    path.write_text(latency_profile(closed).replace('"vllm"', '"jetstream"'))
    with pytest.raises(
        PinnError, match="the engine was jetstream, whose scheduler is not simulated"
    ):
        read_benchmarks([path], GivenLoad(concurrency=16))


def test_llmperfs_lengths_spread_as_they_were_drawn(closed, tmp_path):
    values = json.loads(llmperf(closed)) | {"stddev_input_tokens": 40}
    (tmp_path / "f.json").write_text(json.dumps(values))
    (run,), _ = read_benchmarks([tmp_path / "f.json"])
    assert run.load.prompt == Lengths(closed.load.prompt.mean, std=40)


# Files that people posted.


@pytest.mark.parametrize(
    ("name", "given", "tool", "load", "figures"),
    [
        ("llmperf_summary.json", {}, "llmperf", "150 x 550 + 150 tokens, 10 at a time",
         {"ttft_mean_s": 0.075, "ttft_p50_s": 0.06, "e2e_mean_s": 1.55,
          "tpot_mean_s": (1.55 - 0.075) / 149.1, "requests_per_s": 6.4,
          "output_tokens_per_s": 960.0}),
        ("lpg_inference_benchmark.json", {"request_rate": 1.2}, "latency profile generator",
         "100 x 273 + 223 tokens, 1.2 requests/s",
         {"ttft_mean_s": 4.7265, "ttft_p50_s": 0.9602, "ttft_p90_s": 26.5764, "itl_mean_s": 0.10003,
          "itl_p50_s": 0.08733, "e2e_mean_s": 27.0196, "requests_per_s": 1.1384}),
        ("sglang_jsonl_with_comment_lines.jsonl", {}, "sglang.bench_serving",
         "300 x 4000 + 1000 tokens, 32 at a time",
         {"ttft_mean_s": 15.5077, "tpot_mean_s": 0.0496295, "e2e_p99_s": 66.922}),
        ("vllm_bench_console.txt", {}, "vllm bench serve, printed",
         "128 x 1062 + 8192 tokens, 16 at a time",
         {"ttft_mean_s": 0.3872, "ttft_p99_s": 0.53782, "tpot_p50_s": 0.01201,
          "itl_mean_s": 0.02238, "requests_per_s": 128 / 788.21}),
        ("vllm_bench_medians_only.json", {}, "vllm bench serve",
         "128 x 4096 + 4096 tokens, 16 at a time",
         {"ttft_p50_s": 0.727, "tpot_p50_s": 0.01029, "tpot_p99_s": 0.01083}),
    ],
)  # fmt: skip
def test_values_of_public_files(name, given, tool, load, figures):
    (run,), _ = read_benchmarks([public_case(name)], GivenLoad(**given))
    assert (run.tool, run.load.text) == (tool, load)
    assert {key: run.figures[key] for key in figures} == pytest.approx(figures)
    assert run.recognized_by


def test_values_of_a_public_sweep():
    runs, report = read_benchmarks([public_case("vllm_bench_sweep_summary.csv")])
    assert [run.load.concurrency for run in runs] == [3, 6]
    assert runs[0].load.text == "6 x 418 + 7 tokens, 3 at a time"
    for run in runs:
        assert run.figures["ttft_mean_s"] == pytest.approx(0.975967)
        assert run.figures["e2e_p99_s"] == pytest.approx(2.85255)
    assert (report.read, report.refused) == (2, {})


def test_the_stray_line_of_a_public_file_is_named():
    path = public_case("sglang_jsonl_with_comment_lines.jsonl")
    _, report = read_benchmarks([path])
    assert report.places == {"no JSON object": (f"{path}, line 1",)}
