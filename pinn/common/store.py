"""Cache of results on disk: values, tables and folders, valid while all that decides them stays.

    remembered_table(errors_of_fold, rows, split, root=folder)

calls ``errors_of_fold(rows, split)`` once and reads its table from then on, until the arguments,
the function or anything that it imports changes. Arguments that do not change the result, such as a
number of processes, go in ``aside``.
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
    """Key of a cached result: everything that decides it.

    Attributes:
        function: Qualified name of the function that computes the result.
        digest: SHA-256 of the function, its arguments, and the code of both.
    """

    function: str
    digest: str

    def place(self, root: Path | None) -> Path:
        """Return the result's path without a suffix; a root of None is the user's cache."""
        name = self.function.partition(".")[2] or self.function
        return (root or files.cache_folder()) / name / self.digest


def call_key(function: Callable[..., object], arguments: tuple[object, ...]) -> CallKey:
    """Return the key of a call.

    Args:
        function: Function of a module. An inner function is refused: the variables that it sees
            would be in no key.
        arguments: Numbers, texts, enums, lists, mappings, sets, arrays and tables of them;
            dataclasses; objects with a method ``digest`` that returns a text; functions and
            classes, also with arguments bound by ``partial``. A ``Path`` stands for the content of
            the file or folder, whatever its name.

    Raises:
        PinnError: If the function is not one of a module, or an argument is something else.
    """
    inner = function.__qualname__ if isinstance(function, FunctionType) else ""
    if not inner or "<" in inner:
        raise PinnError(
            f"results of {function!r} cannot be cached: give a function of a module, and as "
            "arguments all that decides what it gives"
        )
    reader = _Reader({module_of(function)})
    name, described = f"{module_of(function)}.{inner}", reader.read(arguments)
    digest = _sha256([name, described, code_digest(*sorted(reader.modules))])[:32]
    return CallKey(name, digest)


class _Reader:
    """Reader of arguments that makes them JSON-ready and collects the modules behind them."""

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
        """Return the class of an object and a digest of its content, computed once per object."""
        if id(value) in self._known:
            return self._known[id(value)]
        if callable(digest := getattr(value, "digest", None)):
            found = digest()
        elif is_dataclass(value):
            compared = [f.name for f in fields(value) if f.compare]
            found = _sha256({name: self.read(getattr(value, name)) for name in compared})
        else:
            raise PinnError(
                f"a {type(value).__name__} cannot be part of a key: pass a dataclass, the numbers "
                "and texts in it, or give it a method 'digest'"
            )
        self._known[id(value)] = f"{self._name(type(value))} {found}"
        return self._known[id(value)]

    def _name(self, value: FunctionType | type) -> str:
        if "<" in value.__qualname__:
            raise PinnError(f"{value!r} cannot be part of a key: give one of a module")
        module = module_of(value)
        if module.partition(".")[0] == __name__.partition(".")[0]:
            self.modules.add(module)
        return f"{module}.{value.__qualname__}"


def _numbers(value: object) -> Json:
    """Return the digest of an array or a table, or the number in a numpy scalar; else None.

    Neither library is imported: where it is not loaded, there is no such value.
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


#: File in a cached folder with its function and its files, written last.
MARK_FILE = "made.json"


def remembered_value(
    function: Callable[..., _T],
    *arguments: object,
    root: Path | None = None,
    aside: Mapping[str, object] | None = None,
) -> _T:
    """Return ``function(*arguments)``, JSON-ready, as read back from JSON; cached.

    Args:
        function: Function of a module.
        arguments: All that decides the result; see :func:`pinn.common.store.call_key`.
        root: Folder of cached results; None for :func:`pinn.common.files.cache_folder`. Where the
            folder cannot be written to, nothing is kept.
        aside: Keyword arguments that do not change the result.

    Raises:
        PinnError: If an argument cannot be part of a key.
    """

    def compute() -> _T:
        return json.loads(files.json_text(function(*arguments, **(aside or {}))))

    key = call_key(function, arguments)
    return _remembered(_value_file(key, root), _read_value, compute, partial(_write_value, key))


def find_value(key: CallKey, root: Path | None = None) -> object:
    """Return the cached value of a call; None where no usable one is cached."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return _read_value(_value_file(key, root))
    return None


def keep_value(key: CallKey, value: object, root: Path | None = None) -> None:
    """Cache the value of a call, JSON-ready, that was computed elsewhere, such as by a worker."""
    with suppress(OSError):  # a result that cannot be kept is recomputed
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
    """Return the table ``function(*arguments)`` without its index; cached.

    Arguments are those of :func:`remembered_value`.
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
    """Read a result; compute and keep it where no usable one is cached."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return read(path)
    value = compute()
    with suppress(OSError):  # a result that cannot be kept is recomputed
        files.replace_atomically(path, lambda target: write(target, value))
    return value


def remembered_folder(
    function: Callable[..., object],
    *arguments: object,
    root: Path | None = None,
    aside: Mapping[str, object] | None = None,
) -> Path:
    """Return a folder that ``function(folder, *arguments)`` has filled; cached.

    The function finds the files of an interrupted call, and is called again where a file is
    missing. Where the cache cannot be written to, the folder is a temporary one. Arguments are
    those of :func:`remembered_value`.
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
    """Return the folder, made where it is missing; a temporary one where it is not writable."""
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
