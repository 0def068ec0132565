"""Results on disk: a value, a table or a folder, found again as long as all that decides it stays.

    remembered_table(errors_of_fold, rows, split, root=folder)

calls ``errors_of_fold(rows, split)`` once and reads its table from then on, until the arguments,
the function or anything that it imports changes. What decides nothing, such as a number of
processes, goes in ``aside``.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from pinn.common import files
from pinn.common.source import Source, installed_versions, read_source
from pinn.errors import PinnError

if TYPE_CHECKING:
    import pandas as pd


# The code that decides a result, found from the imports of what computes it.
#
# Nobody lists it: a function is decided by its module and by everything of this package that the
# module imports, directly or not, by the project's data that those read, and by the versions of
# Python and of the libraries that they import. Which part of a module runs is not looked at, so
# a digest may change for nothing, but never stays the same for something.

_ROOT = Path(__file__).resolve().parents[1]
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
    data = {name for source in found.values() for name in source.data}
    versions = installed_versions()
    facts = {
        "code": {name: source.code_sha256 for name, source in found.items()},
        "data": {name: contents_digest(files.data_folder(name)) for name in data},
        "libraries": {name: versions.get(name) for name in libraries},
        "python": sys.version_info[:2],
    }
    text = files.sorted_json(facts)
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
    if before is not None and before.text_sha256 == hashlib.sha256(text).hexdigest():
        return before
    return read_source(text)


@cache
def _modules() -> dict[str, Path]:
    """Every module of the package -> its file."""
    found = {}
    for folder, _, names in os.walk(_ROOT):
        package = ".".join([_PACKAGE, *Path(folder).relative_to(_ROOT).parts])
        for file in names:
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


def _index_path() -> Path:
    """Where what was read off the source files is remembered.

    It depends on where they are, on how they are read, and on which libraries are installed.
    """
    reader = Path(__file__).with_name("source.py").read_bytes()
    about = repr((str(_ROOT), sys.version_info[:2], sorted(installed_versions().items()), reader))
    return files.cache_folder() / f"code-{hashlib.sha256(about.encode()).hexdigest()[:16]}.json"


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
    with suppress(OSError):  # the files are read again next time
        files.write_whole(path, files.json_text(rows))


# What decides a result: the function that computes it, its arguments, and all their code.

#: An argument that is longer than this in JSON stands in a recipe as its digest.
_LONGEST = 200


@dataclass(frozen=True)
class Recipe:
    """What a result is made of.

    Attributes:
        function: Qualified name of what computes it.
        arguments: JSON-ready; large ones as their digests, files as those of their contents.
        code: Digest of the code of the function and of every function and class in the arguments.
    """

    function: str
    arguments: tuple[Any, ...]
    code: str

    @property
    def key(self) -> str:
        """A name for the result; another one if anything differs that decides it."""
        return _recipe_digest([self.function, self.arguments, self.code])[:32]

    def to_json(self) -> dict[str, Any]:
        """What is written beside a result."""
        return {"key": self.key} | vars(self)


def recipe_of(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Recipe:
    """The recipe of a call.

    Args:
        function: One of a module: what an inner function sees beside its arguments would be in no
            key.
        arguments: Numbers, texts, enums, lists, mappings, sets, arrays and tables of them;
            dataclasses; anything with a method ``digest`` that gives a text; functions and
            classes, also with arguments bound by ``partial``. A ``Path`` stands for what is in the
            file or folder, whatever its name.

    Raises:
        PinnError: If the function is none of a module, or an argument is something else.
    """
    name = function.__qualname__ if isinstance(function, FunctionType) else ""
    if not name or "<" in name:
        raise PinnError(
            f"results of {function!r} cannot be remembered: give a function of a module, and as "
            "arguments all that decides what it gives"
        )
    reader = _Reader({module_of(function)})
    short = tuple(_shortened(reader.read(argument)) for argument in arguments)
    return Recipe(f"{module_of(function)}.{name}", short, code_digest(*sorted(reader.modules)))


class _Reader:
    """Makes arguments JSON-ready and collects the modules of what they are made of."""

    def __init__(self, modules: set[str]) -> None:
        self.modules = modules
        self._known: dict[int, str] = {}

    def read(self, value: Any) -> Any:
        if isinstance(value, Enum):
            return [self._name(type(value)), value.name]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Path):
            return {"contents": contents_digest(value)}
        if isinstance(value, list | tuple):
            return [self.read(item) for item in value]
        if isinstance(value, Mapping):
            return {"items": [[self.read(k), self.read(v)] for k, v in value.items()]}
        if isinstance(value, set | frozenset):
            return {"set": sorted((self.read(item) for item in value), key=files.sorted_json)}
        if isinstance(value, partial):
            return [self.read(value.func), self.read(value.args), self.read(value.keywords)]
        if isinstance(value, FunctionType | type):
            return self._name(value)
        found = _numbers(value)
        return self._object(value) if found is None else found

    def _object(self, value: Any) -> str:
        """Name of the class and digest of what an object holds, found once for each object."""
        if id(value) not in self._known:
            self._known[id(value)] = f"{self._name(type(value))} {self._digest(value)}"
        return self._known[id(value)]

    def _digest(self, value: Any) -> str:
        if callable(getattr(value, "digest", None)):
            return str(value.digest())
        if is_dataclass(value):
            compared = [f.name for f in fields(value) if f.compare]
            return _recipe_digest({name: self.read(getattr(value, name)) for name in compared})
        raise PinnError(
            f"a {type(value).__name__} cannot be part of a key: pass a dataclass, the numbers and "
            "texts in it, or give it a method 'digest'"
        )

    def _name(self, value: Any) -> str:
        if "<" in value.__qualname__:
            raise PinnError(f"{value!r} cannot be part of a key: give one of a module")
        module = module_of(value)
        if module.partition(".")[0] == __name__.partition(".")[0]:
            self.modules.add(module)
        return f"{module}.{value.__qualname__}"


def contents_digest(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files in a folder.

    Raises:
        PinnError: If there is neither.
    """
    if path.is_dir():
        return _recipe_digest(_contents(path))
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise PinnError(f"{path}: cannot be read ({error.strerror}): give a file") from error


