"""The deployment behind benchmark files: what they state, completed by the user's flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinn.data.benchmarks.benchmark_run import BenchmarkRun
from pinn.data.traces.trace_run import Target
from pinn.errors import PinnError
from pinn.specs.flags import flags_of
from pinn.specs.gpu_catalog import find_gpu
from pinn.specs.serving import ServingSpec


def benchmark_target(
    runs: Sequence[BenchmarkRun],
    model: str | None = None,
    gpu: str | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Target:
    """What served the runs.

    The user's word goes before the files'; where they contradict each other,
    ``pinn.training.calibration.checks`` says so.

    Args:
        runs: Of one server.
        model: Name or config.json; None for the first that a file states.
        gpu: Name or datasheet; None for the first that a file states.
        flags: Fields of ``ServingSpec`` (and ``precision``) that the user gave.

    Raises:
        PinnError: If neither says which model or GPU, or a flag has a bad value.
    """
    model = model or next((r.server.model for r in runs if r.server.model), None)
    gpu = gpu or next((r.server.gpu for r in runs if find_gpu(r.server.gpu)), None)
    for option, value in (("--model", model), ("--gpu", gpu)):
        if value is None:
            raise PinnError(f"{runs[0].name} does not say what served it: give {option}")
    stated: dict[str, Any] = {}
    for run in runs:
        stated = {**run.server.all_flags, **stated}
    serving = _of_engine(stated, dict(flags or {})) | dict(flags or {})
    precision = serving.pop("precision", None)
    return Target(str(model), str(gpu), ServingSpec(**serving), precision)


def _of_engine(stated: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What files state, without what only the engine has that the user contradicts."""
    if stated.get("engine") in (None, given.get("engine", stated.get("engine"))):
        return stated
    own = {f.name for f in flags_of(ServingSpec) if f.engines} | {"engine_version"}
    return {name: value for name, value in stated.items() if name not in own}
