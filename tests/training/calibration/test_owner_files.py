"""Files of a server's owner: overloaded runs, flags in files, names, and verdicts with figures."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml

from pinn.calibration import report
from pinn.calibration.benchmarks import BenchmarkCalibration
from pinn.calibration.calibrate import judge, judgements
from pinn.calibration.checks import refuse
from pinn.calibration.checks_benchmarks import check_benchmarks
from pinn.calibration.fit import Fit
from pinn.calibration.held_out import metric_errors, percentile_errors
from pinn.calibration.overloaded import check_some_left, without_overloaded
from pinn.calibration.posterior import Quantity
from pinn.calibration.prior import Prior
from pinn.common.run_names import short_names
from pinn.common.screen import printed
from pinn.engines.labels import server_label
from pinn.errors import PinnError
from pinn.evaluation.coefficient_file import _load_grids
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun, Lengths, Load
from pinn.measurements.benchmarks.read import read_benchmarks
from pinn.measurements.benchmarks.run_table import run_lines
from pinn.measurements.benchmarks.taken_flags import taken_lines
from pinn.measurements.traces.ingestion import benchmark_target
from pinn.surrogate.coefficient_set import read_coefficient_set
from pinn.surrogate.coefficients import NAMES
from pinn.surrogate.request_features import REQUEST_FEATURES

MODEL, GPU = "meta-llama/Llama-2-7b-hf", "H100"
FOLDERS = ("20260217-155451-llama-2-7b-tp1-codegen", "20260217-231439-llama-2-7b-tp1-general")
LATENCIES = {"ttft_mean_s": 0.03, "tpot_mean_s": 0.01}


def run_of(name="run.json", failed=0, served_per_s=None, **load):
    load = Load(1000, Lengths(500.0), Lengths(200.0), **(load or {"rate_per_s": 10.0}))
    rate = {} if served_per_s is None else {"requests_per_s": served_per_s}
    return BenchmarkRun(name, "test", load, LATENCIES | rate, 1000 - failed, failed)


@pytest.fixture
def folders(tmp_path):
    """Folders as inference-perf writes them, with the server's flags in exp-config.yaml."""
    shares = {"mean": 1.0, "median": 0.9, "p90": 1.5, "p95": 1.7, "p99": 2.0}
    for name in FOLDERS:
        results = tmp_path / name / "results"
        results.mkdir(parents=True)
        server = {"model": MODEL, "tensor_parallelism": 1, "max_num_batched_tokens": 2048}
        (tmp_path / name / "exp-config.yaml").write_text(yaml.safe_dump(server))
        shared = {"num_groups": 10, "num_prompts_per_group": 10, "output_len": 200}
        config = {"data": {"shared_prefix": shared}, "server": {"ignore_eos": True}}
        (results / "config.yaml").write_text(yaml.safe_dump(config))
        for stage in (0, 1):
            latency = {"time_to_first_token": {k: 0.03 * v for k, v in shares.items()},
                       "request_latency": {k: 2.02 * v for k, v in shares.items()}}  # fmt: skip
            values = {"load_summary": {"count": 1000, "requested_rate": 5.0 + stage},
                      "successes": {"latency": latency, "prompt_len": {"mean": 500.0},
                                    "output_len": {"mean": 170.0}},
                      "failures": {"count": 0}}  # fmt: skip
            file = results / f"stage_{stage}_lifecycle_metrics.json"
            file.write_text(json.dumps(values))
    return tmp_path


def calibrated(held_out, overloaded=()):
    errors = held_out.assign(after=held_out["measured"])
    even = np.ones(4)
    verdicts = judgements("each load, held out", [even, even], [even, even])
    deployment = benchmark_target([run_of()], MODEL, GPU).deployment()
    prior = Prior(np.ones(len(NAMES)), np.eye(len(NAMES)))
    facts = {"sources": [{"path": name} for name in held_out["run"]]}
    return BenchmarkCalibration(
        deployment, prior, prior, [], verdicts, facts, errors, held_out, (), overloaded
    )


