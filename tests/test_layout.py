"""Laws of every function and module: few arguments, and one way to write JSON."""

import ast
import csv
from pathlib import Path

import pytest

import pinn

ROOT = Path(pinn.__file__).parent
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
#: Arguments of a function beside its object.
MOST = 8
#: What writes JSON; what runs beside an engine has no module of this package.
WRITES = {"json.dump", "json.dumps", "json.JSONEncoder"}
WRITER, APART = Path("common/files.py"), Path("measurements/program")


def nodes(path):
    return ast.walk(ast.parse((ROOT / path).read_text()))


def is_command(function):
    """Whether its arguments are the options of a command."""
    called = [ast.unparse(d.func) for d in function.decorator_list if isinstance(d, ast.Call)]
    return any(name.endswith((".command", "engine_flags")) for name in called)


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
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_command(node)
        if len(arguments(node)) > MOST
    }
    assert not against


def writes_json(node):
    """Whether it names what makes JSON of values, or imports that."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "json" and any(not a.name.startswith("load") for a in node.names)
    return isinstance(node, ast.Attribute) and ast.unparse(node) in WRITES


def test_json_is_written_in_one_way():
    wanted = [path for path in MODULES if APART not in path.parents]
    assert {path for path in wanted if any(map(writes_json, nodes(path)))} == {WRITER}


def test_every_new_name_of_a_renamed_module_is_a_module():
    with (ROOT.parent / "scripts" / "renames.csv").open() as table:
        renames = list(csv.DictReader(table))
    known = {
        ".".join(("pinn", *path.with_suffix("").parts)).removesuffix(".__init__")
        for path in MODULES
    }
    modules = [row for row in renames if row["before"].startswith("pinn.")]
    assert modules
    assert not {row["after"] for row in modules} - known
