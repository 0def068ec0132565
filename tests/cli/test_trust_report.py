"""Intervals and distance in what ``pinn coefficients`` and ``pinn simulate`` say."""

import json
import shutil

import pytest
from calibrations import small_calibration

from pinn.surrogate.uncertainty.intervals import calibration_path, write_calibration

LLAMA = ("--model", "Llama-3.1-8B", "--gpu", "H100")


@pytest.fixture
def trusted(tmp_path, monkeypatch, checkpoint_path, kernels_folder):
    """A checkpoint with intervals and kernels beside it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "pinn.safetensors"
    path.write_bytes(checkpoint_path.read_bytes())
    write_calibration(small_calibration(path), calibration_path(path))
    shutil.copytree(kernels_folder, tmp_path / "kernels" / "all")
    return path


@pytest.fixture
def run_trusted(run, trusted, monkeypatch):
    """``run`` with that checkpoint."""
    monkeypatch.setenv("PINN_CHECKPOINT", str(trusted))
    return run


def test_coefficients_have_intervals_and_a_sentence(run_trusted, tmp_path):
    out = tmp_path / "llama.json"
    result = run_trusted("coefficients", *LLAMA, "--batch", "32 decode @ 700", "--batch",
                 "1 prefill 2048 @ 0", "--json", out)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "90 % interval" in result.stdout
    assert "32 decode @ 2000" in result.stdout
    report = json.loads(out.read_text())
    for part in ("beta", "alpha"):
        for name, entry in report[part].items():
            if entry.get("taught", True):
                assert entry["low"] <= entry["value"] <= entry["high"], name
            else:
                assert "low" not in entry
    decode, prefill = report["batches"]
    for batch in (decode, prefill):
        assert batch["step_time_low_us"] < batch["step_time_us"] < batch["step_time_high_us"]
    # TTFT's interval is the wider one, and only a prefill is compared with it.
    wide, narrow = (b["step_time_high_us"] / b["step_time_us"] for b in (prefill, decode))
    assert wide == pytest.approx(2.718281828**0.3, rel=1e-6)
    assert narrow < wide
    assert set(report["intervals"]) == {"level", "tpot", "ttft"}
    assert report["distance"]["kind"] == "16-bit dense weights"
    assert report["distance"]["place"] == "a measured GPU"
    assert report["distance"]["sentence"] in " ".join(result.stdout.split())


def test_remembered_intervals_need_no_torch(run_trusted, imported, trusted, monkeypatch):
    assert run_trusted("coefficients", *LLAMA).exit_code == 0
    monkeypatch.setenv("PINN_CHECKPOINT", str(trusted))
    assert not imported("coefficients", *LLAMA) & {"torch", "pandas", "numba"}


@pytest.mark.parametrize(
    ("model", "says"), [("Llama-3.1-8B", False), ("Qwen/Qwen3-Next-80B-A3B-Instruct", True)]
)
def test_a_model_with_layers_that_no_training_server_ran_says_so(run_trusted, model, says):
    flags = ("--gpu", "H100", "--tensor-parallel-size", 4)
    result = run_trusted("coefficients", "--model", model, *flags)
    assert result.exit_code == 0, result.output
    sentence = "were not measured on any server: expect larger errors"
    assert (sentence in " ".join(result.stdout.split())) == says


def test_inputs_of_an_unseen_giant_beyond_the_training_range_are_named(run_trusted, tmp_path):
    out = tmp_path / "giant.json"
    result = run_trusted("coefficients", "--model", "meta-llama/Llama-3.1-405B", "--gpu", "H100",
                 "--tensor-parallel-size", 8, "--json", out)  # fmt: skip
    assert result.exit_code == 0, result.output
    distance = json.loads(out.read_text())["distance"]
    farthest = next(iter(distance["outside_training_range"]))
    named = f"Features outside the training range, in standard deviations: {farthest} ("
    assert named in distance["sentence"]


def test_missing_intervals_are_said_and_nothing_else_changes(run_trusted, trusted):
    calibration_path(trusted).unlink()
    result = run_trusted("coefficients", *LLAMA)
    assert result.exit_code == 0, result.output
    assert "No intervals: the file of intervals" in " ".join(result.stdout.split())
    assert "90 % interval" not in result.stdout
    assert "The nearest measured deployment is" in result.stdout


def test_intervals_of_another_checkpoint_are_not_used(run_trusted, trusted):
    write_calibration(small_calibration(calibration_path(trusted)), calibration_path(trusted))
    result = run_trusted("coefficients", *LLAMA)
    assert "belongs to a checkpoint other than" in " ".join(result.stdout.split())


@pytest.fixture
def workload(tmp_path):
    path = tmp_path / "load.yaml"
    path.write_text("prompt_tokens: 128\noutput_tokens: 16\nconcurrency: 2\nrequests: 6\n")
    return path


def test_a_simulation_has_intervals_of_its_means(run_trusted, workload, tmp_path):
    out = tmp_path / "run.json"
    result = run_trusted("simulate", *LLAMA, "--workload", workload, "--json", out)
    assert result.exit_code == 0, result.output
    assert "90 % interval" in result.stdout
    report = json.loads(out.read_text())
    figures = report["intervals"]["figures"]
    tails = {
        f"{name}_{tail}_ms" for name in ("e2e", "ttft", "tpot", "itl") for tail in ("mean", "p99")
    }
    assert set(figures) == tails | {"step_mean_ms", "responses_per_sec", "tokens_per_sec"}
    for name, (low, high) in figures.items():
        assert low < report[name] < high
    assert report["intervals"]["distance"]["sentence"] in " ".join(result.stdout.split())
    assert report["intervals"]["slow_end_unserved"] == 0


def test_a_simulation_near_saturation_has_wider_intervals(run_trusted, workload, tmp_path):
    relative = []
    for rate in (0.5, 60):
        workload.write_text(
            f"prompt_tokens: 512\noutput_tokens: 64\nstages: [{{rate: {rate}, duration: 20}}]\n"
        )
        out = tmp_path / "run.json"
        result = run_trusted("simulate", *LLAMA, "--workload", workload, "--json", out)
        assert result.exit_code == 0, result.output
        low, high = json.loads(out.read_text())["intervals"]["figures"]["e2e_mean_ms"]
        relative.append(high / low)
    calm, busy = relative
    assert busy > 1.3 * calm


def test_a_slow_end_that_clients_do_not_wait_for_is_said(run_trusted, tmp_path):
    load = tmp_path / "load.csv"
    rows = [f"{i / 20},4096,256,30" for i in range(200)]
    load.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,timeout_s", *rows]) + "\n")
    result = run_trusted("simulate", *LLAMA, "--workload", load)
    assert result.exit_code == 0, result.output
    assert "at the upper bound of their interval" in " ".join(result.stdout.split())


def test_a_simulation_that_serves_nothing_has_no_intervals(run_trusted, workload, tmp_path):
    out = tmp_path / "run.json"
    result = run_trusted("simulate", *LLAMA, "--workload", workload, "--max-model-len", 100,
                         "--reject-long-requests", "--json", out)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "No intervals: no request was served." in result.stdout
    assert json.loads(out.read_text())["rejected_requests"] == 6


def test_outputs_of_one_token_have_no_interval_between_tokens(run_trusted, workload, tmp_path):
    workload.write_text(workload.read_text().replace("output_tokens: 16", "output_tokens: 1"))
    out = tmp_path / "run.json"
    result = run_trusted("simulate", *LLAMA, "--workload", workload, "--json", out)
    assert result.exit_code == 0, result.output
    assert "itl_mean_ms" not in json.loads(out.read_text())["intervals"]["figures"]


def test_a_simulation_of_a_giant_says_that_nothing_like_it_was_measured(run_trusted, workload):
    result = run_trusted("simulate", "--model", "meta-llama/Llama-3.1-405B", "--gpu", "B200",
                 "--tensor-parallel-size", 8, "--workload", workload)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "16-bit dense weights" in result.stdout
    assert "Features outside the training range" in result.stdout


def test_a_simulation_without_intervals_says_so(run_trusted, trusted, workload, tmp_path):
    calibration_path(trusted).unlink()
    result = run_trusted(
        "simulate", *LLAMA, "--workload", workload, "--json", tmp_path / "run.json"
    )
    assert "No intervals: the file of intervals" in result.stdout
    assert "missing" in json.loads((tmp_path / "run.json").read_text())["intervals"]
