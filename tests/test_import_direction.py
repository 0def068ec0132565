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


def imported(path):
    """Sub-packages that a module of pinn imports, also inside functions."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
            if node.module == "pinn":
                names = [f"pinn.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("pinn."):
                yield name.split(".")[1]


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
        if name not in allowed
    }
    assert not against
