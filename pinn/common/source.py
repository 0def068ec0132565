"""What one source file says: its code without comments, what it imports, which data it reads."""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pinn.errors import PinnError

# Installed distributions: which one a name means, and their versions, found in a millisecond.

_ENDING = ".dist-info"


@cache
def installed_versions() -> Mapping[str, str]:
    """Distribution, in lower case with underscores -> version.

    Read off the names of their folders: asking ``importlib.metadata`` for each takes longer than
    the rest of a key.
    """
    found: dict[str, str] = {}
    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for name in sorted(names):
            if name.endswith(_ENDING):
                distribution, _, version = name.removesuffix(_ENDING).partition("-")
                found.setdefault(plain(distribution), version)
    return found


@cache
def _importable() -> Mapping[str, list[str]]:
    """What one imports -> the distributions that have it; asked only where a file has changed."""
    from importlib.metadata import packages_distributions  # slow to import

    return packages_distributions()


def distributions_named(names: Iterable[str]) -> tuple[str, ...]:
    """The installed distributions among names of distributions or of what one imports.

    >>> distributions_named(["torch", "yaml", "no such thing", "aiconfigurator-core"])
    ('aiconfigurator_core', 'pyyaml', 'torch')
    """
    installed, found = installed_versions(), set()
    for name in names:
        if plain(name) in installed:
            found.add(plain(name))
        elif name.isidentifier():
            found |= {plain(owner) for owner in _importable().get(name, ())}
    return tuple(sorted(found))


def plain(name: str) -> str:
    """A distribution's name as those of its folder are written."""
    return name.lower().replace("-", "_").replace(".", "_")


#: The function that finds the project's own data.
_DATA_FOLDER = "data_folder"


@dataclass(frozen=True)
class Source:
    """One source file.

    Attributes:
        text_sha256: Of the file as it is.
        code_sha256: Of its syntax tree: comments, docstrings and line breaks do not count.
        imports: Dotted names of what it imports, also inside functions; the last part may be a
            name in a module. What only type checkers import is left out.
        data: Folders of the project's data that it asks for.
        libraries: Installed distributions that it imports, or names to ``importlib``.
    """

    text_sha256: str
    code_sha256: str
    imports: tuple[str, ...]
    data: tuple[str, ...]
    libraries: tuple[str, ...]


def read_source(text: bytes) -> Source:
    r"""Read a source file.

    >>> source = read_source(b'import numpy\n\ndef f():\n    from pinn.units import GIBI')
    >>> source.imports, source.libraries
    (('numpy', 'pinn.units', 'pinn.units.GIBI'), ('numpy',))
    """
    found = _Reading()
    found.read(ast.parse(text), runs=True)
    roots = {name.partition(".")[0] for name in found.imports} - {"pinn", *sys.stdlib_module_names}
    if any(name.startswith("importlib") for name in found.imports):
        roots |= {text for text in found.texts if plain(text) in installed_versions()}
    return Source(
        hashlib.sha256(text).hexdigest(),
        hashlib.sha256("\0".join(found.code).encode()).hexdigest(),
        tuple(sorted(found.imports)),
        tuple(sorted(found.data)),
        distributions_named(roots),
    )


_HOLDERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class _Reading:
    """What one walk over a syntax tree has found.

    Attributes:
        code: The tree in words, without docstrings.
        imports: As in ``Source``; like the next, a set.
        data: As in ``Source``.
        texts: Constants that are texts.
    """

    def __init__(self) -> None:
        self.code: list[str] = []
        self.imports: set[str] = set()
        self.data: set[str] = set()
        self.texts: set[str] = set()

    def read(self, node: ast.AST, runs: bool) -> None:
        """Read a node and all below; what does not run is there for type checkers alone."""
        self.code.append(type(node).__name__)
        if isinstance(node, ast.Import | ast.ImportFrom):
            self.imports.update(_imported(node) if runs else ())
        elif isinstance(node, ast.Call):
            self.data.update(_data_folder(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.texts.add(node.value)
        for name in node._fields:
            value, seen = getattr(node, name, None), runs
            if name == "body" and isinstance(node, ast.If):
                seen = runs and "TYPE_CHECKING" not in ast.unparse(node.test)
            elif name == "body" and isinstance(node, _HOLDERS):
                value = node.body[_starts_with_text(node.body) :]
            self._read_field(value, seen)
        self.code.append(")")

    def _read_field(self, value: Any, runs: bool) -> None:
        if isinstance(value, ast.AST):
            self.read(value, runs)
        elif isinstance(value, list):
            self.code.append("[")
            for item in value:
                self._read_field(item, runs)
            self.code.append("]")
        else:
            self.code.append(repr(value))


def _starts_with_text(body: list[ast.stmt]) -> bool:
    """Whether the first statement is a text alone: a docstring."""
    constant = body[0].value if body and isinstance(body[0], ast.Expr) else None
    return isinstance(constant, ast.Constant) and isinstance(constant.value, str)


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _data_folder(node: ast.Call) -> Iterator[str]:
    if getattr(node.func, "id", "") == _DATA_FOLDER:
        (argument,) = node.args
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            raise PinnError(
                f"line {node.lineno} calls {ast.unparse(node)}: write the name of the folder "
                "there itself, so that results can be told to depend on it"
            )
        yield argument.value
