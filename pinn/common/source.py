"""What one source file says: its code without comments, what it imports, which data it reads."""

import ast
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

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
        code_sha256: Of its syntax tree: comments, docstrings, line breaks and what only type
            checkers read do not count.
        imports: Dotted names of what it imports, also inside functions; the last part may be a
            name in a module.
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
    tree = ast.parse(text)
    for node in list(ast.walk(tree)):
        _leave_out_what_does_not_run(node)
    imports, data, texts = set[str](), set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call):
            data.update(_data_folder(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
    roots = {name.partition(".")[0] for name in imports} - {"pinn", *sys.stdlib_module_names}
    if any(name.startswith("importlib") for name in imports):
        roots |= {text for text in texts if plain(text) in installed_versions()}
    return Source(
        hashlib.sha256(text).hexdigest(),
        hashlib.sha256(ast.dump(tree).encode()).hexdigest(),
        tuple(sorted(imports)),
        tuple(sorted(data)),
        distributions_named(roots),
    )


_HOLDERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _leave_out_what_does_not_run(node: ast.AST) -> None:
    """Empty what only type checkers read, and take off a docstring."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        node.body = []
    elif isinstance(node, _HOLDERS) and ast.get_docstring(node, clean=False) is not None:
        del node.body[0]


def _data_folder(node: ast.Call) -> Iterator[str]:
    if getattr(node.func, "id", "") == _DATA_FOLDER:
        (argument,) = node.args
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            remedy = "write the name of the folder there itself"
            why = "so that results can be told to depend on it"
            raise PinnError(f"line {node.lineno} calls {ast.unparse(node)}: {remedy}, {why}")
        yield argument.value
