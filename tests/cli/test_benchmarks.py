"""``pinn ingest benchmarks`` and ``pinn evaluate coefficients``, as typed."""

import json
import re
import warnings

import numpy as np
import pytest
from benchmark_files import vllm_bench
from engine_pages import iteration_log, metrics_pages, request_spans
from one_screen import assert_one_screen
from pages import command_on
from served_load import served

import pinn
from pinn.measurements.traces.trace_tables import read_trace_tables
from pinn.simulator.linear_latency import LinearLatency
from pinn.surrogate.coefficient_set import read_coefficient_set

LLAMA = ("--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100")


@pytest.fixture
def coefficients(run, tmp_path):
    path = tmp_path / "set.json"
    result = run("coefficients", *LLAMA, "--json", path)
    assert result.exit_code == 0, result.output
    return path


def test_a_file_scores_the_run_that_it_made(run, coefficients, tmp_path):
    found = read_coefficient_set(coefficients)
    of = served(lambda d: LinearLatency(d, found.beta, found.alpha))
    (tmp_path / "c16.json").write_text(json.dumps(vllm_bench(of)))
    out = tmp_path / "run1"
    result = run("ingest", "benchmarks", tmp_path / "c16.json", "-o", out, *LLAMA)
    assert result.exit_code == 0, result.output
    for words in ("1  read", "1  accepted", "1 of vllm bench serve", "assumed: no two prompts"):
        assert words in result.stdout
    table = tmp_path / "scores.csv"
    result = run("evaluate", "coefficients", coefficients, "--observations", out, "--out", table)
    assert result.exit_code == 0, result.output
    assert "TTFT mean, ms" in result.stdout
    errors = [float(line.split(",")[-1]) for line in table.read_text().splitlines()[1:]]
    assert max(map(abs, errors)) < 1e-6


def test_a_server_that_falls_behind_is_named(run, coefficients, tmp_path):
    found = read_coefficient_set(coefficients)
    of = served(lambda d: LinearLatency(d, found.beta, found.alpha), concurrency=None, rate_per_s=4)
    for share, told in ((0.95, False), (0.5, True)):
        values = vllm_bench(of) | {"request_throughput": 4 * share}
        (tmp_path / "open.json").write_text(json.dumps(values))
        result = run(
            "ingest", "benchmarks", tmp_path / "open.json", "-o", tmp_path / "run2", *LLAMA
        )
        assert result.exit_code == 0, result.output
        assert ("overloaded: served 2.00 of 4.00 requests/s" in result.stdout) == told


def test_pages_ask_for_their_load(refused, coefficients, tmp_path):
    found = read_coefficient_set(coefficients)
    of = served(lambda d: LinearLatency(d, found.beta, found.alpha), requests=32)
    paths = [tmp_path / "before.txt", tmp_path / "after.txt"]
    for path, text in zip(paths, metrics_pages(of), strict=True):
        path.write_text(text)
    line = refused("ingest", "benchmarks", *paths, "-o", tmp_path / "run1", *LLAMA)
    assert (
        "does not state --concurrency (maximum number of requests in flight): give --concurrency"
        in line
    )
    assert not (tmp_path / "run1").exists()


def test_logs_and_spans_give_something_to_calibrate_on(run, refused, coefficients, tmp_path):
    of_log = tmp_path / "of-the-release-that-the-log-names.json"
    named = run("coefficients", *LLAMA, "--engine-version", "0.15.1", "--json", of_log)
    assert named.exit_code == 0, named.output
    found = read_coefficient_set(coefficients)
    of = served(lambda d: LinearLatency(d, found.beta, found.alpha), requests=32)
    (tmp_path / "vllm.log").write_text(iteration_log(of))
    result = run("ingest", "benchmarks", tmp_path / "vllm.log", "-o", tmp_path / "log",
                 "--gpu", "H100")  # fmt: skip
    assert result.exit_code == 0, result.output
    result = run("evaluate", "coefficients", of_log, "--observations", tmp_path / "log")
    assert "ITL mean, ms" in result.stdout
    spans = tmp_path / "spans.json"
    spans.write_text(request_spans(of))
    result = run("ingest", "vllm", spans, "-o", tmp_path / "stock", *LLAMA)
    assert "pinn ingest benchmarks" in result.stdout
    assert str(tmp_path / "stock") in refused(
        "evaluate", "coefficients", coefficients, "--observations", tmp_path / "stock"
    )
    result = run("ingest", "benchmarks", spans, "-o", tmp_path / "runs", *LLAMA)
    assert "1 of request spans of vLLM" in result.stdout


