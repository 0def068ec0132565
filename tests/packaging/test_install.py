"""README's first command: the installed program runs, and equals the checkout."""

import shutil
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path

import pytest
from pages import command_on

ROOT = Path(__file__).parents[2]
READ = ("LICENSE", "README.md", "constraints.txt", "pyproject.toml")


def test_the_command_of_readme_installs_the_checkout(tmp_path):
    """The test runs offline: dependencies are found in the tests' environment."""
    pytest.importorskip("setuptools", reason="setuptools is not installed: installing needs it")
    shutil.copytree(ROOT / "pinn", tmp_path / "pinn", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "data", tmp_path / "data")
    for name in READ:
        shutil.copy(ROOT / name, tmp_path)
    words, _ = command_on("README.md", "pip install")
    make, *rest = " ".join(words).split(" && ")
    assert rest == [". .venv/bin/activate", "pip install -c constraints.txt -e ."]
    # The new environment's pip is the only one. It builds with the packages of the tests, and the
    # installed program finds them after its own.
    around = {
        "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0", "PIP_QUIET": "1",
    }  # fmt: skip
    bash = partial(
        subprocess.run, cwd=tmp_path, env=around, capture_output=True, text=True, check=False
    )
    done = bash(["bash", "-c", make.replace("python3.11", sys.executable, 1)])
    assert done.returncode == 0, done.stderr
    (packages,) = (tmp_path / ".venv").glob("lib/*/site-packages")
    (packages / "zz.pth").write_text(sysconfig.get_path("purelib"))
    parts = [
        rest[0], "command -v pip", f"export PYTHONPATH={sysconfig.get_path('purelib')}", rest[1],
        "unset PYTHONPATH", "cd /", "python -c 'import pinn; print(pinn.__file__)'",
        "python -c 'import pinn; print(pinn.__version__)'", "pinn --version",
    ]  # fmt: skip
    done = bash(["bash", "-c", " && ".join(parts)])
    assert done.returncode == 0, done.stderr
    pip, place, shown, own = done.stdout.split(maxsplit=3)
    assert Path(pip).is_relative_to(tmp_path)
    assert Path(place).is_relative_to(tmp_path)
    assert shown in own
