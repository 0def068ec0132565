"""On-disk cache of values, tables and folders, valid while code and arguments are unchanged.

    remembered_table(errors_of_fold, rows, split, root=folder)

calls ``errors_of_fold(rows, split)`` once and later reads its table from disk, until the arguments,
the function or anything that it imports changes. Arguments that do not affect the result, such as a
number of processes, are passed in ``aside``.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from pinn.common import Json, files
from pinn.common.code import code_digest, module_of
from pinn.errors import PinnError

if TYPE_CHECKING:
    import pandas as pd

_T = TypeVar("_T")


@dataclass(frozen=True)
class CallKey:
    """Key of a cached result: the function and digests of everything that determines the result.

    Attributes:
        function: Qualified name of the function that computes the result.
        digest: SHA-256 of the function, the arguments, and the code behind them.
    """

    function: str
    digest: str

    def place(self, root: Path | None) -> Path:
        """Return the result's path without suffix, in ``root`` or the user's cache folder."""
        name = self.function.partition(".")[2] or self.function
        return (root or files.cache_folder()) / name / self.digest


def call_key(function: Callable[..., object], arguments: tuple[object, ...]) -> CallKey:
    """Return the key under which the result of a call is cached.

    Args:
        function: Module-level function. Nested functions are rejected, because the variables that
            they close over would not be part of the key.
        arguments: Numbers, strings, enums, lists, mappings, sets, arrays and tables of them;
            dataclasses; objects with a method ``digest`` that returns a string; functions and
            classes, also with arguments bound by ``partial``. A ``Path`` contributes the content of
            its file or folder, not its name.

    Raises:
        PinnError: If the function is not defined at module level, or an argument has another type.
    """
    inner = function.__qualname__ if isinstance(function, FunctionType) else ""
    if not inner or "<" in inner:
        raise PinnError(
            f"results of {function!r} cannot be cached: give a function of a module, and all "
            f"values that determine its result as arguments"
        )
    reader = _Reader({module_of(function)})
    name, described = f"{module_of(function)}.{inner}", reader.read(arguments)
    digest = _sha256([name, described, code_digest(*sorted(reader.modules))])[:32]
    return CallKey(name, digest)


class _Reader:
    """Converter of a call's arguments to JSON values; collects the modules that define them."""

    def __init__(self, modules: set[str]) -> None:
        self.modules = modules
        self._known: dict[int, str] = {}

    def read(self, value: object) -> Json:
        if isinstance(value, Enum):
            return [self._name(type(value)), value.name]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Path):
            return {"contents": files.contents_digest(value)}
        if isinstance(value, list | tuple):
            return [self.read(item) for item in value]
        if isinstance(value, Mapping):
            return {"items": [[self.read(k), self.read(v)] for k, v in value.items()]}
        if isinstance(value, set | frozenset):
            return {"set": sorted(map(self.read, value), key=files.sorted_json)}
        if isinstance(value, partial):
            return [self.read(part) for part in (value.func, value.args, value.keywords)]
        if isinstance(value, FunctionType | type):
            return self._name(value)
        found = _numbers(value)
        return self._object(value) if found is None else found

    def _object(self, value: object) -> str:
        """Return an object's class and the hash of its content; each object is hashed once."""
        if id(value) in self._known:
            return self._known[id(value)]
        if callable(digest := getattr(value, "digest", None)):
            found = digest()
        elif is_dataclass(value):
            compared = [f.name for f in fields(value) if f.compare]
            found = _sha256({name: self.read(getattr(value, name)) for name in compared})
        else:
            raise PinnError(
                f"a value of type {type(value).__name__} cannot be part of a cache key: pass a "
                "dataclass, numbers or texts, or define a method 'digest' of the type"
            )
        self._known[id(value)] = f"{self._name(type(value))} {found}"
        return self._known[id(value)]

    def _name(self, value: FunctionType | type) -> str:
        if "<" in value.__qualname__:
            raise PinnError(
                f"{value!r} cannot be part of a cache key: give a function or class of a module"
            )
        module = module_of(value)
        if module.partition(".")[0] == __name__.partition(".")[0]:
            self.modules.add(module)
        return f"{module}.{value.__qualname__}"


