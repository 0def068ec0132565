"""``pinn evaluate serving-runs``."""

import json

import pandas as pd
import pytest

ROW = {
    "run": "run-1",
    "stage": "0",
    "model": "meta-llama/Meta-Llama-3.1-8B",
    "gpu": "H100",
    "tensor_parallel_size": 1,
    "precision": "FP16",
    "max_num_batched_tokens": 2048,
    "workload": "roleplay",
    "rate_per_s": 6.0,
    "prompt_tokens": 750,
    "output_tokens": 251,
    "ttft_mean_ms": 20.0,
    "ttft_p90_ms": 25.0,
    "ttft_p99_ms": 40.0,
    "itl_mean_reported_ms": 9.0,
    "e2e_mean_ms": 20.0 + 250 * 8.0,
    "e2e_p90_ms": 2100.0,
    "e2e_p99_ms": 2300.0,
    "itl_mean_ms": 8.0,
}


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "runs.csv"
    pd.DataFrame([ROW, ROW | {"stage": "all", "rate_per_s": None}]).to_csv(path, index=False)
    return path


def test_a_run_is_simulated_and_scored(run, runs, tmp_path):
    out, figures = tmp_path / "scores.csv", tmp_path / "scores.json"
    result = run(
        "evaluate", "serving-runs", runs, "--steady-state", "--out", out, "--json", figures
    )
    assert result.exit_code == 0, result.output
    assert "run-1" in result.stdout
    scores = pd.read_csv(out)
    assert len(scores) == 2 * 7
    error = 100 * (scores["predicted_s"] / scores["measured_s"] - 1)
    pd.testing.assert_series_equal(scores["error_percent"], error, check_names=False)
    found = json.loads(figures.read_text())
    assert found["ranked_wrongly"] == {"network": []}
    steady = found["steady_state"][0]["network_s"]
    simulated = scores[(scores.stage == "0") & (scores.figure == "itl_mean_s")]["predicted_s"]
    assert steady == pytest.approx(simulated.iloc[0], rel=0.05)


def test_markdown_for_a_page(run, runs):
    result = run("evaluate", "serving-runs", runs, "--markdown")
    assert "| run-1 | 0 | 6 | 2,020.0 |" in result.stdout


def test_what_cannot_be_scored_is_refused(refused, runs, tmp_path):
    assert "no serving runs at" in refused("evaluate", "serving-runs", tmp_path / "none.csv")
    line = refused("evaluate", "serving-runs", runs, "--kernels", tmp_path)
    assert "carries no scalars" in line
