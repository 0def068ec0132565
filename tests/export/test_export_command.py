"""``pinn export`` from its command line."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from table_files import read_table
from typer.testing import CliRunner

from pinn.interface.commands.main import app

ROOT = Path(__file__).resolve().parents[2]
GRID = "model=meta-llama/Llama-3.1-8B gpu=H100,H200"


@pytest.fixture
def run(monkeypatch, checkpoint_path):
    """Run ``pinn export`` with arguments; its output."""
    monkeypatch.setenv("PINN_CHECKPOINT", str(checkpoint_path))

    def export(*arguments):
        result = CliRunner().invoke(app, ["export", *map(str, arguments)])
        return result.exit_code, result.output

    return export


@pytest.mark.parametrize("ending", ["json", "csv", "parquet"])
def test_tables_of_a_grid(run, tmp_path, ending):
    path = tmp_path / f"table.{ending}"
    code, text = run("table", "--configs", GRID, "--out", path)
    assert code == 0, text
    assert "2 configurations" in text
    assert read_table(path)["gpu"].to_pylist() == ["H100-SXM", "H200-SXM"]


def test_tables_of_a_file(run, tmp_path):
    configs = tmp_path / "configs.csv"
    configs.write_text("model,gpu,tensor_parallel_size\nLlama-3.1-8B,H100,2\nLlama-3.1-8B,H100,3\n")
    code, text = run("table", "--configs", configs, "--out", tmp_path / "table.json")
    assert code == 1
    assert "does not divide" in text
    code, text = run(
        "table", "--configs", configs, "--out", tmp_path / "table.json", "--skip-invalid"
    )
    assert code == 0
    assert "1 left out: --tensor-parallel-size 3" in text


def test_onnx_graphs(run, tmp_path):
    code, text = run("onnx", "--out", tmp_path)
    assert code == 0, text
    assert {p.name for p in tmp_path.iterdir()} == {"coefficients.onnx", "step_time.onnx"}


def test_specs_of_models_and_gpus(run, tmp_path):
    path = tmp_path / "specs.json"
    code, text = run(
        "specs", "--model", "Qwen/Qwen3-30B-A3B", "--gpu", "H100", "--quantization", "fp8",
        "--out", path,
    )  # fmt: skip
    assert code == 0, text
    tree = json.loads(path.read_text())
    (model,) = tree["models"]
    assert model["name"] == "Qwen/Qwen3-30B-A3B@fp8"
    assert model["precisions"]["experts"] == "fp8"
    assert tree["gpus"][0]["name"] == "H100-SXM"


def test_loads_whose_files_would_have_one_name_are_refused(run, tmp_path):
    (tmp_path / "a").mkdir()
    for load in (tmp_path / "chat.yaml", tmp_path / "a" / "chat.yaml", tmp_path / "mix.yaml"):
        load.write_text("prompt_tokens: 300\noutput_tokens: 50\nconcurrency: 8\nrequests: 60\n")
    for names in (("chat.yaml", "a/chat.yaml"), ("mix.yaml",)):
        loads = [part for name in names for part in ("--workload", tmp_path / name)]
        code, text = run("blis", "--configs", GRID, *loads, "--out", tmp_path / "out")
        assert code == 1
        assert "is taken by another load" in text
        assert not (tmp_path / "out").exists()


def test_blis_files_of_a_load(run, tmp_path):
    load = tmp_path / "chat.yaml"
    load.write_text("prompt_tokens: 300\noutput_tokens: 50\nconcurrency: 8\nrequests: 60\n")
    out = tmp_path / "out"
    code, text = run("blis", "--configs", GRID, "--workload", load, "--out", out)
    assert code == 0, text
    assert "a vector per load: median over 2 configurations" in text
    assert "one for all loads" not in text
    names = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    folders = [f"00{i}_Meta-Llama-3.1-8B_H{i}00-SXM_tp1" for i in (1, 2)]
    files = ("coefficients.yaml", "config.json", "hardware.json", "run.sh")
    assert names == {f"{folder}/{name}" for folder in folders for name in files} | {"summary.csv"}


def test_folders_of_the_page_run_as_it_says(run, tmp_path, monkeypatch):
    """The commands of docs/blis.md, on a load of seconds, with a program that shows its flags."""
    page = (ROOT / "docs" / "blis.md").read_text()
    export, *scripts = re.findall(r"^\$ (.*(?:export blis|run\.sh).*)$", page, re.M)
    words = shlex.split(export)
    monkeypatch.chdir(tmp_path)
    load = tmp_path / "codegen.yaml"
    load.write_text("prompt_tokens: 300\noutput_tokens: 50\nconcurrency: 8\nrequests: 60\n")
    code, text = run(*words[2:], "--workload", load)
    assert code == 0, text
    assert re.search(r"error +[\d.]+ %  mean step +\d+ us  arrival +\d+ us  zeroed: ", text)
    assert len(scripts) == 2
    for script in scripts:
        shown = subprocess.run(
            ["sh", "-c", script], env=os.environ | {"BLIS": "echo"}, capture_output=True, text=True,
        )  # fmt: skip
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.startswith("run --model")
        assert shown.stdout.endswith("--workload-spec load.yaml\n")


def test_what_cannot_be_served_is_said(run, tmp_path):
    grid = "model=meta-llama/Llama-3.3-70B-Instruct gpu=L4"
    code, text = run("blis", "--configs", grid, "--out", tmp_path)
    assert code == 1
    assert "configuration 1: " in text


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("data_parallel_size=2", "dp > 1 needs routed experts"),
        ("pipeline_parallel_size=2", "no pipeline stages"),
        ("engine=sglang speculative_config=NGRAM", "one token of a request in a step"),
    ],
)
def test_what_blis_refuses_is_refused_or_left_out(run, tmp_path, flag, reason):
    grid = f"model=meta-llama/Llama-3.1-8B gpu=H100 {flag}"
    code, text = run("blis", "--configs", grid, "--out", tmp_path)
    assert code == 1
    assert reason in " ".join(text.split())
    assert "export " in text
    code, text = run("blis", "--configs", grid, "--out", tmp_path, "--skip-invalid")
    assert code == 0
    assert "configuration 1 left out" in text


def test_an_unknown_table_format_is_refused(run, tmp_path):
    code, text = run("table", "--configs", GRID, "--out", tmp_path / "table.xml")
    assert code == 1
    assert "json, csv, parquet" in text