def _contents(folder: Path) -> dict[str, str]:
    """Every file inside -> its digest."""
    inside = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): contents_digest(path) for path in inside}


def _numbers(value: Any) -> Any:
    """Digest of an array or a table, the number in a numpy scalar; None for anything else.

    Neither library is imported for it: without it there is no such value.
    """
    numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.DataFrame):
        rows = pandas.util.hash_pandas_object(value, index=True).to_numpy()
        columns = [[str(name), str(kind)] for name, kind in value.dtypes.items()]
        return {"table": [columns, hashlib.sha256(rows.tobytes()).hexdigest()]}
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        whole = hashlib.sha256(numpy.ascontiguousarray(value).tobytes()).hexdigest()
        return {"array": [str(value.dtype), list(value.shape), whole]}
    return None


def _shortened(value: Any) -> Any:
    return value if len(files.sorted_json(value)) <= _LONGEST else {"sha256": _recipe_digest(value)}


def _recipe_digest(value: Any) -> str:
    return hashlib.sha256(files.sorted_json(value).encode()).hexdigest()


#: In a remembered folder: what it was made of, and the digests of its files. Written last.
RECIPE_FILE = "recipe.json"


def remembered_value(
    function: Callable[..., Any],
    *arguments: Any,
    root: Path | None = None,
    aside: Mapping[str, Any] | None = None,
) -> Any:
    """What ``function(*arguments)`` gives, which has to be JSON-ready.

    Args:
        function: What computes it, of a module.
        arguments: All that decides the result; see :func:`pinn.common.store.recipe_of`.
        root: Where results are kept; None for :func:`pinn.common.files.cache_folder`. Where
            nothing can be written, nothing is kept.
        aside: Keyword arguments that decide nothing.

    Raises:
        PinnError: If an argument cannot be part of a key.
    """
    recipe = recipe_of(function, arguments)
    path = _place(recipe, root).with_suffix(".json")
    try:
        found = json.loads(path.read_text())
        if found["recipe"]["key"] == recipe.key:
            return found["value"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    value = function(*arguments, **(aside or {}))
    text = files.json_text({"recipe": recipe.to_json(), "value": value}, indent=1)
    with suppress(OSError):  # what cannot be kept is computed again
        files.write_whole(path, text + "\n")
    return json.loads(text)["value"]


def remembered_table(
    function: Callable[..., pd.DataFrame], *arguments: Any, root: Path | None = None
) -> pd.DataFrame:
    """The table that ``function(*arguments)`` gives, without its index.

    Arguments are those of :func:`remembered_value`.
    """
    import pandas as pd

    path = _place(recipe_of(function, arguments), root).with_suffix(".parquet")
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError):
        pass
    table = function(*arguments).reset_index(drop=True)
    with suppress(OSError):
        files.replace_atomically(path, lambda target: table.to_parquet(target, index=False))
    return table


def remembered_folder(
    function: Callable[..., object],
    *arguments: Any,
    root: Path | None = None,
    aside: Mapping[str, Any] | None = None,
) -> Path:
    """A folder that ``function(folder, *arguments)`` has filled.

    The function finds what an interrupted call left there. Files that were changed since are
    removed and it is called again. Where nothing can be written, the folder is a temporary one.
    Arguments are those of :func:`remembered_value`.
    """
    recipe = recipe_of(function, arguments)
    folder = _place(recipe, root)
    if not _is_whole(folder, recipe):
        folder = _made(folder)
        function(folder, *arguments, **(aside or {}))
        _finish(folder, recipe)
    return folder


def _place(recipe: Recipe, root: Path | None) -> Path:
    name = recipe.function.partition(".")[2] or recipe.function
    return (root or files.cache_folder()) / name / recipe.key


def _made(folder: Path) -> Path:
    try:
        files.replace_atomically(folder / "writable", lambda target: target.touch())
        (folder / "writable").unlink()
    except OSError:
        temporary = Path(tempfile.mkdtemp(prefix="pinn-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return temporary
    return folder


def _is_whole(folder: Path, recipe: Recipe) -> bool:
    """Whether the folder was finished; files that differ from what was written go."""
    try:
        found = json.loads((folder / RECIPE_FILE).read_text())
        if found["recipe"]["key"] != recipe.key:
            return False
        digests = {folder / name: digest for name, digest in found["files_sha256"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    changed = [p for p, digest in digests.items() if p.is_file() and contents_digest(p) != digest]
    for path in changed:
        path.unlink()
    return not changed and all(path.is_file() for path in digests)


def _finish(folder: Path, recipe: Recipe) -> None:
    digests = {n: digest for n, digest in _contents(folder).items() if Path(n).name != RECIPE_FILE}
    with suppress(OSError):
        found = {"recipe": recipe.to_json(), "files_sha256": digests}
        files.write_json_file(folder / RECIPE_FILE, found, indent=1)
