"""An engine flag is declared once, and is an option, a key and a column from there."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from trace_runs import engine_run, lines_of

ROOT = Path(__file__).resolve().parents[2]
SERVED = ["--model", "Llama-3.1-8B", "--gpu", "H100"]
HELPED = (["coefficients"], ["breakdown"], ["simulate"], ["ingest", "vllm"], ["ingest", "steps"])


@pytest.fixture
def run(monkeypatch, checkpoint_path):
    """Run commands with the flag of ``toy_flag.py``: exit codes and outputs."""
    monkeypatch.setenv("PINN_CHECKPOINT", str(checkpoint_path))
    monkeypatch.setenv("COLUMNS", "80")

    def run_all(*commands):
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("toy_flag.py"))],
            input=json.dumps([[str(a) for a in arguments] for arguments in commands]),
            capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run_all


def test_a_toy_flag_declared_once_is_everywhere(run, tmp_path):
    traces = tmp_path / "traces.json"
    traces.write_text("".join(f"{line}\n" for line in lines_of(engine_run(20), step_sampling=1.0)))
    grid = "model=Llama-3.1-8B gpu=H100 toy_count=2,4"
    (tmp_path / "list.csv").write_text("model,gpu,toy_count\nLlama-3.1-8B,H100,7\n")
    runs = run(
        *([*command, "--help"] for command in HELPED),
        ["coefficients", *SERVED, "-tc", 5, "--json", tmp_path / "one.json"],
        ["coefficients", "--configs", tmp_path / "list.csv", "--out", tmp_path / "list.json"],
        ["export", "table", "--configs", grid, "--no-intervals", "--out", tmp_path / "grid.csv"],
        ["ingest", "vllm", traces, "-o", tmp_path / "vllm", *SERVED, "--toy-count", 8],
        ["coefficients", *SERVED, "--toy-count", 1],
        ["coefficients", "--grid", grid.replace("2,4", "1"), "--out", tmp_path / "bad.csv"],
    )
    for code, output in runs[-2:]:
        assert code == 1
        assert (
            "--toy-count must be at least 2, got 1: omit the flag to use the default, 3" in output
        )
    for code, output in runs[:-2]:
        assert code == 0, output
    for _, output in runs[: len(HELPED)]:
        assert "-tc, --toy-count <int>" in output
        assert "How many there are. [toys; default: 3]" in output
    assert json.loads((tmp_path / "one.json").read_text())["serving"]["toy_count"] == 5
    assert json.loads((tmp_path / "list.json").read_text())[0]["toy_count"] == 7
    assert pd.read_csv(tmp_path / "grid.csv", comment="#")["toy_count"].tolist() == [2, 4]
    manifest = json.loads((tmp_path / "vllm" / "manifest.json").read_text())
    assert manifest["deployment"]["serving"]["toy_count"] == 8
