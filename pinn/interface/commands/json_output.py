"""A command's answer as JSON: in a file, or alone on standard output."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO

from pinn.interface.commands.output_paths import is_standard_output
from pinn.specs.files.write import replace_atomically

_STANDARD_OUTPUT: ContextVar[TextIO | None] = ContextVar("standard output", default=None)


@contextmanager
def only_json() -> Iterator[None]:
    """Swallow what a command prints for people, so that JSON stands alone on standard output."""
    before = _STANDARD_OUTPUT.set(sys.stdout)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        _STANDARD_OUTPUT.reset(before)


def write_json(document: Any, path: Path | None) -> None:
    """Write a document where ``--json`` says: a file that appears whole, standard output for ``-``.

    Args:
        document: Of what JSON has.
        path: None writes nothing.
    """
    if path is None:
        return
    text = json.dumps(document, indent=2) + "\n"
    if is_standard_output(path):
        (_STANDARD_OUTPUT.get() or sys.stdout).write(text)
    else:
        replace_atomically(path, lambda target: target.write_text(text))
