"""Hash (digest) of the code, data and libraries that determine a function's result.

The digest covers the function's module and every module of this package that it imports, directly
or indirectly, also inside functions. It also covers the folders of ``data`` that these modules
name, and the versions of Python and of all installed libraries. The digest changes whenever the
result could change. It may also change when the result stays the same, for example after an edit to
a comment.
"""

import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import ModuleType

from pinn.common import files
from pinn.errors import PinnError

_ROOT = Path(__file__).resolve().parents[2]
#: Start time of the process. Source files changed after it differ from the running code.
_STARTED = time.time()

_TYPES_ONLY = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)+", re.MULTILINE)
_IMPORT = re.compile(
    r"^\s*(?:from (pinn[\w.]*) import (\([^)]*\)|.*)|import (pinn[\w.]*))", re.MULTILINE
)
_DATA = re.compile(r'\bdata_folder\("([^"]+)"\)')

#: Code to hash: a function or class (also with bound arguments), a module, or a module's name.
Decider = Callable[..., object] | ModuleType | str


def code_digest(*deciders: Decider) -> str:
    """Return the SHA-256 of all code, data and libraries that functions or classes depend on.

    Raises:
        PinnError: If a function, class or module has no source file.
    """
    return _digest(frozenset(module_of(decider) for decider in deciders))


def module_of(decider: Decider) -> str:
    """Return the dotted name of the module that defines a function or class."""
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
    for name in roots:
        if _source_file(name) is None:
            raise PinnError(
                f"the code of {name!r} is unknown, because no source file defines {name!r}: move "
                "the definition into a module"
            )
    sources = _closure(roots)
    data = {name for text in sources.values() for name in _DATA.findall(text)}
    facts = {
        "code": sources,
        "data": {name: files.contents_digest(files.data_folder(name)) for name in data},
        "libraries": _installed(),
        "python": sys.version_info[:2],
    }
    text = files.sorted_json(facts)
    if any(path.stat().st_mtime > _STARTED for path in map(_source_file, sources) if path):
        # The running code may be older than the file. A random digest matches no cached result.
        text += os.urandom(16).hex()
    return hashlib.sha256(text.encode()).hexdigest()


def _closure(roots: frozenset[str]) -> dict[str, str]:
    """Return the source code of ``roots`` and of all package modules that they import."""
    found: dict[str, str] = {}
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name not in found and (source := _source(name)) is not None:
            found[name], imports = source
            # Importing a module also runs the __init__.py of the package that contains it.
            todo += [*imports, name.rpartition(".")[0]]
    return found


@cache
def _source(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Return a module's source and the names that it imports, or None if it has no source file."""
    path = _source_file(name)
    if path is None:
        return None
    text = _TYPES_ONLY.sub("", path.read_text(encoding="utf-8"))
    return text, tuple(_imports(text))


def _imports(text: str) -> Iterator[str]:
    """Yield the dotted names within this package that a module's source code imports."""
    for package, names, module in _IMPORT.findall(text):
        yield module or package
        yield from (f"{package}.{name}" for name in re.findall(r"\w+", names))


@cache
def _source_file(name: str) -> Path | None:
    """Return a module's source file, or None if the module belongs to another package."""
    place = _ROOT.joinpath(*name.split("."))
    loaded = getattr(sys.modules.get(name), "__file__", None) or ""
    places = (place.with_name(f"{place.name}.py"), place / "__init__.py", Path(loaded))
    return next((path for path in places if path.suffix == ".py" and path.is_file()), None)


@cache
def _installed() -> list[str]:
    """Return the names of the metadata folders of all installed distributions.

    A name such as ``numpy-2.3.1.dist-info`` includes the distribution's version.
    """
    places = [place or "." for place in sys.path if os.path.isdir(place or ".")]
    return sorted({n for place in places for n in os.listdir(place) if n.endswith(".dist-info")})
