"""The names of the model catalog: which file a name or an alias stands for."""

from __future__ import annotations

import difflib
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pinn.errors import PinnError
from pinn.specs.data_folder import data_folder
from pinn.specs.documents import read_json

#: Ending of the package's config files, and names of what may lie beside a config.json.
PACKAGE_SUFFIX = "_config.json"
QUANT_FILE = "hf_quant_config.json"
GENERATION_FILE = "generation_config.json"


@cache
def catalog_files() -> dict[str, tuple[str, Path]]:
    """Lower-case full name -> full name and file; the project's own files go first."""
    found: dict[str, tuple[str, Path]] = {}
    own = (path for path in data_folder("models").glob("*--*.json"))
    for path in [*sorted(own), *_package_files()]:
        name = name_of(path)
        found.setdefault(name.lower(), (name, path))
    return found


def _package_files() -> list[Path]:
    """The configs that aiconfigurator-core ships; without the package, none and a warning."""
    spec = find_spec("aiconfigurator_core")
    if spec is None or spec.origin is None:
        warnings.warn(
            "aiconfigurator-core is not installed: most names of the model catalog are missing",
            stacklevel=2,
        )
        return []
    folder = Path(spec.origin).parent / "model_configs"
    return sorted(
        path for path in folder.glob(f"*{PACKAGE_SUFFIX}") if not path.name.endswith(QUANT_FILE)
    )


@cache
def aliases() -> dict[str, str]:
    """Other name -> full name of a catalog model of the same shapes and formats."""
    path = data_folder("models") / "aliases.json"
    return {key: value for key, value in read_json(path).items() if not key.startswith("_")}


@cache
def _published_generation() -> dict[str, dict[str, Any]]:
    """Lower-case full or bare name -> settings; a base model and its chat model differ in them."""
    groups = read_json(data_folder("models") / "generation.json")["groups"]
    found = {name.lower(): group["settings"] for group in groups for name in group["models"]}
    return {name.split("/")[-1]: settings for name, settings in found.items()} | found


def published_generation(name: str) -> dict[str, Any] | None:
    """Sampling settings of the generation_config.json published with a model; None if unknown.

    >>> published_generation("Qwen/Qwen3-8B")["top_k"]
    20
    """
    return _published_generation().get(name.strip("/").lower())


@cache
def full_names() -> dict[str, list[str]]:
    """Lower-case full or bare name -> catalog keys; a full name goes before a bare one."""
    targets = {name: key for key, (name, _) in catalog_files().items()}
    targets |= {name: target.lower() for name, target in aliases().items() if name not in targets}
    found: dict[str, list[str]] = {name.lower(): [key] for name, key in targets.items()}
    bare: dict[str, list[str]] = {}
    for name, key in targets.items():
        entries = bare.setdefault(name.split("/")[-1].lower(), [])
        if key not in entries:
            entries.append(key)
    return {**bare, **found}


def find_in_catalog(name: str) -> tuple[str, Path] | None:
    """Full name and file of a catalog model by full or bare name or alias; None without one.

    Raises:
        PinnError: If a bare name fits several models.
    """
    keys = full_names().get(name.strip("/").lower(), [])
    if len(keys) > 1:
        names = ", ".join(catalog_files()[key][0] for key in keys)
        raise PinnError(f"model name {name!r} is ambiguous: use one of {names}")
    return catalog_files()[keys[0]] if keys else None


def names_of(full_name: str) -> list[str]:
    """A catalog model's full name and its aliases; the name alone of any other.

    >>> names_of("google/gemma-2-9b")
    ['google/gemma-2-9b', 'google/gemma-2-9b-it']
    """
    return [full_name, *(name for name, target in aliases().items() if target == full_name)]


def name_of(path: Path) -> str:
    """The model's name by its file: the folder's, or ``org/name`` of ``org--name.json``."""
    if path.name == "config.json":
        return path.resolve().parent.name
    return path.name.removesuffix(PACKAGE_SUFFIX).removesuffix(".json").replace("--", "/", 1)


def suggestion(name: str) -> str:
    """The remedy for an unknown name: names that come close, or a path."""
    names = [full_name for full_name, _ in catalog_files().values()]
    known = {key.lower(): key for key in [*names, *aliases()]}
    bare = {key.split("/")[-1]: key for key in known}
    wanted = name.lower()
    close = [known[key] for key in difflib.get_close_matches(wanted, known, n=3)]
    close += [known[bare[key]] for key in difflib.get_close_matches(wanted, bare, n=3)]
    hint = f"close names are {', '.join(dict.fromkeys(close))}, or " if close else ""
    return f"{hint}give the path of its config.json"
