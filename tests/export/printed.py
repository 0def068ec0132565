"""Blocks of pages with output of commands for the shipped checkpoint, by ``make goldens``.

A block follows a comment that names ``tests/export/test_printed.py``. Its lines behind ``$`` are
typed in one folder, one after the other; their output follows each. A line of three dots
stands for lines that are not shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = tuple(
    ROOT / name
    for name in (
        "docs/blis.md",
        "export/go/README.md",
        "export/go/onnx/README.md",
    )
)
_BLOCK = re.compile(
    r"(<!-- run by tests/export/test_printed\.py[^\n]*-->\n```\n)(.*?)(^```$)", re.S | re.M
)
_DOTS = "..."


def refreshed(page: Path) -> str:
    """Return the text of a page with today's output of its commands."""
    return _BLOCK.sub(lambda match: match[1] + _typed(match[2]) + match[3], page.read_text())


def _typed(text: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("export", "checkpoints", "tests", "data"):
            (Path(folder) / name).symlink_to(ROOT / name)
        stand_in = Path(folder) / "stand-in"
        stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} -m blis_engine "$@"\n')
        stand_in.chmod(0o755)
        return "".join(_commands(text, Path(folder)))


def _commands(text: str, folder: Path) -> Iterator[str]:
    for part in re.split(r"^(?=\$ )", text, flags=re.M):
        if not part:
            continue
        command, shown = re.match(r"\$ ((?:[^\n]*\\\n)*[^\n]*\n)(.*)", part, re.S).groups()
        yield f"$ {command}{_as_shown(shown, _printed(command, folder))}"


def _as_shown(shown: str, printed: str) -> str:
    """Return the output, cut where the page has dots."""
    lines, found = shown.splitlines(keepends=True), printed.splitlines(keepends=True)
    if f"{_DOTS}\n" not in lines:
        return "".join(found)
    at = lines.index(f"{_DOTS}\n")
    after = len(lines) - at - 1
    return "".join([*found[:at], f"{_DOTS}\n", *found[len(found) - after :]])


def _printed(command: str, folder: Path) -> str:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'export'}",
        "PINN_CHECKPOINT": str(ROOT / "checkpoints" / "pinn.safetensors"),
        "BLIS": str(folder / "stand-in"),
        "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local", "COLUMNS": "120",
    }  # fmt: skip
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}{done.stdout}"
    # Progress messages of a command are not part of its result.
    kept = [line for line in done.stdout.splitlines() if not line.startswith("pinn: ")]
    return "".join(f"{line.rstrip()}\n" for line in kept)


def write_printed() -> list[Path]:
    """Write the pages anew; return those that changed."""
    changed = []
    for page in PAGES:
        text = refreshed(page)
        if text != page.read_text():
            page.write_text(text)
            changed.append(page)
    return changed
