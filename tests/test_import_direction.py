"""Imports point one way: a sub-package uses only those before it in the package's docstring."""

import ast
import re
from pathlib import Path

import pytest

import pinn

ROOT = Path(pinn.__file__).parent
ORDER = re.findall(r"\w+", pinn.__doc__.split("\n\n")[2])
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path.parent != ROOT)

#: Modules that every sub-package may use.
FREE = {"errors", "units"}
#: Parts of one package: what the first holds imports nothing of the second.
APART = (("surrogate", "surrogate.uncertainty"),)


def imported(path):
    """Return the imports of pinn by a module of it, without ``pinn.``, also inside functions."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("pinn."):
                yield name.removeprefix("pinn.")


def test_the_docstring_names_every_sub_package():
    found = {path.parts[0] for path in MODULES}
    assert found == set(ORDER)


@pytest.mark.parametrize("package", sorted({path.parts[0] for path in MODULES}))
def test_a_sub_package_imports_only_what_is_before_it(package):
    allowed = FREE | set(ORDER[: ORDER.index(package) + 1])
    against = {
        f"{path}: {name}"
        for path in MODULES
        if path.parts[0] == package
        for name in imported(path)
        if name.split(".")[0] not in allowed
    }
    assert not against


@pytest.mark.parametrize(("lower", "upper"), APART)
def test_a_part_of_a_package_imports_nothing_of_what_stands_on_it(lower, upper):
    inside = [p for p in MODULES if f"{'.'.join(p.parts)}.".startswith(f"{lower}.")]
    below = [p for p in inside if not ".".join(p.parts).startswith(f"{upper}.")]
    against = {
        f"{path}: {name}"
        for path in below
        for name in imported(path)
        if f"{name}.".startswith(f"{upper}.")
    }
    assert below
    assert not against
