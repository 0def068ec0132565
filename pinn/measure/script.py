"""The measuring program as one file, which needs the standard library and the engine alone."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from importlib import resources

from pinn.measure.program import MODULES

_OWN = "pinn."


def measuring_script(
    arguments: Sequence[str] = (), design: Sequence[tuple[str, float]] = ()
) -> str:
    """The program's text.

    Args:
        arguments: That come before those of its command line.
        design: Batches in order, each with its worth; without any it has an order of its own.
    """
    folder = resources.files("pinn.measure.program")
    parts = [_bare((folder / f"{name}.py").read_text(encoding="utf-8")) for name in MODULES]
    text = "\n\n".join([_HEAD, *parts])
    text = text.replace("ARGUMENTS: list[str] = []", f"ARGUMENTS: list[str] = {list(arguments)!r}")
    rows = "".join(f"\n    ({name!r}, {worth:.4g})," for name, worth in design)
    empty = "DESIGN: list[tuple[str, float]] = []"
    return text.replace(empty, f"{empty[:-1]}{rows}\n]" if rows else empty)


_HEAD = '''"""Measure whole steps of an LLM serving engine on this machine; written by pinn measure.

It needs the engine and Python's standard library alone: python FILE --help.
"""

from __future__ import annotations'''


def _bare(source: str) -> str:
    """A module without what a part of one file cannot have: imports of its own package."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            (_OWN, "__future__")
        ):
            assert node.end_lineno is not None
            for number in range(node.lineno - 1, node.end_lineno):
                lines[number] = ""
    while lines and not lines[-1].strip():
        lines.pop()
    return "\n".join(lines)