def test_the_log_of_a_start_has_to_match_the_flags(run, refused, coefficients, tmp_path):
    """A metrics page also sizes the cache that the benchmarks are simulated with."""
    found, log = read_coefficient_set(coefficients), tmp_path / "server.log"
    of = served(lambda d: LinearLatency(d, 0.85 * found.beta, 0.85 * found.alpha), 4, requests=64)
    (tmp_path / "c4.json").write_text(json.dumps(vllm_bench(of)))
    calibrate = ("calibrate", "--base", coefficients, "-o", tmp_path / "set2.json", *LLAMA,
                 "--benchmarks", tmp_path / "c4.json", "--memory-log", log)  # fmt: skip
    log.write_text("INFO [kv_cache_utils.py:1087] GPU KV cache size: 452,160 tokens\n")
    result = run(*calibrate)
    assert result.exit_code == 0, result.output
    assert "vllm logged a KV cache of 452,160 tokens on each GPU" in result.stdout
    log.write_text("INFO [kv_cache_utils.py:1087] GPU KV cache size: 1,052,160 tokens\n")
    assert "65,759 KV cache blocks per GPU, but " in refused(*calibrate)
    log.write_text("ValueError: No available memory for the cache blocks.")
    assert "a failed start (No available memory" in refused(*calibrate)


def test_only_what_is_better_beyond_noise_is_written(run, coefficients, tmp_path):
    """One load is written with a warning, two that contradict each other are not."""
    found, out = read_coefficient_set(coefficients), tmp_path / "calibrated.json"
    files = [tmp_path / "c4.json", tmp_path / "c16.json"]
    for path, concurrency, factor in zip(files, (4, 16), (0.85, 1.2), strict=True):
        of = served(lambda d, f=factor: LinearLatency(d, f * found.beta, f * found.alpha),
                    concurrency, requests=64)  # fmt: skip
        path.write_text(json.dumps(vllm_bench(of)))
    calibrate = ("calibrate", "--base", coefficients, "-o", out, *LLAMA, "--benchmarks")
    result = run(*calibrate, *files)
    assert result.exit_code == 1, result.output
    assert "nothing written" in result.stdout
    assert not out.exists()
    result = run(*calibrate, files[0])
    assert result.exit_code == 0, result.output
    assert "WARNING" in result.stdout
    assert out.exists()


def test_a_calibration_is_checked_at_percentiles_and_warns_of_other_loads(
    run, coefficients, tmp_path
):
    """The file of a server 20 % slower, used with its own load and with loads unlike it."""
    base, out = read_coefficient_set(coefficients), tmp_path / "calibrated.json"
    files = [tmp_path / f"c{concurrency}.json" for concurrency in (4, 16)]
    loads = [
        served(lambda d: LinearLatency(d, 1.2 * base.beta, 1.2 * base.alpha), n, requests=64)
        for n in (4, 16)
    ]
    for path, of in zip(files, loads, strict=True):
        path.write_text(json.dumps(vllm_bench(of)))
    result = run("calibrate", "--base", coefficients, "-o", out, *LLAMA, "--benchmarks", *files)
    assert result.exit_code == 0, result.output
    assert_one_screen(result.stdout)
    for latency in ("TTFT", "TPOT"):
        assert re.search(rf"{latency} p99 +2 +16\.67 % +\d\.\d\d % +better", result.stdout)
    # The largest gaps are steps with prompts, which two loads of few requests hardly determine.
    assert re.search(r"ITL p99 +2 +16\.67 % +\d+\.\d\d % ", result.stdout)
    rows = read_coefficient_set(out).calibration["held_out_percentiles"]
    (row,) = (r for r in rows if (r["run"], r["figure"]) == (str(files[0]), "ttft_p99_s"))
    assert row["measured"] == pytest.approx(loads[0].figures["ttft_p99_s"])
    assert row["before"] == pytest.approx(row["measured"] / 1.2, rel=1e-3)
    assert row["before"] < row["after"] == pytest.approx(row["measured"], rel=0.15)

    predicted = pinn.predict(coefficients=out).report("32 decode @ 700")
    low, high = predicted["intervals"]["ttft"]
    assert low < 1 < high
    assert low * high == pytest.approx(1)
    assert (
        "The TTFT interval accounts for the errors of 2 held-out TTFTs"
        in predicted["distance"]["sentence"]
    )

    usual = {"prompt_tokens": 512, "output_tokens": 64, "concurrency": 8, "requests": 64}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "notices" not in pinn.simulate(usual, coefficients=out).to_json()
    for change, said in (
        ({"prompt_tokens": 1024}, "a mean prompt length of 1,024 tokens, but .* fitted to 512:"),
        ({"output_tokens": 32}, "a mean output length of 32 tokens, but .* fitted to 64:"),
        ({"concurrency": 64}, r"6\d(\.\d)? requests in flight .* fitted to 4 to 1[56](\.\d)?:"),
    ):
        with pytest.warns(UserWarning, match=said):
            (notice,) = pinn.simulate(usual | change, coefficients=out).to_json()["notices"]
        assert re.search(said, notice)


