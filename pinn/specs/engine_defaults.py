"""Defaults of the engines: one table by engine, version, GPU, tensor parallelism and model.

``data/engines/defaults.csv`` holds every default once, a source in each line. The first line that
fits counts; an empty cell fits everything.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from functools import cache, lru_cache

from pinn.errors import PinnError
from pinn.specs.data_folder import data_folder
from pinn.specs.gpu import GpuSpec
from pinn.units import GIB

#: Version numbers of a flag that is given without one.
_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)")


@dataclass(frozen=True)
class Default:
    """One line of the table.

    Attributes:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        flag: Field of ``ServingSpec``.
        since: First release; None for all before.
        until: First release that it no longer holds for; None for all after.
        gpu: Regular expression for a part of the GPU's name in small letters; empty for any.
        least_gib: Smallest memory of the GPU.
        below_gib: Memory that the GPU has less than.
        least_tp: Smallest tensor-parallel size.
        below_tp: Size that the tensor-parallel one is below.
        models: Types of the models; empty for any.
        value: As the flag reads it.
        assumed: Whether nobody read it in the engine's own source.
        source: Where it is from.
    """

    engine: str
    flag: str
    since: tuple[int, ...] | None
    until: tuple[int, ...] | None
    gpu: str
    least_gib: float
    below_gib: float
    least_tp: float
    below_tp: float
    models: tuple[str, ...]
    value: str
    assumed: bool
    source: str

    def holds(self, version: tuple[int, ...], gpu: GpuSpec, tp: int, model_type: str) -> bool:
        """Whether it is the default of a release on a GPU."""
        return (
            (self.since is None or version >= self.since)
            and (self.until is None or version < self.until)
            and re.search(self.gpu, gpu.name.lower()) is not None
            and self.least_gib <= gpu.memory_bytes / GIB < self.below_gib
            and self.least_tp <= tp < self.below_tp
            and (not self.models or model_type in self.models)
        )


@lru_cache(maxsize=1024)
def release(version: str) -> tuple[int, ...]:
    """Numbers of a version without what follows them, such as a release candidate's.

    Raises:
        PinnError: If it does not begin with a number.

    >>> release("1.2.0rc6.post2"), release("v0.5.9-cu130")
    ((1, 2, 0), (0, 5, 9))
    """
    found = _RELEASE.match(version.strip())
    if found is None:
        raise PinnError(
            f"--engine-version {version!r} is no release, such as 0.15.1: give the release that "
            "the build was made from"
        )
    return tuple(int(number) for number in found.group(1).split("."))


@cache
def all_defaults() -> tuple[Default, ...]:
    """Every line of the table, in its order."""
    path = data_folder("engines") / "defaults.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(_default(row) for row in csv.DictReader(file))


@cache
def _of(engine: str, flag: str) -> tuple[Default, ...]:
    return tuple(d for d in all_defaults() if (d.engine, d.flag) == (engine, flag))


@cache
def models_named(engine: str) -> frozenset[str]:
    """Types of models that any default of an engine asks for."""
    return frozenset(m for d in all_defaults() if d.engine == engine for m in d.models)


@lru_cache(maxsize=16384)
def engine_default(
    engine: str, flag: str, version: str, gpu: GpuSpec, tp: int = 1, model_type: str = ""
) -> Default:
    """The default of a flag.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        flag: Field of ``ServingSpec``.
        version: As ``--engine-version``.
        gpu: What it runs on.
        tp: GPUs of a replica.
        model_type: ``model_type`` of the model's config.json.

    Raises:
        PinnError: If the version is no release, or the table has no line.
    """
    numbers = release(version)
    for default in _of(engine, flag):
        if default.holds(numbers, gpu, tp, model_type):
            return default
    raise PinnError(f"{engine} {version} has no default for {flag}: give the flag")


def reference_version(engine: str) -> Default:
    """The release whose defaults hold where none is named."""
    return _of(engine, "engine_version")[0]


#: Engines as they write themselves.
_TITLES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


def served_release(engine: str, version: str) -> str:
    """The release whose defaults hold: the one that is named, else the newest that was read."""
    return version or reference_version(engine).value


def unread_notice(engine: str, version: str) -> str | None:
    """What is said of a release that lies outside those whose source was read; None within.

    The first line of the table holds for all before, the last for all after, so its defaults are
    those of the oldest or newest release that was read.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: As ``--engine-version``; empty for the release that the table names.

    >>> unread_notice("vllm", "99.1")  # doctest: +ELLIPSIS
    "vLLM 99.1 was not read: ...'s defaults hold"
    """
    oldest = _of(engine, "oldest_engine_version")
    if not version or not oldest:
        return None
    ends = oldest[0].value, reference_version(engine).value
    if release(ends[0]) <= release(version) <= release(ends[1]):
        return None
    holds = ends[0] if release(version) < release(ends[0]) else ends[1]
    return f"{_TITLES[engine]} {version} was not read: {holds}'s defaults hold"


def _default(row: dict[str, str]) -> Default:
    return Default(
        row["engine"],
        row["flag"],
        release(row["since"]) if row["since"] else None,
        release(row["until"]) if row["until"] else None,
        row["gpu"],
        float(row["least_gib"] or 0),
        float(row["below_gib"] or math.inf),
        float(row["least_tp"] or 0),
        float(row["below_tp"] or math.inf),
        tuple(row["models"].split()),
        row["value"],
        row["assumed"] == "yes",
        row["source"],
    )
