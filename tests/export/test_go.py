"""The Go modules: formatted, vetted, tested; equal to Python with other coefficients too."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from assumed_priors import beta_prior, prior_coefficients
from calibration_rows import BASE, deployment, intervals
from go_command import GO, go, needs_go
from goldens import STEPS, TABLE, write_goldens
from pages import run_script
from table_files import read_table

from pinn.calibration.calibrate import BetaSettings, calibrate_to, chosen
from pinn.surrogate.coefficient_set import CoefficientSet, deployment_facts, write_coefficient_set
from pinn.surrogate.coefficients import Coefficients

#: Modules that build offline.
BUILT = ("pinn", "blis", "../../tests/export/blis_engine/simulator")
#: Modules that are formatted; onnx's binding is not available offline.
FORMATTED = (*BUILT, "onnx")


pytestmark = needs_go


@pytest.mark.parametrize("module", FORMATTED)
def test_is_formatted(module):
    gofmt = Path(go(module, "env", "GOROOT").strip()) / "bin" / "gofmt"
    command = str(gofmt) if gofmt.is_file() else "gofmt"
    found = subprocess.run([command, "-l", "."], cwd=GO / module, capture_output=True, text=True)
    assert found.stdout + found.stderr == ""


def test_one_command_moves_the_modules_to_where_the_repository_lies(tmp_path):
    for name in ("Makefile", "export"):
        subprocess.run(["cp", "-r", GO.parents[1] / name, tmp_path / name], check=True)
    made = ["make", "--silent", "go-module", "AT=host.example/team/pinn"]
    subprocess.run(made, cwd=tmp_path, check=True)
    moved = tmp_path / "export" / "go"
    old = go("pinn", "list", "-m").strip().removesuffix("/pinn")
    left = subprocess.run(["grep", "-rl", old, moved], capture_output=True, text=True, check=False)
    assert left.stdout == ""
    assert "module host.example/team/pinn/export/go/blis\n" in (moved / "blis/go.mod").read_text()
    gofmt = Path(go("pinn", "env", "GOROOT").strip()) / "bin" / "gofmt"
    command = [str(gofmt) if gofmt.is_file() else "gofmt", "-l", moved]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.parametrize("module", BUILT)
def test_vets_and_passes_its_tests(module):
    go(module, "vet", "./...")
    assert "ok" in go(module, "test", "./...")


def test_the_core_needs_the_standard_library_only():
    packages = go("pinn", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}")
    assert packages.split() == [go("pinn", "list", "-m").strip()]
    assert "require" not in (GO / "pinn" / "go.mod").read_text()
    assert go("pinn", "list", "-f", "{{.CgoFiles}}").split() == ["[]"]


def calibrated_file(folder: Path) -> Path:
    """Write coefficients calibrated to steps that take 1.3 times their prior."""
    base = prior_coefficients(1)
    rows = intervals(1.3 * BASE, noise=0.01)
    found = calibrate_to(chosen(rows, BetaSettings("windows", 50)), beta_prior(base.beta[0]))
    assert not np.array_equal(found.beta, base.beta[0])
    calibrated = Coefficients(found.beta[None], 1.7 * base.alpha)
    path = folder / "calibrated.json"
    write_coefficient_set(CoefficientSet(deployment_facts(deployment()), calibrated), path)
    return path


def test_another_network_and_a_calibrated_server_give_the_same_in_go(checkpoint_path, tmp_path):
    file = calibrated_file(tmp_path)
    write_goldens(checkpoint_path, tmp_path, [file])
    rows = read_table(tmp_path / TABLE).to_pylist()
    calibrated = [row["source"] == file.name for row in rows]
    assert sum(calibrated) == 1
    cases = map(json.loads, gzip.decompress((tmp_path / STEPS).read_bytes()).splitlines())
    assert sum(calibrated[case["row"]] for case in cases) > 50
    found = go(
        "pinn", "test", "-count=1", "-v", "-run", "Python", ".",
        PINN_GOLDENS=str(tmp_path),
    )  # fmt: skip
    assert found.count("--- PASS") >= 4


#: Stand-ins with BLIS's method sets, for code of the page that the engine's model does not need.
KERNEL_MODEL = """package kernelmodel

import "github.com/inference-sim/inference-sim/sim"

type Model struct{}

func (*Model) StepTime([]*sim.Request) int64    { return 1 }
func (*Model) QueueingTime(*sim.Request) int64  { return 0 }
func (*Model) OutputTokenProcessingTime() int64 { return 0 }
func (*Model) PostDecodeFixedOverhead() int64   { return 0 }
"""
USED = """package main

import "github.com/inference-sim/inference-sim/sim"

func main() { var _ sim.LatencyModel = surrogate{} }
"""
CALLER = """package latency

import "github.com/inference-sim/inference-sim/sim"

func NewLatencyModel(backend string, size int) (sim.LatencyModel, error) { return nil, nil }

func caller() (sim.LatencyModel, error) {
	model, err := NewLatencyModel("trained-physics", 1)
LINE	return model, err
}
"""


def test_code_of_the_pages_is_what_runs(tmp_path):
    """README's excerpt is part of the example; its main and its fork compile with the adapter."""
    text = (GO / "README.md").read_text()
    _, excerpt, main, file, line = re.findall(r"```go\n(.*?)```", text, re.S)
    assert excerpt in (GO / "blis" / "example_test.go").read_text()
    simulator = "tests/export/blis_engine/simulator"
    for name in ("export/go/pinn", "export/go/blis", simulator):
        shutil.copytree(GO.parents[1] / name, tmp_path / name)
    written = {
        f"{simulator}/sim/kernelmodel/model.go": KERNEL_MODEL,
        "export/go/blis/own/surrogate.go": main,
        "export/go/blis/own/main.go": USED,
        "export/go/blis/latency/pinn.go": file,
        "export/go/blis/latency/new.go": CALLER.replace("LINE", line.replace("latency.", "")),
    }
    for name, code in written.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code)
    go(tmp_path / "export/go/blis", "vet", "./own", "./latency")
    gofmt = Path(go("pinn", "env", "GOROOT").strip()) / "bin" / "gofmt"
    pages = [tmp_path / name for name in written if "new.go" not in name]
    assert subprocess.run([gofmt, "-l", *pages], capture_output=True, text=True).stdout == ""


@needs_go
def test_the_benchmark_of_the_page_says_how_long_a_step_takes():
    small = ("--layouts", "1", "--seconds", "0.001", "--runs", "20")
    found = json.loads(run_script("export.md", "bench_export.py", *small).splitlines()[-1])
    assert found["onnx_us"] > 0
    for layouts in found["go_ns"].values():
        (times,) = layouts
        assert times["ratio"] == pytest.approx(times["adapter-ns"] / times["formula-ns"], rel=0.01)