def test_what_was_predicted_rightly_stays_and_is_known_better(run, coefficients, tmp_path):
    """Measurements that confirm the coefficients leave them and make their intervals narrower."""
    before, out = read_coefficient_set(coefficients), tmp_path / "calibrated.json"
    for concurrency in (4, 16):
        of = served(lambda d: LinearLatency(d, before.beta, before.alpha), concurrency, requests=64)
        (tmp_path / f"c{concurrency}.json").write_text(json.dumps(vllm_bench(of)))
    files = (tmp_path / "c4.json", tmp_path / "c16.json")
    given = ("--base", coefficients, "-o", out, *LLAMA, "--benchmarks", *files, "--details")
    result = run("calibrate", *given)
    assert result.exit_code == 0, result.output
    assert re.search(r"likelihood ratio \d+\.\d\d +\d+\.\d\d", result.stdout)
    assert "change +- standard error" in " ".join(result.stdout.split())
    np.testing.assert_allclose(read_coefficient_set(out).beta, before.beta, rtol=0.02)


def test_an_appended_calibration_keeps_what_it_was_fitted_to(run, coefficients, tmp_path):
    found = read_coefficient_set(coefficients)
    files = {}
    for concurrency in (2, 4, 16):
        slow = served(
            lambda d: LinearLatency(d, 1.3 * found.beta, found.alpha), concurrency, requests=64
        )
        files[concurrency] = tmp_path / f"c{concurrency}.json"
        files[concurrency].write_text(json.dumps(vllm_bench(slow)))
    first, second, third = (tmp_path / f"{name}.json" for name in ("first", "second", "third"))
    result = run("calibrate", "--base", coefficients, "-o", first, *LLAMA,
                 "--benchmarks", files[4], files[16])  # fmt: skip
    assert result.exit_code == 0, result.output
    result = run("calibrate", "--append", first, "-o", second, "--benchmarks", files[2])
    assert result.exit_code == 0, result.output
    before, after = (read_coefficient_set(path).calibration for path in (first, second))
    assert len(after["sources"]) == len(before["sources"]) + 1 == 3
    assert after["figures"][: len(before["figures"])] == before["figures"]
    low, high = after["loads"]["requests_in_flight"]
    assert low < before["loads"]["requests_in_flight"][0]
    assert high == before["loads"]["requests_in_flight"][1]
    result = run("calibrate", "--append", second, "-o", third, "--benchmarks", files[4])
    assert f"second.json was already fitted to {files[4]}, which then counts twice" in result.stderr
    assert not third.exists()


def test_what_is_left_out_is_named_and_told_by_the_exit_status(
    run, coefficients, tmp_path, monkeypatch
):
    found = read_coefficient_set(coefficients)
    folder = tmp_path / "results"
    folder.mkdir()
    for concurrency in (4, 16):
        of = served(lambda d: LinearLatency(d, found.beta, found.alpha), concurrency, requests=64)
        text = json.dumps(vllm_bench(of))
        (folder / f"c{concurrency}.jsonl").write_text(f"{text}\n")
    monkeypatch.chdir(tmp_path)
    (_, *given), _ = command_on("your_server_files.md", "pinn ingest")
    result = run(*given)
    assert result.exit_code == 0, result.output
    assert "2 of vllm bench serve, recognized by the keys model_id, num_prompts" in result.stdout
    assert "on H100-SXM, bf16, vllm" in result.stdout
    assert "WARNING" not in result.stdout
    other = json.dumps(json.loads(text) | {"model_id": "Qwen/Qwen3-8B"})
    (folder / "c4.jsonl").write_text(f"stray\n{text}\n")
    (folder / "c8.jsonl").write_text(f"{other}\n")
    result = run(*given)
    assert "WARNING: the files have 2 models" in result.stdout
    (folder / "c8.jsonl").unlink()
    (folder / "notes.txt").write_text("of Tuesday\n")
    result = run(*given)
    assert result.exit_code == 3, result.output
    stray = "1  refused: no JSON object (results/c4.jsonl, line 1)"
    other = "1  refused: the file was not written by a known tool (results/notes.txt)"
    for line in ("4  read", stray, other, "2  accepted"):
        assert line in result.stdout
    assert (tmp_path / "run1" / "benchmarks.parquet").exists()


