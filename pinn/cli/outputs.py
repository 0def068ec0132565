"""Checks of a command's output paths before it runs, and writing of results as JSON."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pinn.common.files import check_folder, json_text, write_json_file
from pinn.errors import PinnError

if TYPE_CHECKING:
    import pandas as pd

#: Exit status if results were written but some input files or lines could not be read.
PARTLY_READ = 3

# Checks of output paths: the folder exists, and no input is overwritten.

#: Options that name a file or folder to write.
OUTPUTS = frozenset({"--json", "--plot", "--requests", "--timeline", "--manifest", "--out"})
#: Suffixes of the file formats of tables and pictures.
TABLES = (".csv", ".json", ".parquet")
PICTURES = (".png", ".svg", ".pdf")
#: Endings of the names of files that commands read from an input folder.
_READ_IN_FOLDERS = ("config.json", "generation_config.json", "hf_quant_config.json")


def check_outputs(given: Sequence[tuple[str, object]]) -> None:
    """Raise an error for outputs whose folder does not exist or that would overwrite an input.

    Args:
        given: Pairs of an option's (or argument's) name and its value; values that are not paths
            are ignored.

    Raises:
        PinnError: If an output is invalid; the message includes the path and the remedy.
    """
    places = [(option, path) for option, value in given for path in _paths(value)]
    for option, path in places:
        if option not in OUTPUTS or (option == "--json" and is_standard_output(path)):
            continue
        if is_standard_output(path):
            raise PinnError(
                f"{option} is -, but only --json can write to standard output: give a file"
            )
        if path.is_dir() and option != "--out":  # some commands write a folder to --out
            raise PinnError(f"{option} {path} is a folder, expected a file: give a file name")
        check_folder(path, option)
        for other, source in places:
            if (other, source) != (option, path) and _is_same(path, source, other in OUTPUTS):
                fault = f"{option} {path} would overwrite the file given with {other}"
                raise PinnError(f"{fault}: give another file")


def is_standard_output(path: Path) -> bool:
    """Return whether a path is ``-``, which means standard output."""
    return str(path) == "-"


def _paths(value: object) -> Iterator[Path]:
    for each in value if isinstance(value, list | tuple) else (value,):
        if isinstance(each, str | Path) and "\0" not in str(each):
            yield Path(os.path.expanduser(str(each).partition("#")[0]))


def _is_same(output: Path, other: Path, is_output: bool) -> bool:
    """Return whether an output is the same file as another path, or a file in an input folder."""
    try:
        if is_output or not (output.exists() and other.exists()):
            return is_output and output.resolve() == other.resolve()
        files = [other, *(other / name for name in _READ_IN_FOLDERS)] if other.is_dir() else [other]
        return any(file.exists() and file.samefile(output) for file in files)
    except (OSError, RuntimeError):  # an overlong name or a self-referencing link is not a file
        return False


# Result of a command as JSON, in a file or on standard output.

_STANDARD_OUTPUT: ContextVar[TextIO | None] = ContextVar("standard output", default=None)


@contextmanager
def only_json() -> Iterator[None]:
    """Suppress text output inside the ``with`` body, so that standard output contains only JSON."""
    before = _STANDARD_OUTPUT.set(sys.stdout)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        _STANDARD_OUTPUT.reset(before)


def write_csv(table: pd.DataFrame, path: Path | None, **written: object) -> None:
    """Write a table as CSV to the path of ``--out``; if there is no path, nothing is written."""
    from pinn.common.tables import write_frame

    if path is not None:
        write_frame(table, path, **written)


def write_json(document: object, path: Path | None) -> None:
    """Write a document to the path of ``--json``: atomically to a file, or to standard output.

    Args:
        document: JSON-compatible value.
        path: File to write, or ``-`` for standard output; None to write nothing.
    """
    if path is None:
        return
    if is_standard_output(path):
        (_STANDARD_OUTPUT.get() or sys.stdout).write(json_text(document, indent=2) + "\n")
    else:
        write_json_file(path, document)
