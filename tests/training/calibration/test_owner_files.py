"""Files of a server's owner: overloaded runs, flags in files, names, and verdicts with figures."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from assumed_priors import prior_coefficients

from pinn.calibration import report
from pinn.calibration.benchmarks import BenchmarkCalibration
from pinn.calibration.calibrate import judge, judgements
from pinn.calibration.checks import other_model, refuse
from pinn.calibration.checks_benchmarks import (
    benchmark_warnings,
    check_benchmarks,
    stated_mismatches,
)
from pinn.calibration.fit import Fit
from pinn.calibration.held_out import metric_errors, percentile_errors, warnings_of
from pinn.calibration.overloaded import check_some_left, without_overloaded
from pinn.calibration.posterior import Quantity
from pinn.calibration.prior import Prior, Start
from pinn.common.run_names import short_names
from pinn.common.screen import printed
from pinn.engines.labels import server_label
from pinn.errors import PinnError
from pinn.evaluation.coefficient_file import _fitted_runs, _load_grids
from pinn.measurements.benchmarks.benchmark_run import (
    BenchmarkRun,
    Lengths,
    Load,
    StatedServer,
)
from pinn.measurements.benchmarks.read import read_benchmarks
from pinn.measurements.benchmarks.run_table import run_lines
from pinn.measurements.benchmarks.taken_flags import taken_lines
from pinn.measurements.traces.ingestion import benchmark_target
from pinn.surrogate.coefficient_set import CoefficientSet, read_coefficient_set
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
    assert note.endswith("(--force includes the run)")
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
    assert re.search(r"ITL p99 +4 +30\.00 % +15\.00 % +better \(not fitted\)", text)
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
    sums, loads = _load_grids(scored().assign(fitted=False), "a server")
    assert loads.caption == "a server"
    of_latencies = [("  TTFT mean, ms", "25.0", "+10.0"), ("  TPOT mean, ms", "25.0", "+10.0")]
    assert [row.cells for row in loads.rows] == [
        ("x: a load", "", ""), *of_latencies,
        ("y: a load; overloaded", "", ""), *of_latencies,
        ("z: a load", "", ""), *of_latencies, ("  output tokens/s", "25.0", "+10.0"),
    ]  # fmt: skip
    listed = "TTFT mean 10.0 %, TPOT mean 10.0 %, output tokens/s 10.0 %"
    assert sums.caption == (
        f"Median APE on 2 loads: {listed}. Excluded, overloaded: y: 9 of 9 requests failed. "
        "Absolute errors, %:"
    )
    assert [row.cells[1:3] for row in sums.rows] == [
        ("TTFT mean", "2"), ("TPOT mean", "2"), ("output tokens/s", "1")
    ]  # fmt: skip


def scored():
    """Errors of three runs, of which the second overloaded its server."""
    names = ("ttft_mean_s", "tpot_mean_s", "output_tokens_per_s")
    rows = [("set.json", f"{folder}/results/s0.json", "a load", failed, figure, scale * 0.025,
             scale * 0.0275, 10.0)
            for folder, failed, figures in (
                ("x", "", names[:2]), ("y", "9 of 9 requests failed", names[:2]), ("z", "", names))
            for figure in figures
            for scale in [1000.0 if figure == names[2] else 1.0]]  # fmt: skip
    columns = ["coefficients", "run", "load", "overload", "figure", "measured", "predicted",
               "error_percent"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def test_scores_tell_fitted_loads_from_others():
    table = scored()
    table.loc[table["run"].str.startswith("x"), "measured"] = 0.05
    fitted = {"run": "moved/s0.json", "load": "a load", "figure": "ttft_mean_s", "measured": 0.05}
    calibrated_set = CoefficientSet({}, prior_coefficients(1), calibration={"figures": [fitted]})
    table = table.assign(fitted=_fitted_runs(calibrated_set, table))
    assert set(table["run"][table["fitted"]]) == {"x/results/s0.json"}
    sums, loads = _load_grids(table, "a server")
    names = [row.cells[0] for row in loads.rows if not row.cells[0].startswith(" ")]
    assert names == ["x: a load; fitted", "y: a load; overloaded", "z: a load"]
    assert [row.cells[1:4] for row in sums.rows][:3] == [
        ("fitted", "TTFT mean", "1"), ("fitted", "TPOT mean", "1"), ("other", "TTFT mean", "1")
    ]  # fmt: skip


def test_scores_say_which_metrics_a_calibration_predicts_better():
    after = scored()
    before = after.assign(coefficients="before", error_percent=20.0)
    before.loc[before["figure"] == "tpot_mean_s", "error_percent"] = -5.0
    table = pd.concat([before, after]).assign(fitted=False)
    sums, _ = _load_grids(table, "a server")
    said = "On 2 loads that it was not fitted to, the median APE of set.json is smaller for TTFT "
    assert sums.caption.startswith(f"{said}mean, output tokens/s and larger for TPOT mean than")
    sums, _ = _load_grids(table.assign(fitted=True), "a server")
    assert sums.caption.startswith("On 2 loads, the median APE of set.json is smaller")
    assert "It was fitted to these loads: evaluate it on others, too." in sums.caption


def test_chunks_of_several_tokens_are_warned_of():
    run = run_of("a/x.json")
    drafted = replace(run, figures=run.figures | {"itl_mean_s": 0.019})
    deployment = benchmark_target([run], MODEL, GPU).deployment()
    (warning,) = benchmark_warnings([run, replace(drafted, name="b/x.json")], deployment)
    assert warning.startswith("b: ITL is 1.9 times TPOT, so streamed chunks contain several tokens")
    assert "speculative decoding" in "\n".join(run_lines([drafted]))
    assert "WARNING" not in "\n".join(run_lines([run]))


def test_names_that_the_catalog_lacks_are_warned_of():
    deployment = benchmark_target([run_of()], MODEL, GPU).deployment()
    known = ("", MODEL, "llama-2-7b-hf", "/models/Llama-2-7b-hf/", "Qwen/Qwen3-8B")
    runs = [replace(run_of(), server=StatedServer(name)) for name in (*known, "chat", "chat")]
    (warning,) = benchmark_warnings(runs, deployment)
    assert warning.startswith("the file names the model chat, which is unknown")
    assert list(other_model("/models/Qwen3-8B/", deployment))


def test_an_engine_that_only_one_file_states_is_not_assumed_silently():
    deployment = benchmark_target([run_of()], MODEL, GPU).deployment()
    stated = replace(run_of("a/x.json"), server=StatedServer(engine="sglang 0.5.5"))
    (warning,) = benchmark_warnings([stated, run_of("b/x.json")], deployment)
    assert warning == "b does not state the engine: assumed to be sglang, which a states"
    other = replace(run_of("b/x.json"), server=StatedServer(engine="vllm 0.15.1"))
    assert benchmark_warnings([stated, other], deployment) == []
    found = " ".join(stated_mismatches([stated, other], deployment))
    assert "2 values of --engine (sglang, vllm): calibrate each server separately" in found


def test_a_file_with_an_alias_for_its_model_asks_for_the_model():
    run = replace(run_of("sweep.csv#1"), server=StatedServer("chat"))
    with pytest.raises(PinnError, match=r"^sweep\.csv#1 states the model 'chat' .* with --model\)"):
        benchmark_target([run], None, GPU)
    assert benchmark_target([run], MODEL, GPU).model == MODEL


def test_a_server_without_a_name_asks_for_what_is_missing():
    for model, gpu, said in (
        (None, GPU, "run.json does not state the model of the server: give --model"),
        (MODEL, None, "run.json does not state the GPU of the server: give --gpu"),
        (None, None, "does not state the model and the GPU of the server: give --model and --gpu"),
    ):
        with pytest.raises(PinnError, match=f"{said}$"):
            benchmark_target([run_of()], model, gpu)


def test_the_only_load_has_its_error_and_causes_named():
    found = calibrated(held_out_table((0.7,), (0.6,)))
    errors = found.held_out
    alone = replace(found, errors=errors, held_out=errors.iloc[:0], verdicts=[])
    server = report.CalibratedServer(fit_of(alone), False, ())
    said = " ".join(str(server).split())
    assert "fitted to 1 metric of 1 run " in said
    assert "TTFT: median APE is still 60 % over 1 fitted measurement. Likely causes: a " in said
    assert server.refusal.startswith("the error of TTFT is still large: ")


@pytest.mark.parametrize(("ratio", "is_warned"), [(1.02, False), (1.26, True), (0.8, True)])
def test_a_server_that_is_unlikely_to_be_the_stated_one_is_warned_of(ratio, is_warned):
    """A GPU that is similar to the measured one gives a good fit all the same."""
    table = held_out_table((1 / ratio - 1,) * 4, (0.0,) * 4).assign(figure="tpot_mean_s")
    found = calibrated(table)
    start = Start(None, None, None)
    prior = start.prior(found.deployment, start.coefficients(found.deployment))
    said = warnings_of(replace(found, prior=prior))
    assert len(said) == is_warned
    for text in said:
        side = f"{100 * abs(ratio - 1):.0f} % {'longer' if ratio > 1 else 'shorter'} than predicted"
        assert side in text
        assert "check --model, --gpu, --tensor-parallel-size" in text


def test_a_fall_of_the_likelihood_is_named():
    even, wide, narrow = np.ones(4), np.full(4, 0.3), np.full(4, 0.01)
    verdicts = judgements("held out", [1.2 * even, 1.15 * even], [wide, narrow])
    assert [verdict.word for verdict in verdicts] == ["better", "worse"]
    found = replace(calibrated(held_out_table((0.2,) * 4, (0.15,) * 4)), verdicts=verdicts)
    refusal = report.CalibratedServer(fit_of(found, kept=False), False, ()).refusal
    said = r"the held-out measurements are less probable than before \(likelihood ratio 0\.\d\d\)"
    assert re.match(f"{said}: measure other loads", refusal)


def test_a_checkpoint_is_no_coefficient_file(tmp_path):
    error = r"is a checkpoint, expected a coefficient file: .*'pinn coefficients --json FILE'"
    with pytest.raises(PinnError, match=error):
        read_coefficient_set(tmp_path / "pinn.safetensors")