def test_a_fit_to_what_could_be_read_tells_of_the_rest(run, coefficients, tmp_path):
    found, out = read_coefficient_set(coefficients), tmp_path / "set2.json"
    of = served(lambda d: LinearLatency(d, 0.85 * found.beta, 0.85 * found.alpha), 4, requests=64)
    (tmp_path / "c4.jsonl").write_text(f"stray\n{json.dumps(vllm_bench(of))}\n")
    result = run("calibrate", "--base", coefficients, "-o", out, *LLAMA, "--details",
                 "--benchmarks", tmp_path / "c4.jsonl")  # fmt: skip
    assert result.exit_code == 3, result.output
    said = " ".join(result.stdout.split())
    assert f"1 skipped: no JSON object ({tmp_path / 'c4.jsonl'}, line 1)" in said
    assert out.exists()


def test_medians_are_fitted_as_medians(coefficients, tmp_path):
    """A server that is slower is found from medians alone."""
    found = read_coefficient_set(coefficients)
    files = [tmp_path / "c4.json", tmp_path / "c8.json", tmp_path / "c16.json"]
    for path, concurrency in zip(files, (4, 8, 16), strict=True):
        of = served(lambda d: LinearLatency(d, 1.3 * found.beta, 1.3 * found.alpha),
                    concurrency, requests=64)  # fmt: skip
        values = {k: v for k, v in vllm_bench(of).items() if not k.startswith("mean_")}
        path.write_text(json.dumps(values))
    fitted = pinn.calibrate(files, "meta-llama/Llama-3.1-8B", "H100", base=coefficients)
    errors = fitted.fit.found.errors
    # TTFT of few loads may say nothing of each other; it is then left as it was.
    assert {"tpot_p50_s"} <= set(errors["figure"]) <= {"ttft_p50_s", "tpot_p50_s"}
    of_gaps = errors[errors["figure"] == "tpot_p50_s"]
    for when, share in (("before", 1 / 1.3), ("after", 1.0)):
        np.testing.assert_allclose(of_gaps[when] / of_gaps["measured"], share, atol=0.03)


COMMAND = "vllm serve meta-llama/Llama-3.1-8B -tp 2 --max-num-seqs 64 --port 8000"


def test_a_launch_command_says_what_was_measured(run, refused, coefficients, tmp_path):
    found, out = read_coefficient_set(coefficients), tmp_path / "run1"
    of = served(lambda d: LinearLatency(d, found.beta, found.alpha), 4, requests=64)
    (tmp_path / "c4.json").write_text(json.dumps(vllm_bench(of) | {"model_id": ""}))
    result = run("ingest", "benchmarks", tmp_path / "c4.json", "-o", out, "--serve", COMMAND,
                 "--gpu", "H100", "--max-num-batched-tokens", 4096)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "no effect on predictions: --port 8000" in result.output
    deployment = read_trace_tables(out).deployment()
    serving = deployment.serving
    assert (serving.tensor_parallel_size, serving.max_num_seqs) == (2, 64)
    assert serving.max_num_batched_tokens == 4096
    result = run("calibrate", "--benchmarks", tmp_path / "c4.json", "--serve", COMMAND, "--gpu",
                 "H100", "-o", tmp_path / "set.json", "--force")  # fmt: skip
    assert result.exit_code == 0, result.output
    written = read_coefficient_set(tmp_path / "set.json").configuration()
    assert written["tensor_parallel_size"] == 2
    result = run("calibrate", "--observations", out, "--serve", COMMAND)
    assert result.exit_code == 1
    assert "cannot be combined with flags of the server" in result.output
    line = refused("measure", "--model", "Llama-3.1-8B", "--gpu", "H100", "--serve", COMMAND)
    assert "is a switch and takes no launch command" in line


def test_a_function_takes_the_launch_command_too(coefficients, tmp_path):
    found = read_coefficient_set(coefficients)
    of = served(lambda d: LinearLatency(d, found.beta, found.alpha), 4, requests=64)
    (tmp_path / "c4.json").write_text(json.dumps(vllm_bench(of)))
    fitted = pinn.calibrate(tmp_path / "c4.json", gpu="H100", serve=COMMAND, force=True,
                            model="Qwen/Qwen3-8B")  # fmt: skip
    deployment = fitted.fit.found.deployment
    assert deployment.serving.max_num_seqs == 64
    assert deployment.model.name == "Qwen/Qwen3-8B"
