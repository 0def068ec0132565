"""Functions take few arguments; what travels together is a dataclass."""

import ast
from pathlib import Path

import pytest

import pinn

ROOT = Path(pinn.__file__).parent
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
#: Arguments of a function beside its object.
MOST = 8


def is_command(function):
    """Whether its arguments are the options of a command."""
    called = [ast.unparse(d.func) for d in function.decorator_list if isinstance(d, ast.Call)]
    return any(name.endswith(".command") for name in called)


def arguments(function):
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


@pytest.mark.parametrize("package", sorted({path.parts[0] for path in MODULES}))
def test_only_commands_take_many_arguments(package):
    against = {
        f"{path}: {node.name}"
        for path in MODULES
        if path.parts[0] == package
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_command(node)
        if len(arguments(node)) > MOST
    }
    assert not against
