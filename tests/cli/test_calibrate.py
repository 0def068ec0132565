"""``pinn calibrate`` and what reads its file, from traces on disk."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from one_screen import assert_one_screen
from served_traces import served_traces
from table_files import read_table
from typer.testing import CliRunner

from pinn.cli.main import app
from pinn.export.table import beta_columns
from pinn.surrogate.coefficient_set import read_coefficient_set


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    return served_traces(tmp_path_factory.mktemp("served"), 150)


@pytest.fixture(scope="module")
def calibrated(traces, checkpoint_path, tmp_path_factory):
    path = tmp_path_factory.mktemp("calibrated") / "set.json"
    arguments = ["calibrate", "--observations", str(traces), "--intervals", "both", "--details",
                 "-o", str(path)]  # fmt: skip
    result = CliRunner().invoke(app, arguments, env={"PINN_CHECKPOINT": str(checkpoint_path)})
    assert result.exit_code == 0, result.output
    return path, result.stdout


def test_the_report_tells_before_and_after(calibrated):
    path, text = calibrated
    for words in ("before", "calibrated", "last 20 %", "each token of context", "+- standard error",
                  "completion.constant", "later time"):  # fmt: skip
        assert words in text
    found = read_coefficient_set(path)
    errors = {
        (e["part"], e["kind"], e["coefficients"]): e["median"] for e in found.calibration["errors"]
    }
    last = ("last 20 %", "singles")
    assert errors[(*last, "calibrated")] < 0.01 < errors[(*last, "before")]
    assert found.base is not None
    assert found.calibration["sources"][0]["path"] == "traces.json"


def test_coefficients_and_simulate_take_the_file(run, calibrated, tmp_path):
    path, _ = calibrated
    again = tmp_path / "again.json"
    result = run("coefficients", "--coefficients", path, "--json", again)
    assert result.exit_code == 0, result.output
    assert "Calibrated to traces.json" in result.stdout
    found, copied = read_coefficient_set(path), read_coefficient_set(again)
    assert np.array_equal(found.beta, copied.beta)
    assert np.array_equal(found.alpha, copied.alpha)
    workload = tmp_path / "load.yaml"
    workload.write_text("prompt_tokens: 200\noutput_tokens: 20\nconcurrency: 4\nrequests: 20\n")
    figures = []
    for coefficients in (path, again):
        out = tmp_path / "run.json"
        result = run("simulate", "--workload", workload, "--coefficients", coefficients,
                     "--json", out)  # fmt: skip
        assert result.exit_code == 0, result.output
        figures.append(json.loads(out.read_text()))
    sources = [found.pop("coefficients") for found in figures]
    assert [Path(source["path"]) for source in sources] == [path, again]
    assert figures[0] == figures[1]
    assert figures[0]["itl_mean_ms"] == pytest.approx(4.6, rel=0.15)


def test_a_table_is_written_from_the_file_alone(run, calibrated, tmp_path):
    path, _ = calibrated
    out = tmp_path / "table.json"
    result = run("export", "table", "--coefficients", path, "--out", out)
    assert result.exit_code == 0, result.output
    (row,) = read_table(out).to_pylist()
    assert row["source"] == "set.json"
    assert (row["precision"], row["max_num_seqs"]) == ("fp8", 128)
    found = read_coefficient_set(path)
    assert [row[name] for name in beta_columns()] == found.beta.tolist()


def test_a_calibration_goes_on_and_what_is_no_better_is_not_written(
    run, calibrated, traces, tmp_path
):
    path, _ = calibrated
    out = tmp_path / "next.json"
    result = run("calibrate", "--observations", traces, "--append", path, "-o", out, "--budget", 5)
    assert result.exit_code == 1, result.output
    assert_one_screen(result.stdout)
    assert re.search(r"drift in errors\n.* [+-]\d+\.\d *\n", result.stdout)
    assert "nothing written" in result.stdout
    assert not out.exists()


def test_a_posterior_is_carried_on(run, calibrated, tmp_path):
    path, _ = calibrated
    out = tmp_path / "again.json"
    result = run("coefficients", "--coefficients", path, "--json", out)
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    for entry in report["batches"]:
        assert entry["step_time_low_us"] < entry["step_time_us"] < entry["step_time_high_us"]
    completion = report["alpha"]["completion.constant"]
    assert completion["low"] <= completion["value"] <= completion["high"]
    assert completion["high"] - completion["low"] < 0.01 * completion["value"]
    found, copied = read_coefficient_set(path), read_coefficient_set(out)
    assert copied.covariance == pytest.approx(found.covariance, rel=1e-6)


def test_a_file_may_be_the_base_of_a_calibration(run, traces, tmp_path):
    base, out = tmp_path / "base.json", tmp_path / "next.json"
    result = run("coefficients", "--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100",
                 "--quantization", "fp8", "--json", base)  # fmt: skip
    assert result.exit_code == 0, result.output
    result = run("calibrate", "--observations", traces, "--base", base, "-o", out,
                 "--budget", 20, "--seed", 3)  # fmt: skip
    assert result.exit_code == 0, result.output
    found = read_coefficient_set(out)
    assert np.array_equal(found.base.beta[0], read_coefficient_set(base).beta)
    assert found.calibration["used"] == 20


def test_the_wrong_deployment_and_folder_are_refused(refused, calibrated, tmp_path):
    path, _ = calibrated
    assert "another deployment" in refused("coefficients", "--coefficients", path, "--gpu", "A100")
    assert "omit --configs and --grid" in refused(
        "coefficients", "--coefficients", path, "--grid", "gpu=H100", "--out", tmp_path / "t.csv"
    )
    assert "no trace tables" in refused("calibrate", "--observations", tmp_path)
