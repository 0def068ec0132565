"""A copy of the package with its data and a cache, for results of edited code."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pinn

ROOT = Path(pinn.__file__).parents[1]


class PackageCopy:
    """A copy of the program in a folder, and a process that gives results of it.

    Attributes:
        folder: Holds ``pinn``, ``data``, and the ``cache`` that all results share.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("pinn", "data"):
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        self._edits = 0
        environment = {"PYTHONPATH": str(folder), "PINN_CACHE": str(folder / "cache")}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("remembered_results.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
            text=True,
        )

    def result(self, name: str) -> object:
        """A result of ``remembered_results.py``, of the package as it is now."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        found = json.loads(self._process.stdout.readline())
        assert found is not None, f"{name} failed: see its error above"
        return found

    def double(self, path: str, constant: str) -> None:
        """Write twice the value of a constant into a source file, or into a JSON file."""
        text = (self.folder / path).read_text()
        if path.endswith(".json"):
            values = json.loads(text)
            self.write(path, json.dumps(values | {constant: 2 * values[constant]}))
            return
        old = re.compile(rf"^{constant} = (.*)$", flags=re.MULTILINE)
        text, count = old.subn(rf"{constant} = 2 * (\1)", text)
        assert count == 1, f"{path} has {count} constants {constant}"
        self.write(path, text)

    def restore(self, path: str) -> None:
        """Write a file as it is in the project."""
        self.write(path, (ROOT / path).read_text())

    def write(self, path: str, text: str) -> None:
        """Write a file of the copy.

        Python takes a file for unchanged that changes twice in a second and keeps its length, so
        each edit is dated a second later than the one before.
        """
        (self.folder / path).write_text(text)
        self._edits += 1
        os.utime(self.folder / path, (self._edits, self._edits))

    def cached_files(self) -> set[Path]:
        """Return the cache files of all results so far."""
        return set((self.folder / "cache").glob("*/*"))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
