"""Lists and grids of configurations in CSV, YAML or JSON files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pinn.coefficients.configurations import canonical, check_configurations, expand_grid
from pinn.errors import PinnError
from pinn.specs.csv_text import CsvTable
from pinn.specs.documents import read_json, read_yaml

SUFFIXES = (".csv", ".yaml", ".yml", ".json")


def read_configurations(path: Path) -> list[dict[str, Any]]:
    """Read a file of configurations.

    A CSV file has one column per key and one row per configuration. A YAML or JSON file holds a
    list of them, or a grid: lists per key, whose every combination is meant.

    Raises:
        PinnError: If the file is missing, malformed or empty, or has an unknown key or a value of
            the wrong type; names the file and the row.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise PinnError(f"{path}: cannot tell its format: name it {', '.join(SUFFIXES)}")
    found = _from_csv(path) if path.suffix.lower() == ".csv" else _from_tree(path)
    if not found:
        raise PinnError(f"{path} holds no configurations: add at least one row")
    return found


def _from_csv(path: Path) -> list[dict[str, Any]]:
    table = CsvTable(path)
    found: list[dict[str, Any]] = []
    for line, values in table.rows():
        check_configurations(len(found) + 1, f"{path}: ")
        where = f"{path}, line {line}: "
        found.append(canonical(dict(zip(table.names, values, strict=True)), where))
    return found


def _from_tree(path: Path) -> list[dict[str, Any]]:
    where = f"{path}: "
    tree = read_json(path) if path.suffix.lower() == ".json" else read_yaml(path)
    if isinstance(tree, dict):
        return expand_grid(_named(tree, where), where)
    if tree is not None and not isinstance(tree, list):
        raise PinnError(f"{where}expected a list of configurations or a grid, got {tree!r:.60}")
    check_configurations(len(tree or ()), where)
    found: list[dict[str, Any]] = []
    for number, entry in enumerate(tree or (), 1):
        if not isinstance(entry, dict):
            raise PinnError(f"{where}entry {number} must map keys to values, got {entry!r:.60}")
        about = f"{path}, entry {number}: "
        found.append(canonical(_named(entry, about), about))
    return found


def _named(tree: dict[Any, Any], where: str) -> dict[str, Any]:
    """The mapping, if all its keys are text; YAML allows others."""
    other = [key for key in tree if not isinstance(key, str)]
    if other:
        raise PinnError(f"{where}a key must be text, such as gpu, got {other[0]!r:.60}")
    return tree
