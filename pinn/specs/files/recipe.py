"""What decides a result: the function that computes it, its arguments, and all their code."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from pinn.errors import PinnError
from pinn.specs.files.code import code_digest, module_of

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
        text = json.dumps([self.function, self.arguments, self.code], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

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
            return {"set": sorted((self.read(item) for item in value), key=_text)}
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
            return _digest({name: self.read(getattr(value, name)) for name in compared})
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
        inside = sorted(p for p in path.rglob("*") if p.is_file())
        return _digest({str(p.relative_to(path)): contents_digest(p) for p in inside})
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise PinnError(f"{path}: cannot be read ({error.strerror}): give a file") from error


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
    return value if len(_text(value)) <= _LONGEST else {"sha256": _digest(value)}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _digest(value: Any) -> str:
    return hashlib.sha256(_text(value).encode()).hexdigest()