def fit_of(found, kept=True):
    known = np.zeros(len(REQUEST_FEATURES), bool)
    return Fit(found, found.coefficient_set({}, known), kept)


def held_out_table(before, after):
    rows = [(f"c{i}.json", f"load {i}", "ttft_mean_s", 1.0, 1.0 + b, 1.0 + a)
            for i, (b, a) in enumerate(zip(before, after, strict=True))]  # fmt: skip
    return pd.DataFrame(rows, columns=["run", "load", "figure", "measured", "before", "after"])


def test_a_weighted_mean_error_lies_between_those_of_its_metrics():
    errors, weight = np.array([0.09, 0.09, 0.02, 0.02]), np.array([1.0, 1.0, 3.0, 3.0]) / 3
    found = judge("", errors, errors / 2, weight)
    assert found.before == pytest.approx(np.average(errors, weights=weight))
    assert 0.02 < found.before < 0.09
    assert found.after == pytest.approx(found.before / 2)
    assert found.gain == pytest.approx(found.before - found.after)
    assert found.is_weighted
    assert not judge("", errors, errors / 2).is_weighted
    assert judge("", errors, errors / 2, 7 * weight).gain == pytest.approx(found.gain)


def test_the_figures_of_a_metric_are_those_of_its_verdict():
    # The median falls from 5 to 1 %, but one load gets so much worse that the mean does not.
    found = calibrated(held_out_table((0.05, 0.05, 0.05, 0.05), (0.01, 0.01, 0.01, 0.17)))
    (error,) = metric_errors(found)
    assert error.word == "no better"
    assert (error.verdict.before, error.verdict.after) == pytest.approx((0.05, 0.05))
    text = printed(report.print_fit, fit_of(found), [], False)
    row = next(line for line in text.splitlines() if line.startswith("TTFT"))
    assert row.split() == ["TTFT", "4", "5.00", "%", "5.00", "%", "no", "better"]
    assert "MAPE, held-out loads" in text


def test_a_change_has_its_standard_error_and_unit():
    errors = np.array([0.04, 0.06, 0.04, 0.06])
    found = judgements("held out", [1 + errors, 1 + errors / 2], [np.full(4, 0.05)] * 2)
    changes = [verdict.figures[-1] for verdict in found]
    assert changes[0].startswith("-2.50 +- ")
    assert changes[0].endswith(" points")
    assert changes[1].startswith(found[1].figures[1].split()[-1])
    assert changes[1].endswith(" x")


def test_details_show_the_error_of_each_held_out_load():
    found = calibrated(held_out_table((0.1, 0.1, 0.02, 0.1), (0.02, 0.01, -0.08, 0.03)))
    text = printed(report.print_fit, fit_of(found), [], False, details=True)
    row = next(line for line in text.splitlines() if line.startswith("c2.json"))
    assert row.split() == [
        "c2.json",
        "TTFT",
        "mean",
        "1,000",
        "+2.0",
        "%",
        "-8.0",
        "%",
        "+0.0",
        "%",
    ]
    heading = next(line for line in text.splitlines() if line.startswith("run "))
    assert heading.split() == ["run", "metric", "measured", "before", "held", "out", "fitted"]


def test_no_interval_reaches_below_zero():
    quantity = Quantity("prefill", "x", 1.0, 1.3, 0.8448, 1.1)
    row = report._quantities([quantity], False, "all").rows[0].cells
    assert row[1:3] == ("1.000 (0 to 3.1)", "0.8448 (0 to 2.7)")


