"""A workload as a few lines of YAML.

prompt_tokens: 1024
output_tokens: 256
length_range: [0.8, 1.0]      # lengths uniform between these shares; default [1, 1]
stages:                       # open loop ...
- {rate: 8, duration: 600}
- {rate: 20, duration: 600}
process: poisson              # or gamma, weibull (with cv), constant
concurrency: 64               # ... or closed loop, with `requests`
requests: 640
groups: 10                    # shared prefixes: groups x prompts_per_group prompts that repeat
prompts_per_group: 10
shared_tokens: 100
timeout_s: 300                # patience of a client; default unlimited
seed: 0
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from pinn.errors import PinnError
from pinn.simulator.workloads.arrivals import read_stages
from pinn.simulator.workloads.synthetic import closed_loop, open_loop, shared_prefix
from pinn.simulator.workloads.workload import Workload
from pinn.simulator.workloads.yaml_file import Number, Whole, check


class _Stage(BaseModel):
    model_config = ConfigDict(extra="forbid")
    rate: Number
    duration: Number


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid")
    prompt_tokens: Whole
    output_tokens: Whole
    length_range: tuple[Number, Number] = (1.0, 1.0)
    stages: list[_Stage] | None = None
    process: str = "poisson"
    cv: Number = 1.0
    concurrency: Whole | None = None
    requests: Whole | None = None
    groups: Whole | None = None
    prompts_per_group: Whole = 1
    shared_tokens: Whole = 0
    timeout_s: Number = np.inf
    seed: Whole = 0


def read_plain_spec(
    values: dict[str, Any], path: Path, seed: int | None = None, rate_per_s: float | None = None
) -> Workload:
    """The load of a plain specification.

    Args:
        values: Contents of the file.
        path: Where they come from, for messages.
        seed: In place of the file's.
        rate_per_s: Mean rate of its stages, in place of their own.

    Raises:
        PinnError: If a key is unknown or the loop is neither open nor closed.
    """
    known = f"known keys are {', '.join(_Spec.model_fields)}"
    spec = check(_Spec, values, path, known)
    seed, name = spec.seed if seed is None else seed, path.stem
    _check_lengths(spec, path)
    if spec.concurrency is not None:
        if spec.requests is None or spec.stages is not None:
            raise PinnError(f"{path}: a closed loop needs concurrency and requests, and no stages")
        return closed_loop(
            spec.concurrency, spec.requests, spec.prompt_tokens, spec.output_tokens,
            length_range=spec.length_range, timeout_s=spec.timeout_s, seed=seed, name=name,
        )  # fmt: skip
    if spec.stages is None:
        raise PinnError(f"{path}: give stages (rate, duration), or concurrency and requests")
    stages = read_stages(
        [(stage.rate, stage.duration) for stage in spec.stages], str(path), rate_per_s
    )
    if spec.groups is not None:
        return shared_prefix(
            stages, groups=spec.groups, prompts_per_group=spec.prompts_per_group,
            shared_tokens=spec.shared_tokens,
            question_tokens=spec.prompt_tokens - spec.shared_tokens,
            output_tokens=spec.output_tokens, process=spec.process, cv=spec.cv,
            prompt_range=spec.length_range, timeout_s=spec.timeout_s, seed=seed, name=name,
        )  # fmt: skip
    return open_loop(
        stages, spec.prompt_tokens, spec.output_tokens, process=spec.process, cv=spec.cv,
        length_range=spec.length_range, timeout_s=spec.timeout_s, seed=seed, name=name,
    )  # fmt: skip


def _check_lengths(spec: _Spec, path: Path) -> None:
    for name in ("prompt_tokens", "output_tokens"):
        if getattr(spec, name) < 1:
            raise PinnError(f"{path}: {name} is {getattr(spec, name)}: it must be at least 1")
    if not 0 <= spec.shared_tokens <= spec.prompt_tokens:
        raise PinnError(
            f"{path}: shared_tokens is {spec.shared_tokens}: it must lie between 0 and "
            f"prompt_tokens, {spec.prompt_tokens}"
        )
    for name in ("shared_tokens", "prompts_per_group"):
        if spec.groups is None and name in spec.model_fields_set:
            raise PinnError(f"{path}: {name} needs groups: give both or neither")
