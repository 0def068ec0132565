"""GPUs by name or file: ``load_gpu`` and ``list_gpus``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from pinn.errors import PinnError
from pinn.specs.data_folder import data_folder
from pinn.specs.documents import given_path, read_json
from pinn.specs.foreign_gpus import read_foreign_gpu
from pinn.specs.gpu import GpuSpec
from pinn.specs.limits import is_finite, written

_NUMBERS = frozenset(
    f.name for f in fields(GpuSpec) if f.type in ("float", "int") and f.name != "name"
)


def load_gpu(name_or_path: str | Path) -> GpuSpec:
    """Load a GPU's datasheet.

    Args:
        name_or_path: A name or alias, in any case and punctuation (``H100``, ``h100_sxm``); or the
            path of a JSON file in the layout of ``data/gpus`` or in one of the layouts that
            ``read_foreign_gpu`` knows, with ``#NAME`` behind it where the file has several GPUs.

    Raises:
        PinnError: If the GPU is unknown, or its file is malformed or lacks a bandwidth.
    """
    text = str(name_or_path)
    name, _, entry = text.partition("#")
    path = given_path(name)
    if name.endswith(".json") or path.is_file():
        return _load_file(path, entry or None)
    gpu = find_gpu(text)
    if gpu is None:
        close = difflib.get_close_matches(text.lower(), [name.lower() for name in list_gpus()], n=1)
        hint = next((f" (close: {name})" for name in list_gpus() if name.lower() in close), "")
        raise PinnError(
            f"unknown GPU {text!r}{hint}: known ones are {', '.join(list_gpus())}; "
            "or give the path of a JSON file with its datasheet"
        )
    return gpu


def list_gpus() -> list[str]:
    """Canonical names of the known GPUs."""
    return sorted({gpu.name for gpu in _known().values()})


def find_gpu(name: str) -> GpuSpec | None:
    """A known GPU by name or alias; None if there is none."""
    return _known().get(_plain(name))


def gpu_aliases(gpu: GpuSpec) -> tuple[str, ...]:
    """Other names of a GPU of the catalogue; none for one of the user's own."""
    known = find_gpu(gpu.name)
    if known != gpu:
        return ()
    return next(
        tuple(values["aliases"])
        for values in map(read_json, sorted(data_folder("gpus").glob("*.json")))
        if values["name"] == gpu.name
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _known() -> dict[str, GpuSpec]:
    found: dict[str, GpuSpec] = {}
    for path in sorted(data_folder("gpus").glob("*.json")):
        values = read_json(path)
        gpu = _read_own(values, path)
        for name in (gpu.name, *values.get("aliases", ())):
            other = found.setdefault(_plain(name), gpu)
            if other is not gpu:
                raise PinnError(f"{path}: the name {name!r} is {other.name}'s: use another")
    return found


def _load_file(path: Path, entry: str | None) -> GpuSpec:
    values = read_json(path)
    if not isinstance(values, Mapping):
        raise PinnError(f"{path}: a GPU file must hold a JSON object, got {values!r:.60}")
    if "memory_bandwidth_bytes_per_s" in values or "peak_flop_per_s" in values:
        return _read_own(values, path)
    nested = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    if entry is None and len(nested) == 1:
        entry = next(iter(nested))
    if entry is None or entry not in nested:
        raise PinnError(
            f"{path} holds {', '.join(nested) or 'no GPU'}"
            f"{f', not {entry}' if entry else ''}: choose one with {path}#NAME"
        )
    return read_foreign_gpu(entry, nested[entry], find_gpu(entry), str(path))


def _read_own(values: Mapping[str, Any], path: Path) -> GpuSpec:
    wanted = {f.name for f in fields(GpuSpec)}
    missing, extra = wanted - values.keys(), values.keys() - wanted - {"aliases"}
    if missing or extra:
        what = f"lacks {', '.join(sorted(missing))}" if missing else "has an unknown field"
        raise PinnError(
            f"{path}: the GPU {what}{': ' + ', '.join(sorted(extra)) if extra else ''}; "
            f"expected exactly {', '.join(sorted(wanted))}"
        )
    peaks = values["peak_flop_per_s"]
    numbers = {name: values[name] for name in _NUMBERS}
    if not isinstance(peaks, Mapping):
        raise PinnError(f"{path}: peak_flop_per_s must map math kinds to FLOP/s, got {peaks!r}")
    for name, value in {**numbers, **peaks}.items():
        if not is_finite(value):
            raise PinnError(f"{path}: {name} must be a number in SI units, got {written(value)}")
    for name in ("name", "source"):
        if not isinstance(values[name], str):
            raise PinnError(f"{path}: {name} must be text, got {written(values[name])}")
    if not isinstance(values["has_nvlink"], bool):
        raise PinnError(
            f"{path}: has_nvlink must be true or false, got {written(values['has_nvlink'])}"
        )
    return GpuSpec(**{name: values[name] for name in wanted})
