"""Tests of ``pinn export`` by its command line."""

from __future__ import annotations

import json
import re

import numpy as np
import onnxruntime
import pytest
from table_files import read_table
from typer.testing import CliRunner

from pinn.cli.main import app

GRID = "model=meta-llama/Llama-3.1-8B gpu=H100,H200"


@pytest.fixture
def run(monkeypatch, checkpoint_path):
    """Return a function that runs ``pinn export`` with arguments and returns its output."""
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
    assert "1 skipped: --tensor-parallel-size 3" in text


def test_onnx_graphs(run, tmp_path):
    code, text = run("onnx", "--out", tmp_path)
    assert code == 0, text
    assert {p.name for p in tmp_path.iterdir()} == {"coefficients.onnx", "step_time.onnx"}


def test_loads_whose_files_would_have_one_name_are_refused(run, tmp_path):
    (tmp_path / "a").mkdir()
    for load in (tmp_path / "chat.yaml", tmp_path / "a" / "chat.yaml", tmp_path / "mix.yaml"):
        load.write_text("prompt_tokens: 300\noutput_tokens: 50\nconcurrency: 8\nrequests: 60\n")
    for names in (("chat.yaml", "a/chat.yaml"), ("mix.yaml",)):
        loads = [part for name in names for part in ("--workload", tmp_path / name)]
        code, text = run("blis", "--configs", GRID, *loads, "--out", tmp_path / "out")
        assert code == 1, text
        assert "is already used by another load" in text
        assert not (tmp_path / "out").exists()


def test_blis_files_of_a_load(run, tmp_path):
    load = tmp_path / "my chat.yaml"
    load.write_text("prompt_tokens: 300\noutput_tokens: 50\nconcurrency: 8\nrequests: 60\n")
    out = tmp_path / "out"
    code, text = run("blis", "--configs", GRID, "--workload", load, "--out", out)
    assert code == 0, text
    assert "(coefficients: picked by run.sh):\n  median over 2 configurations" in text
    assert re.search(r"\d+ steady loads +worst error [+-][\d.]+ % at \d+ decodes", text)
    assert re.search(r"my-chat +worst error", text)
    names = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    folders = [f"00{i}_Meta-Llama-3.1-8B_H{i}00-SXM_tp1" for i in (1, 2)]
    files = ("coefficients.yaml", "config.json", "hardware.json", "loads.csv", "pick.awk", "run.sh")
    assert names == {f"{folder}/{name}" for folder in folders for name in files} | {"summary.csv"}
    assert "\nmy-chat," in (out / folders[0] / "loads.csv").read_text()


def test_a_formula_that_is_too_far_off_is_refused_until_a_flag_allows_it(run, tmp_path):
    grid = "model=openai/gpt-oss-20b gpu=H100 max_model_len=2048 max_num_seqs=16"
    code, text = run("blis", "--configs", grid, "--worst-error", "0.001", "--out", tmp_path)
    assert code == 1
    said = " ".join(text.split())
    assert "the error of BLIS's formula would be" in said
    assert "more than --worst-error 0.001: raise --worst-error, or use the Go adapter" in said
    code, text = run("blis", "--configs", grid, "--worst-error", "0.9", "--out", tmp_path)
    assert code == 0, text


def test_inputs_of_the_graphs_give_what_they_say(run, tmp_path):
    path = tmp_path / "inputs.json"
    batch = "3 decode @ 900 + 1 prefill 200 @ 0"
    arguments = ("--configs", GRID.replace(",H200", ""), "--batch", batch)
    code, text = run("onnx", "--out", tmp_path, "--inputs", path, *arguments)
    assert code == 0, text
    found = json.loads(path.read_text())
    coefficients, step_time = (
        onnxruntime.InferenceSession(str(tmp_path / name), providers=["CPUExecutionProvider"])
        for name in ("coefficients.onnx", "step_time.onnx")
    )
    rows = {name: np.array([found[name]]) for name in ("descriptors", "rates", "features")}
    _, beta = coefficients.run(None, {name: rows[name] for name in ("descriptors", "rates")})
    _, step_us = step_time.run(None, {"features": rows["features"], "beta": beta})
    assert step_us.tolist() == [found["step_time_us"]]
    assert f"the graphs predict {found['step_time_us']} us" in text
    code, text = run("onnx", "--out", tmp_path, "--inputs", path, "--configs", GRID)
    assert code == 1
    assert "needs one configuration, but --configs gives 2" in text


def test_what_cannot_be_served_is_said(run, tmp_path):
    grid = "model=meta-llama/Llama-3.3-70B-Instruct gpu=L4"
    code, text = run("blis", "--configs", grid, "--out", tmp_path)
    assert code == 1
    assert "configuration 1: " in text


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("data_parallel_size=2", "dp > 1 needs routed experts"),
        ("pipeline_parallel_size=2", "does not simulate pipeline parallelism"),
        ("engine=sglang speculative_config=NGRAM", "one token per request and step"),
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
    assert "configuration 1 skipped" in text


def test_an_unknown_table_format_is_refused(run, tmp_path):
    code, text = run("table", "--configs", GRID, "--out", tmp_path / "table.xml")
    assert code == 1
    assert "ends in .json, .csv or .parquet" in " ".join(text.split())