def _numbers(value: object) -> Json:
    """Return the hash of an array or table, or a NumPy scalar's value; otherwise None.

    If NumPy or pandas has not been imported, no value can have its types, so neither is imported
    here.
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


def _sha256(value: Json) -> str:
    return hashlib.sha256(files.sorted_json(value).encode()).hexdigest()


#: File in a cached folder that lists the function that made the folder, and its files; it is
#: written last.
MARK_FILE = "made.json"


def remembered_value(
    function: Callable[..., _T],
    *arguments: object,
    root: Path | None = None,
    aside: Mapping[str, object] | None = None,
) -> _T:
    """Return the result of ``function(*arguments)`` from the cache, as read back from JSON.

    Args:
        function: Module-level function.
        arguments: All values that determine the result; see :func:`pinn.common.store.call_key`.
        root: Folder of cached results; None for :func:`pinn.common.files.cache_folder`. If the
            folder is not writable, the result is not cached.
        aside: Keyword arguments that do not affect the result.

    Raises:
        PinnError: If an argument has a type that cannot be part of a key.
    """

    def compute() -> _T:
        return json.loads(files.json_text(function(*arguments, **(aside or {}))))

    key = call_key(function, arguments)
    return _remembered(_value_file(key, root), _read_value, compute, partial(_write_value, key))


def find_value(key: CallKey, root: Path | None = None) -> object:
    """Return the cached value of a call; None if no usable value is cached."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return _read_value(_value_file(key, root))
    return None


def keep_value(key: CallKey, value: object, root: Path | None = None) -> None:
    """Cache the JSON result of a call that was computed elsewhere, such as in a worker process."""
    with suppress(OSError):  # without a cached result, the next call recomputes it
        files.replace_atomically(
            _value_file(key, root), lambda target: _write_value(key, target, value)
        )


def _value_file(key: CallKey, root: Path | None) -> Path:
    return key.place(root).with_suffix(".json")


def _read_value(path: Path) -> Any:
    return json.loads(path.read_text())["value"]


def _write_value(key: CallKey, path: Path, value: object) -> None:
    path.write_text(files.json_text({"function": key.function, "value": value}, indent=1))


def remembered_table(
    function: Callable[..., pd.DataFrame], *arguments: object, root: Path | None = None
) -> pd.DataFrame:
    """Return the cached table of ``function(*arguments)``, without its index.

    The arguments are described in :func:`remembered_value`.
    """
    import pandas as pd

    path = call_key(function, arguments).place(root).with_suffix(".parquet")

    def write(path: Path, table: pd.DataFrame) -> None:
        table.to_parquet(path, index=False)

    def compute() -> pd.DataFrame:
        return function(*arguments).reset_index(drop=True)

    return _remembered(path, pd.read_parquet, compute, write)


def _remembered(
    path: Path,
    read: Callable[[Path], _T],
    compute: Callable[[], _T],
    write: Callable[[Path, _T], None],
) -> _T:
    """Read the result at ``path``; if it is missing or corrupt, compute and cache it."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return read(path)
    value = compute()
    with suppress(OSError):  # without a cached result, the next call recomputes it
        files.replace_atomically(path, lambda target: write(target, value))
    return value


def remembered_folder(
    function: Callable[..., object],
    *arguments: object,
    root: Path | None = None,
    aside: Mapping[str, object] | None = None,
) -> Path:
    """Return the cached folder that ``function(folder, *arguments)`` has filled.

    If a file is missing from the folder, the function is called again and can reuse the files that
    an interrupted call wrote. If the cache is not writable, a temporary folder is used. The
    arguments are described in :func:`remembered_value`.
    """
    key = call_key(function, arguments)
    folder = key.place(root)
    if not _is_whole(folder):
        folder = _made(folder)
        function(folder, *arguments, **(aside or {}))
        inside = sorted(path for path in folder.rglob("*") if path.is_file())
        names = [str(p.relative_to(folder)) for p in inside if p.name != MARK_FILE]
        with suppress(OSError):
            about = {"function": key.function, "files": names}
            files.write_json_file(folder / MARK_FILE, about, indent=1)
    return folder


def _made(folder: Path) -> Path:
    """Create the folder if it is missing; return a temporary folder if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.write_whole(folder / "writable", "")
        (folder / "writable").unlink()
    except OSError:
        temporary = Path(tempfile.mkdtemp(prefix="pinn-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return temporary
    return folder


def _is_whole(folder: Path) -> bool:
    try:
        names = json.loads((folder / MARK_FILE).read_text())["files"]
        return all((folder / name).is_file() for name in names)
    except (OSError, ValueError, KeyError, TypeError):
        return False