def test_overloaded_runs_are_those_that_fail_or_fall_behind():
    assert run_of(failed=49).overload is None
    assert run_of(failed=50).overload == "50 of 1,000 requests failed"
    # 1,000 requests at 10/s and 2 s for the last outputs: 9.8/s at most
    assert run_of(served_per_s=9.8).overload is None
    assert run_of(served_per_s=8.9).overload is None
    assert run_of(served_per_s=8.7).overload == "served 8.70 of 10.0 requests/s"
    # A short load ends with its last outputs.
    short = BenchmarkRun("s", "test", Load(20, Lengths(9.0), Lengths(200.0), rate_per_s=10.0),
                         LATENCIES | {"requests_per_s": 5.0}, 20)  # fmt: skip
    assert short.overload is None
    assert run_of(served_per_s=1.0, concurrency=4).overload is None
    assert "overloaded: 50 of 1,000 requests failed" in "\n".join(run_lines([run_of(failed=50)]))


def test_overloaded_runs_are_excluded_and_named():
    good, bad = run_of("a/x.json"), run_of("b/x.json", failed=800)
    kept, (note,) = without_overloaded([good, bad])
    assert kept == [good]
    assert note.startswith("excluded: b: 800 of 1,000 requests failed: ")
    assert "--force" in note
    kept, (note,) = without_overloaded([good, bad], force=True)
    assert kept == [good, bad]
    assert note.startswith("WARNING: b: 800 of 1,000 requests failed: ")
    check_some_left([good, bad])
    check_some_left([bad], force=True)
    with pytest.raises(PinnError, match=r"x\.json: 800 of 1,000 requests failed.*--force"):
        check_some_left([bad])


def test_warnings_and_exclusions_are_printed_in_full():
    found = calibrated(held_out_table((0.1,) * 4, (0.4,) * 4), overloaded=("b/x.json",))
    warning = f"WARNING: {'long/' * 30}x.json: many requests failed"
    notes = ["first", "second", "third", warning, "excluded: y.json: overloaded"]
    text = printed(report.print_fit, fit_of(found, kept=False), notes, False)
    joined = " ".join(text.split())
    assert "many requests failed" in joined
    assert "excluded: y.json: overloaded" in joined
    assert "1 are not shown" in joined
    assert (
        "Likely causes: runs of an overloaded server (x.json), included because of --force"
        in joined
    )
    server = report.CalibratedServer(fit_of(found, kept=False), False, tuple(notes))
    assert server.refusal.endswith("to exclude the runs of an overloaded server")


def test_the_header_has_the_release_its_origin_and_the_flags_that_were_given():
    model = benchmark_target([run_of()], MODEL, GPU).deployment().model.title
    for flags, shown in (
        ({}, "vllm 0.33.0 (assumed; set it with --engine-version)"),
        (
            {"engine_version": "0.15.1", "max_num_seqs": 64, "enable_prefix_caching": False},
            "vllm 0.15.1, --max-num-seqs 64, --no-enable-prefix-caching",
        ),
    ):
        deployment = benchmark_target([run_of()], MODEL, GPU, flags).deployment()
        assert server_label(deployment) == f"{model} on H100-SXM, fp16, {shown}"
        found = replace(calibrated(held_out_table((0.1,) * 4, (0.01,) * 4)), deployment=deployment)
        text = printed(report.print_fit, fit_of(found), [], False)
        assert f"{model} on H100-SXM, fp16, {shown} fitted to 4" in " ".join(text.split())


def test_the_highest_measured_percentile_of_each_latency_is_shown():
    found = calibrated(held_out_table((0.1,) * 4, (0.01,) * 4))
    assert percentile_errors(found) == []
    rows = found.held_out.assign(figure="itl_p99_s", before=1.3, after=[0.8, 1.1, 1.1, 1.2])
    others = found.held_out.assign(figure="itl_p90_s")
    found = replace(found, percentiles=pd.concat([rows, others], ignore_index=True))
    (error,) = percentile_errors(found)
    assert (error.metric, error.verdict.count) == ("ITL p99", 4)
    assert (error.verdict.before, error.verdict.after) == pytest.approx((0.3, 0.15))
    text = printed(report.print_fit, fit_of(found), [], False)
    assert re.search(r"ITL p99 +4 +30\.00 % +15\.00 % +better", text)
    text = printed(report.print_fit, fit_of(found), [], False, details=True)
    assert re.search(r"ITL p90 +1,?000 +\+10\.0 % +\+1\.0 %", text)


