"""inference-perf's YAML: the profile that a user writes, or the config that the tool ran.

The tool ignores keys that it does not know, and so does this reader: a profile that says
``num_unique_system_prompts`` runs with the tool's default of 10 groups of 10 prompts. Both
``constant`` and ``poisson`` load draw exponential gaps; a stage sends rate x duration requests and
ends when the last one has, and ``interval`` seconds later the next one begins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from pinn.errors import PinnError
from pinn.simulator.workloads.arrivals import Stage, random_draws, read_stages, stage_arrivals
from pinn.simulator.workloads.lengths import draw_lengths
from pinn.simulator.workloads.synthetic import shared_prefix
from pinn.simulator.workloads.workload import AIOHTTP_TIMEOUT_S, Workload
from pinn.simulator.workloads.yaml_file import Number, Whole, check

_REMEDY = "see inference-perf's documentation of this key"


class _Stage(BaseModel):
    rate: Number
    duration: Number


class _Load(BaseModel):
    type: Literal["constant", "poisson"] = "constant"
    interval: Number = 1.0
    stages: list[_Stage] = Field(min_length=1)
    request_timeout: Number | None = None


class _SharedPrefix(BaseModel):
    num_groups: Whole = 10
    num_prompts_per_group: Whole = 10
    system_prompt_len: Whole = 100
    question_len: Whole = 50
    output_len: Whole = 50


class _Distribution(BaseModel):
    min: Number = 10
    max: Number = 1024
    mean: Number = 512
    std_dev: Number = 200


class _Data(BaseModel):
    type: str = "mock"
    shared_prefix: _SharedPrefix | None = None
    input_distribution: _Distribution | None = None
    output_distribution: _Distribution | None = None


class _Config(BaseModel):
    load: _Load
    data: _Data = Field(default_factory=_Data)


def is_inference_perf(values: dict[str, Any]) -> bool:
    """Whether a YAML mapping looks like inference-perf's."""
    return isinstance(values.get("load"), dict) and "data" in values


def read_inference_perf(
    values: dict[str, Any],
    path: Path,
    seed: int = 0,
    prompt_range: tuple[float, float] = (1.0, 1.0),
    rate_per_s: float | None = None,
) -> Workload:
    """The load that inference-perf sends for a profile or config.

    Args:
        values: Contents of the file.
        path: Where they come from, for messages.
        seed: Of the random draws.
        prompt_range: True prompt lengths over nominal ones, see ``shared_prefix``.
        rate_per_s: Mean rate of its stages, in place of their own.

    Raises:
        PinnError: If a key has no meaning, or the data need texts that the file does not hold.
    """
    config = check(_Config, values, path, _REMEDY)
    load, data = config.load, config.data
    rates = [(stage.rate, stage.duration) for stage in load.stages]
    stages = read_stages(rates, str(path), rate_per_s)
    timeout = AIOHTTP_TIMEOUT_S if load.request_timeout is None else load.request_timeout
    if data.type == "shared_prefix":
        prefix = data.shared_prefix or _SharedPrefix()
        return shared_prefix(
            stages,
            groups=prefix.num_groups,
            prompts_per_group=prefix.num_prompts_per_group,
            shared_tokens=prefix.system_prompt_len,
            question_tokens=prefix.question_len,
            output_tokens=prefix.output_len,
            prompt_range=prompt_range,
            timeout_s=timeout,
            stages_wait=True,
            stage_gap_s=load.interval,
            seed=seed,
            name=path.stem,
        )
    if data.type in ("random", "synthetic"):
        return _random(stages, data, timeout, load.interval, seed, path.stem)
    raise PinnError(
        f"{path}: data.type {data.type!r} needs texts that are not here: use shared_prefix, random "
        "or synthetic, or give the lengths as a CSV trace"
    )


def _random(
    stages: list[Stage], data: _Data, timeout_s: float, interval_s: float, seed: int, name: str
) -> Workload:
    """Normally distributed lengths, cut to their bounds; every prompt unlike the others."""
    rng = random_draws(seed)
    offset, stage = stage_arrivals(stages, "poisson", rng)
    lengths = [
        draw_lengths("gaussian", (given or _Distribution()).model_dump(), len(offset), rng)
        for given in (data.input_distribution, data.output_distribution)
    ]
    return Workload(
        name,
        lengths[0],
        lengths[1],
        offset,
        stage,
        timeout_s=np.full(len(offset), timeout_s),
        stages_wait=True,
        stage_gap_s=interval_s,
    )
