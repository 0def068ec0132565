"""The wheel has all files that the program reads; ``make wheel-test`` installs and tries it."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Parts of the repository that the program reads when it is installed.
READ = ("checkpoints/**/*", "conf/**/*", "data/*/*")


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """Return the names of the files in a copy's wheel, with data files relative to their place."""
    pytest.importorskip("setuptools", reason="setuptools is not installed: a wheel needs it")
    folder = tmp_path_factory.mktemp("wheel")
    leave = shutil.ignore_patterns("__pycache__")
    for name in ("pinn", "data", "conf", "checkpoints"):
        shutil.copytree(ROOT / name, folder / name, ignore=leave)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "."]
    subprocess.run([*build, "--quiet", "--wheel-dir", "out"], cwd=folder, check=True)
    (wheel,) = (folder / "out").glob("*.whl")
    assert wheel.name.startswith("pinn_serving-")
    names = zipfile.ZipFile(wheel).namelist()
    return {name.split(".data/data/share/pinn/")[-1] for name in names}


def test_every_module_and_template_is_in_it(members):
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "pinn").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted - members == set()


def test_every_file_that_the_program_reads_is_in_it(members):
    found = {path.relative_to(ROOT) for pattern in READ for path in ROOT.glob(pattern)}
    wanted = {str(path).removeprefix("data/") for path in found if (ROOT / path).is_file()}
    assert len(wanted) > 100
    assert wanted - members == set()


def test_nothing_of_the_tests_is_in_it(members):
    assert not [name for name in members if name.startswith(("tests/", "scripts/", "docs/"))]
