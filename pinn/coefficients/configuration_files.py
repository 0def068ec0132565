"""Lists and grids of configurations in CSV, YAML or JSON files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import yaml

from pinn.coefficients.configurations import canonical, expand_grid
from pinn.errors import PinnError

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
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise PinnError(f"{path}: cannot be read ({reason}): give a readable file") from error
    found = _from_csv(text, path) if path.suffix.lower() == ".csv" else _from_tree(text, path)
    if not found:
        raise PinnError(f"{path} holds no configurations: add at least one row")
    return found


def _from_csv(text: str, path: Path) -> list[dict[str, Any]]:
    rows = csv.reader(text.splitlines())
    header = next(rows, None)
    if not header:
        return []
    found = []
    for values in rows:
        if not values:
            continue
        if len(values) != len(header):
            raise PinnError(
                f"{path}, line {rows.line_num}: {len(values)} values under {len(header)} columns"
            )
        where = f"{path}, line {rows.line_num}: "
        found.append(canonical(dict(zip(header, values, strict=True)), where))
    return found


def _from_tree(text: str, path: Path) -> list[dict[str, Any]]:
    where = f"{path}: "
    try:
        if path.suffix.lower() == ".json":
            tree = json.loads(text)
        else:
            tree = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except json.JSONDecodeError as error:
        raise PinnError(f"{path}, line {error.lineno}: malformed JSON ({error.msg})") from error
    except yaml.YAMLError as error:
        raise PinnError(f"{path}: malformed YAML: {' '.join(str(error).split())}") from error
    if isinstance(tree, dict):
        return expand_grid(tree, where)
    if tree is not None and not isinstance(tree, list):
        raise PinnError(f"{where}expected a list of configurations or a grid, got {tree!r:.60}")
    found = []
    for number, entry in enumerate(tree or (), 1):
        if not isinstance(entry, dict):
            raise PinnError(f"{where}entry {number} must map keys to values, got {entry!r:.60}")
        found.append(canonical(entry, f"{path}, entry {number}: "))
    return found
