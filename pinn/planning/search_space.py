"""The search space of a plan: GPUs, engines, formats, and a grid of flags from a YAML file."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pinn.common.files import conf_file
from pinn.engines.configurations import Values, expand_grid
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.workloads.yaml_spec import Strict, Whole, check, read_mapping
from pinn.specs.flags import FlagValue
from pinn.specs.serving import VLLM

LAYOUT = (
    "expected 'gpus_per_machine: 8' and 'grid:' with lists under names of flags; with "
    "--disaggregate 'pools:' too, with lists of servers, such as 2x tp=4, under 'prefill' and "
    "'decode'"
)


@dataclass(frozen=True)
class SearchSpace:
    """Axes that candidates are combined from.

    Attributes:
        shared: Keys that hold for all of them, such as the model and flags that were given.
        gpus: To choose from.
        formats: Number formats; None is the checkpoint's own.
        engine: Further engine settings.
        most_gpus: Of one replica; None for any number.
        engines: To choose from.
    """

    shared: Values
    gpus: Sequence[str]
    formats: Sequence[str | None]
    engine: EngineSpec
    most_gpus: int | None
    engines: Sequence[str] = (VLLM,)

    @property
    def bases(self) -> list[dict[str, FlagValue]]:
        """Keys that every candidate of a GPU and a format has."""
        return [
            {**self.shared, "gpu": gpu} | ({"precision": form} if form else {})
            for gpu, form in itertools.product(self.gpus, self.formats)
        ]


class Pools(Strict):
    """Pools of servers to combine, each as ``--prefill`` and ``--decode`` take it."""

    prefill: list[str]
    decode: list[str]


class CandidatesFile(Strict):
    """Layout of a file like ``conf/plan/candidates.yaml``.

    Attributes:
        gpus_per_machine: Tensor- and data-parallel ranks stay within a machine.
        grid: Flag -> its values.
        pools: Servers of a replica whose prefill and decode are apart.
    """

    gpus_per_machine: Whole
    grid: dict[str, object]
    pools: Pools | None = None


def read_candidates_file(path: Path | None) -> CandidatesFile:
    """Read the flags and pools to combine.

    Args:
        path: None for ``conf/plan/candidates.yaml``.

    Raises:
        PinnError: If the file cannot be read or has another layout.
    """
    path = path or conf_file("plan/candidates.yaml")
    return check(CandidatesFile, read_mapping(path), path, LAYOUT)


def grid_configurations(space: SearchSpace, path: Path | None = None) -> list[dict[str, FlagValue]]:
    """Return every combination that makes sense; flags that were given stay as they are."""
    listed = read_candidates_file(path)
    axes = {name: values for name, values in listed.grid.items() if name not in space.shared}
    every = itertools.product(space.bases, space.engines, expand_grid(axes))
    rows = [_in_words_of(engine, row) | base for base, engine, row in every]
    return [row for row in rows if _makes_sense(row, listed.gpus_per_machine, space.most_gpus)]


def _in_words_of(engine: str, row: Values) -> dict[str, FlagValue]:
    """Ranks of the grid, which counts as vLLM does, as an engine counts them.

    SGLang and TensorRT-LLM call all GPUs of a stage tensor parallel and take attention replicas
    from among them (``pinn.engines.recipe_rules``); TensorRT-LLM has as many of those as GPUs.
    """
    if engine == VLLM:
        return dict(row)
    replicas = _ranks(row, "data_parallel_size")
    gpus = _ranks(row, "tensor_parallel_size") * replicas
    renamed = {**row, "engine": engine, "tensor_parallel_size": gpus}
    if renamed.pop("enable_expert_parallel", False):
        renamed["ep_size"] = gpus
    if replicas > 1:
        renamed["enable_dp_attention"] = True
    return renamed


def _ranks(row: Values, name: str) -> int:
    return cast(int, row.get(name, 1))


def _makes_sense(row: Values, per_machine: int, most: int | None) -> bool:
    """Whether ranks stay in a machine and within reach, and experts have GPUs to spread over."""
    tensor, data = _ranks(row, "tensor_parallel_size"), _ranks(row, "data_parallel_size")
    side_by_side = tensor * data if row.get("engine", VLLM) == VLLM else tensor
    gpus = side_by_side * _ranks(row, "pipeline_parallel_size")
    spread = row.get("enable_expert_parallel", False) or "ep_size" in row
    fits = side_by_side <= per_machine and (most is None or gpus <= most)
    return fits and not (spread and side_by_side == 1)