def test_names_keep_what_tells_runs_apart(folders):
    runs, _ = read_benchmarks([folders])
    assert list(short_names([run.name for run in runs]).values()) == [
        "155451-llama-2-7b-tp1-codegen/stage_0", "155451-llama-2-7b-tp1-codegen/stage_1",
        "231439-llama-2-7b-tp1-general/stage_0", "231439-llama-2-7b-tp1-general/stage_1",
    ]  # fmt: skip
    assert list(short_names(["x/a/c.json#1", "x/b/c.json#1"]).values()) == ["a", "b"]
    assert short_names(["a/b/x", "b/a/x"]) == {"a/b/x": "a/b/x", "b/a/x": "b/a/x"}
    assert short_names(["x/a.txt to x/b.txt"]) == {"x/a.txt to x/b.txt": "a.txt to b.txt"}


def test_flags_from_a_file_beside_the_results_are_named(folders):
    runs, _ = read_benchmarks([folders])
    target = benchmark_target(runs, None, GPU, {"engine_version": "0.15.1"})
    assert taken_lines(runs, target, {"engine_version"}) == [
        "taken from exp-config.yaml: --max-num-batched-tokens 2048 (your flags imply 8,192)"
    ]
    same = {"max_num_batched_tokens": 2048}
    assert taken_lines(runs, benchmark_target(runs, None, GPU, same), same) == []
    other = {"max_num_batched_tokens": 8192}
    deployment = benchmark_target(runs, None, GPU, other).deployment()
    found = check_benchmarks(runs[:1], deployment, lambda _: None)
    assert found[0].startswith("exp-config.yaml states --max-num-batched-tokens 2048, ")
    with pytest.raises(
        PinnError, match=r"[^?.]\? If the flags are right, calibrate anyway with --force$"
    ):
        refuse(found)


def test_inference_perf_s_percentiles_and_assumptions_are_read(folders):
    (run, *_), _ = read_benchmarks([folders])
    assert run.figures["ttft_p50_s"] == pytest.approx(0.027)
    assert run.figures["e2e_p95_s"] == pytest.approx(2.02 * 1.7)
    assert not any(name.startswith("tpot_p") for name in run.figures)
    assert run.load.output.mean == 200
    text = " ".join(run.assumed)
    assert "every output has the length requested in config.yaml" in text
    assert "prompts repeat and share prefixes as stated in config.yaml" in text


def test_scores_name_excluded_runs_and_show_each_load_once():
    rows = [("set.json", f"{folder}/results/s0.json", "a load", failed, figure, 1.0, 1.1, 10.0)
            for folder, failed in (("x", ""), ("y", "9 of 9 requests failed"))
            for figure in ("ttft_mean_s", "tpot_mean_s")]  # fmt: skip
    columns = ["coefficients", "run", "load", "overload", "figure", "measured", "predicted",
               "error_percent"]  # fmt: skip
    loads, sums = _load_grids(pd.DataFrame(rows, columns=columns), "a server")
    assert loads.caption == "a server"
    assert [row.cells[:3] for row in loads.rows] == [
        ("x", "a load", "ttft_mean_s"), ("", "", "tpot_mean_s"),
        ("y", "a load", "ttft_mean_s"), ("", "", "tpot_mean_s"),
    ]  # fmt: skip
    assert sums.caption.endswith("excluded, overloaded: y: 9 of 9 requests failed")
    assert [row.cells[2] for row in sums.rows] == ["1", "1"]


def test_a_checkpoint_is_no_coefficient_file(tmp_path):
    error = r"is a checkpoint, expected a coefficient file: .*'pinn coefficients --json FILE'"
    with pytest.raises(PinnError, match=error):
        read_coefficient_set(tmp_path / "pinn.safetensors")
