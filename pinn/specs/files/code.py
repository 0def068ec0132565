"""The code that decides a result, found from the imports of what computes it.

Nobody lists it: a function is decided by its module and by everything of this package that the
module imports, directly or not, by the project's data that those read, and by the versions of
Python and of the libraries that they import. Which part of a module runs is not looked at, so a
digest may change for nothing, but never stays the same for something.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from pinn.errors import PinnError
from pinn.specs import data_folder
from pinn.specs.files.libraries import installed_versions
from pinn.specs.files.source import Source, read_source, text_digest
from pinn.specs.files.write import cache_folder, replace_atomically

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = _ROOT.name
#: A file that changed later is not the code that this process runs.
_STARTED = time.time()

#: What has code: a function or class, one with arguments bound, a module, or a module's name.
Decider = Callable[..., Any] | ModuleType | str


def code_digest(*deciders: Decider) -> str:
    """SHA-256 of all the code behind functions, classes or modules; a package is all its modules.

    Some milliseconds the first time in a process. Comments, docstrings and layout do not count.

    Raises:
        PinnError: If something has no source file.
    """
    return _digest(frozenset(module_of(decider) for decider in deciders))


def module_of(decider: Decider) -> str:
    """The dotted name of the module that something is defined in."""
    if isinstance(decider, str):
        return decider
    if isinstance(decider, ModuleType):
        return decider.__name__
    if isinstance(decider, partial):
        return module_of(decider.func)
    name = decider.__module__
    specification = getattr(sys.modules.get(name), "__spec__", None)
    return specification.name if specification is not None else name


@cache
def _digest(roots: frozenset[str]) -> str:
    found = _closure(roots)
    libraries = {name for source in found.values() for name in source.libraries}
    versions = installed_versions()
    facts = {
        "code": {name: source.code_sha256 for name, source in found.items()},
        "data": _data_digests({name for source in found.values() for name in source.data}),
        "libraries": {name: versions.get(name) for name in libraries},
        "python": sys.version_info[:2],
    }
    text = json.dumps(facts, sort_keys=True)
    if any(_path(name).stat().st_mtime > _STARTED for name in found):
        # Python may hold the file as it was before: what it gives belongs to no state of the code.
        text += os.urandom(16).hex()
    return hashlib.sha256(text.encode()).hexdigest()


def _closure(roots: frozenset[str]) -> dict[str, Source]:
    """Everything of this package that modules import, and those themselves."""
    path = _index_path()
    known = _read_index(path)
    found: dict[str, Source] = {}
    todo = [*roots, *(m for root in roots for m in _modules() if m.startswith(f"{root}."))]
    while todo:
        name = todo.pop()
        if name in found or (name not in _modules() and name not in roots):
            continue
        found[name] = source = _source(name, known)
        # A module's packages run before it.
        todo += [*source.imports, name.rpartition(".")[0]]
    if any(known.get(name) != source for name, source in found.items()):
        known.update(found)
        _write_index(path, known)
    return found


def _source(name: str, known: dict[str, Source]) -> Source:
    text = _path(name).read_bytes()
    before = known.get(name)
    if before is not None and before.text_sha256 == text_digest(text):
        return before
    return read_source(text)


@cache
def _modules() -> dict[str, Path]:
    """Every module of the package -> its file."""
    found = {}
    for folder, _, files in os.walk(_ROOT):
        package = ".".join([_PACKAGE, *Path(folder).relative_to(_ROOT).parts])
        for file in files:
            if file.endswith(".py"):
                name = f"{package}.{file.removesuffix('.py')}".removesuffix(".__init__")
                found[name] = Path(folder, file)
    return found


def _path(name: str) -> Path:
    """A module's source; of other packages that of an imported one."""
    file = _modules().get(name) or getattr(sys.modules.get(name), "__file__", None)
    if file is None or Path(file).suffix != ".py":
        raise PinnError(f"the code of {name!r} is unknown: it is no module with a source file")
    return Path(file)


def _data_digests(names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in names:
        folder = data_folder.data_folder(name)  # names that sources were found to give it
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                found[f"{name}/{path.relative_to(folder)}"] = text_digest(path.read_bytes())
    return found


def _index_path() -> Path:
    """Where what was read off the source files is remembered.

    It depends on where they are, on how they are read, and on which libraries are installed.
    """
    readers = [
        Path(__file__).with_name(name).read_bytes() for name in ("source.py", "libraries.py")
    ]
    about = repr((str(_ROOT), sys.version_info[:2], sorted(installed_versions().items()), readers))
    return cache_folder() / f"code-{hashlib.sha256(about.encode()).hexdigest()[:16]}.json"


@cache
def _read_index(path: Path) -> dict[str, Source]:
    try:
        rows = json.loads(path.read_text())
        return {
            name: Source(text, code, tuple(imports), tuple(data), tuple(libraries))
            for name, (text, code, imports, data, libraries) in rows.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write_index(path: Path, sources: dict[str, Source]) -> None:
    rows = {name: astuple(source) for name, source in sources.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_atomically(path, lambda target: target.write_text(json.dumps(rows)))
    except OSError:
        return  # the files are read again next time
