"""Evaluation of an engine's own rules, with stand-ins for the GPU and the configuration.

A function is compiled without importing its file. Its names resolve to stand-ins, to other
functions and classes of the release, or to symbols that are only compared. Any other name raises an
error, so that no rule is guessed. Torch, CUDA and the engine itself are never imported.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from importlib.util import resolve_name as absolute_name
from pkgutil import resolve_name
from typing import Any

from engine_reading.wheel import EngineSource, compiled
from pinn.errors import PinnError

#: Standard library modules that an engine's files may import.
_PYTHON = ("abc", "copy", "dataclasses", "enum", "functools", "math", "typing", "itertools")
#: Name prefixes of class methods that rules call.
_ASKED = (
    "_supports", "supports_", "is_supported_config", "activation_format", "get_clses",
    "is_monolithic", "is_gated", "without_mul",
)  # fmt: skip


@dataclass(unsafe_hash=True)
class Symbol:
    """Stand-in for a value that an engine's rules only compare, such as a torch dtype."""

    name: str

    def __repr__(self) -> str:
        return self.name

    def __getattr__(self, name: str) -> Symbol:
        if name.startswith("__"):
            raise AttributeError(name)
        return Symbol(f"{self.name}.{name}")


class Given:
    """Stand-in for an engine's configuration: given values, and False for all other switches."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("use_", "is_", "has_", "enable_", "may_", "require_")):
            return False
        raise AttributeError(f"the stand-in of the engine's configuration has no {name!r}")


class World:
    """Source files of an engine's release in which the engine's own rules are evaluated.

    Args:
        source: Files of the release.
        stand_ins: Objects that a rule uses instead of the engine's own, by name, in any file.
    """

    def __init__(self, source: EngineSource, stand_ins: Mapping[str, Any]) -> None:
        self.source, self.stand_ins = source, stand_ins
        #: Global names of each file, compiled once.
        self.space = cache(partial(Space, self))

    def ask(self, place: str, *given: Any, **named: Any) -> Any:
        """Call a function or method of the release with stand-ins, and return its result.

        Raises:
            ValueError: If the rule itself raises an error.
            PinnError: If the rule needs a name without a stand-in.
        """
        try:
            return self.rule(place)(*given, **named)
        except Exception as error:
            if type(error) in (ValueError, PinnError):
                raise
            raise self.source.unread(place, f"a call of the function raises {error!r}") from error

    def rule(self, place: str) -> Any:
        """Return a function of the release after compiling it, without calling it."""
        return compiled(self.source.node(place), self.space(place.partition(": ")[0]))


class Space(dict[str, Any]):
    """Global names of one source file; each is compiled when an engine's rule first uses it."""

    def __init__(self, world: World, path: str) -> None:
        super().__init__()
        self._world, self._path = world, path
        self._imports = _imports(world.source.tree(path), path)

    def __getattr__(self, name: str) -> Any:
        """Return a global name of the file, for rules that import the file as a module."""
        return self[name]

    def __missing__(self, name: str) -> Any:
        if name in self._world.stand_ins:
            return self._world.stand_ins[name]
        if hasattr(builtins, name):
            raise KeyError(name)
        self[name] = found = self._found(name)
        return found

    def _found(self, name: str) -> Any:
        source, place = self._world.source, f"{self._path}: {name}"
        if source.has(place):
            return self._compiled(source.node(place), place)
        if name in self._imports:
            return self._imported(self._imports[name])
        if name.startswith("k") and name[1:2].isupper():
            return Symbol(name)
        raise source.unread(place, f"the name {name!r} has no stand-in")

    def _compiled(self, node: ast.AST, place: str) -> Any:
        if isinstance(node, ast.FunctionDef):
            return compiled(node, self)
        if isinstance(node, ast.ClassDef):
            return self._class(node)
        value, name = self._world.source.value(place), place.partition(": ")[2]
        if isinstance(value, ast.Call) and name.startswith("k"):
            return Symbol(name)
        return self._evaluated(value)

    def _evaluated(self, node: ast.expr) -> Any:
        return eval(compile(ast.Expression(node), self._path, "eval"), self)

    def _class(self, node: ast.ClassDef) -> Any:
        """Compile a class of the release.

        An enumeration is compiled completely; any other class has only the methods that rules call.
        """
        bases = [base for base in node.bases if isinstance(self._evaluated(base), type)]
        whole = any(issubclass(self._evaluated(base), Enum) for base in bases)
        body = [
            each
            for each in node.body
            if whole or (isinstance(each, ast.FunctionDef) and each.name.startswith(_ASKED))
        ]
        return compiled(ast.ClassDef(node.name, bases, [], body or [ast.Pass()], []), self)

    def _imported(self, name: str) -> Any:
        if name.split(".")[0] in _PYTHON:
            return resolve_name(name)
        if whole := self._file(name):
            return self._world.space(whole)
        module, _, attribute = name.rpartition(".")
        path = self._file(module)
        if path:
            return self._world.space(path)[attribute]
        return Symbol(name)

    def _file(self, module: str) -> str | None:
        """Return the path of a module's file in the release; None if there is none."""
        stem = module.replace(".", "/")
        paths = f"{stem}.py", f"{stem}/__init__.py"
        return next(filter(self._world.source.exists, paths), None)


def _imports(tree: ast.Module, path: str) -> dict[str, str]:
    """Return the ``module`` or ``module.name`` that each imported name of a file refers to."""
    package = path.rpartition("/")[0].replace("/", ".")
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                top = each.name.split(".")[0]
                found |= {each.asname: each.name} if each.asname else {top: top}
        elif isinstance(node, ast.ImportFrom):
            module = absolute_name("." * node.level + (node.module or ""), package)
            found |= {each.asname or each.name: f"{module}.{each.name}" for each in node.names}
    return found
