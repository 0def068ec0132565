"""Asks an engine's own rules what they choose, with stand-ins for the GPU and its configuration.

A function is compiled from its file alone. Names it asks for are stand-ins, other functions and
classes of the release, or symbols that are only compared; a name that is none of these is an error,
so that no rule is guessed. Torch, CUDA and the engine itself are never imported.
"""

from __future__ import annotations

import ast
import builtins
import importlib
from collections.abc import Mapping
from enum import Enum
from typing import Any

from engine_reading.wheel import EngineSource, compiled
from pinn.errors import PinnError

#: Modules of Python itself that files import.
_PYTHON = ("abc", "dataclasses", "enum", "functools", "math", "typing", "itertools")
#: Methods of a class that rules ask for.
_ASKED = (
    "_supports", "supports_", "is_supported_config", "activation_format", "get_clses",
    "is_monolithic", "is_gated", "without_mul",
)  # fmt: skip


class Symbol:
    """Something that is only compared, such as a number format or a torch type."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Symbol:
        if name.startswith("__"):
            raise AttributeError(name)
        return Symbol(f"{self.name}.{name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name


class Given:
    """A configuration: what is given, and False for every switch that is not."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("use_", "is_", "has_", "enable_", "may_", "require_")):
            return False
        raise AttributeError(f"a stand-in has no {name}")


class RefusedError(Exception):
    """A rule raises an error of its own."""


class World:
    """The files of a release as rules see them.

    Args:
        source: The release.
        stand_ins: Name to what rules find instead, whatever file they are in.
    """

    def __init__(self, source: EngineSource, stand_ins: Mapping[str, Any]) -> None:
        self.source, self.stand_ins = source, stand_ins
        self._spaces: dict[str, _Space] = {}

    def ask(self, path: str, name: str, *given: Any, **named: Any) -> Any:
        """What a function, or ``Class.method``, of a file answers.

        Raises:
            RefusedError: If the rule raises an error of its own.
            PinnError: If it asks for something that nobody stands in for.
        """
        try:
            return self.rule(path, name)(*given, **named)
        except PinnError:
            raise
        except Exception as error:
            if type(error) is ValueError:
                raise RefusedError from error
            raise self.source.unread(f"{path}: {name}", f"it cannot be asked: {error!r}") from error

    def rule(self, path: str, name: str) -> Any:
        """The function itself."""
        return compiled(self.source.node(path, name), self.space(path))

    def space(self, path: str) -> _Space:
        """The names of a file."""
        if path not in self._spaces:
            self._spaces[path] = _Space(self, path)
        return self._spaces[path]

    def module(self, name: str) -> str | None:
        """The path of a module; None where the release has none of the name."""
        stem = name.replace(".", "/")
        return next(filter(self.source.exists, (f"{stem}.py", f"{stem}/__init__.py")), None)


class _Space(dict[str, Any]):
    """Global names of one file, compiled when they are asked for."""

    def __init__(self, world: World, path: str) -> None:
        super().__init__()
        self.world, self.path = world, path
        self.imports = _imports(world.source.tree(path), path)

    def __missing__(self, name: str) -> Any:
        if name in self.world.stand_ins:
            return self.world.stand_ins[name]
        if hasattr(builtins, name):
            raise KeyError(name)
        self[name] = found = self._found(name)
        return found

    def _found(self, name: str) -> Any:
        source = self.world.source
        if source.has(self.path, name):
            return self._compiled(source.node(self.path, name), name)
        if name in self.imports:
            return self._imported(*self.imports[name])
        if name.startswith("k") and name[1:2].isupper():
            return Symbol(name)
        raise source.unread(f"{self.path}: {name}", "nothing stands in for it")

    def _compiled(self, node: ast.AST, name: str) -> Any:
        if isinstance(node, ast.FunctionDef):
            return compiled(node, self)
        if isinstance(node, ast.ClassDef):
            return self._class(node)
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and name.startswith("k"):
            return Symbol(name)
        if value is None:
            raise self.world.source.unread(f"{self.path}: {name}", "it has no value")
        return eval(compile(ast.Expression(value), self.path, "eval"), self)

    def _class(self, node: ast.ClassDef) -> Any:
        bases = tuple(eval(ast.unparse(base), self) for base in node.bases)
        if any(isinstance(base, type) and issubclass(base, Enum) for base in bases):
            space: dict[str, Any] = {}
            exec(ast.unparse(node), self, space)
            return space[node.name]
        named = {f"{node.name}_{i}": base for i, base in enumerate(bases) if isinstance(base, type)}
        self.update(named)
        body = [
            each
            for each in node.body
            if isinstance(each, ast.FunctionDef) and each.name.startswith(_ASKED)
        ]
        kind = ast.ClassDef(node.name, [*map(ast.Name, named)], [], body or [ast.Pass()], [])
        return compiled(kind, self)

    def _imported(self, module: str, name: str) -> Any:
        whole = self.world.module(f"{module}.{name}" if name else module)
        if module.split(".")[0] in _PYTHON:
            real = importlib.import_module(module)
            return getattr(real, name) if name else real
        if whole is not None:
            return _Module(self.world.space(whole))
        path = self.world.module(module)
        return Symbol(f"{module}.{name}") if path is None else self.world.space(path)[name]


class _Module:
    """A module that rules name as a whole."""

    def __init__(self, names: _Space) -> None:
        self._names = names

    def __getattr__(self, name: str) -> Any:
        return self._names[name]


def _imports(tree: ast.Module, path: str) -> dict[str, tuple[str, str]]:
    """Name to the module and the name in it, of every import of a file."""
    package = path.split("/")[:-1]
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                whole = each.name if each.asname else each.name.split(".")[0]
                found[each.asname or whole] = (whole, "")
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for each in node.names:
                found[each.asname or each.name] = (module, each.name)
    return found
