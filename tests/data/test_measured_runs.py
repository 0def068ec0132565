"""Measured runs from a CSV and from what inference-perf leaves behind."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest
from serving_run_row import run_row

from pinn.errors import PinnError
from pinn.measurements.runs.measured_runs import (
    FIGURES,
    is_load_report,
    read_load_report,
    read_measured_runs,
)

ROW = run_row(model="meta-llama/Meta-Llama-3.1-8B")


def write_csv(folder: Path, *changes) -> Path:
    path = folder / "runs.csv"
    pd.DataFrame([ROW | change for change in changes]).to_csv(path, index=False)
    return path


def test_a_run_with_its_stages_and_what_was_sent(tmp_path):
    path = write_csv(
        tmp_path, {}, {"stage": "1", "rate_per_s": 10.0}, {"stage": "all", "rate_per_s": None}
    )
    (run,), report = read_measured_runs(path)
    assert report.accepted == 3
    assert run.stages == ("0", "1")
    assert run.rates_per_s == (5, 10)
    assert set(run.measured["all"]) == set(FIGURES)
    assert run.measured["0"]["itl_mean_s"] == pytest.approx(0.008)
    assert len(run.workload) == 600 * 5 + 600 * 10
    assert (run.workload.output_tokens == 247).all()
    assert 1.02 * 566 <= run.workload.prompt_tokens.mean() <= 1.05 * 566
    assert run.deployment.serving.max_num_seqs == 128


def test_a_folder_stands_for_its_only_csv(tmp_path):
    write_csv(tmp_path, {})
    assert len(read_measured_runs(tmp_path)[0]) == 1
    (tmp_path / "other.csv").write_text("a\n")
    with pytest.raises(PinnError, match="has 2 CSV files"):
        read_measured_runs(tmp_path)


def write_report(folder: Path, failed: int = 0) -> Path:
    (folder / "results").mkdir(parents=True)
    (folder / "exp-config.yaml").write_text(
        "model: meta-llama/Meta-Llama-3.1-8B\ntensor_parallelism: 1\nmax_model_len: 4096\n"
        "max_num_batched_tokens: 2048\nmax_num_seqs: 64\napp: inference-perf\n"
    )
    (folder / "results" / "config.yaml").write_text(
        "load: {type: constant, interval: 1.0, stages: [{rate: 2.0, duration: 10}]}\n"
        "data: {type: shared_prefix, shared_prefix: {question_len: 90, output_len: 11}}\n"
    )
    latency = {
        "request_latency": {"mean": 1.2, "p90": 1.5, "p99": 2.0},
        "time_to_first_token": {"mean": 0.2, "p90": 0.3, "p99": 0.4},
        "time_per_output_token": {"mean": 9.9},
    }
    report = {
        "successes": {"count": 20 - failed, "latency": latency},
        "failures": {"count": failed},
    }
    (folder / "results" / "stage_0_lifecycle_metrics.json").write_text(json.dumps(report))
    return folder


def test_a_report_of_inference_perf(tmp_path):
    run = read_load_report(write_report(tmp_path / "run-7", failed=5), "H100")
    assert (run.name, run.stages) == ("run-7", ("0",))
    assert run.measured["all"] == run.measured["0"]
    assert run.measured["0"]["itl_mean_s"] == pytest.approx(0.1)
    assert run.failed_share["0"] == 0.25
    assert run.deployment.serving.max_num_seqs == 64
    assert len(run.workload) == 20


def test_what_is_no_report_is_refused(tmp_path):
    assert not is_load_report(tmp_path)
    with pytest.raises(PinnError, match=r"lacks exp-config\.yaml"):
        read_load_report(tmp_path, "H100")
    folder = write_report(tmp_path / "run")
    (folder / "results" / "stage_0_lifecycle_metrics.json").write_text("{}")
    with pytest.raises(PinnError, match="successes: this key is missing"):
        read_load_report(folder, "H100")


def test_the_public_runs():
    if "PINN_SERVING_RUNS" not in os.environ or "PINN_INFERENCE_PERF" not in os.environ:
        pytest.skip("set PINN_SERVING_RUNS and PINN_INFERENCE_PERF to the measured runs")
    path = Path(os.environ["PINN_SERVING_RUNS"])
    runs, _ = read_measured_runs(path, path.parents[1] / "model_configs")
    assert len(runs) == 15
    by_name = {run.name: run for run in runs}
    for folder in Path(os.environ["PINN_INFERENCE_PERF"]).iterdir():
        report = read_load_report(folder, "H100", path.parents[1] / "model_configs")
        if "reasoning" in folder.name:
            assert report.failed_share["all"] == pytest.approx(4068 / 4800)
            continue
        same = by_name[folder.name]
        assert report.deployment == same.deployment
        assert len(report.workload) == len(same.workload)
        for stage in same.stages:
            assert report.measured[stage] == pytest.approx(same.measured[stage], rel=1e-3)
