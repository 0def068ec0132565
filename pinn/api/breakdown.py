"""Breakdown of the time of engine steps by part, as a Python function."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinn.api.arguments import read_request, with_arguments
from pinn.api.requests import BreakdownRequest, named
from pinn.common.files import find_checkpoint, find_kernels
from pinn.engines.configurations import canonical, make_deployment
from pinn.errors import warn_user
from pinn.memory.start_up import start_warning
from pinn.specs.serving import ServingSpec
from pinn.surrogate.encoder_time import asked_encoder
from pinn.surrogate.surrogate import Surrogate
from pinn.training import breakdown as steps_of
from pinn.training.step_breakdowns import StepBreakdowns

if TYPE_CHECKING:
    from pinn.training.teacher import Teacher

#: Default batches of a breakdown.
_EXAMPLES = ("64 decode @ 2000", "1 prefill 2048 @ 0 + 64 decode @ 2000")


@with_arguments(ServingSpec, request=BreakdownRequest, deploys=True)
def breakdown(
    model: str | Path | None = None, gpu: str | Path | None = None, **given: object
) -> StepBreakdowns:
    """Break the time of engine steps down by part, as ``pinn breakdown`` does.

    Args:
        model: Name, or path of a config.json or its folder.
        gpu: Name, or path of a datasheet's JSON file.
        **given: Keyword arguments listed below; engine flags that are not given have the engine's
            defaults.

    Raises:
        PinnError: If model, GPU or a flag is unknown, or they are incompatible.
    """
    asked, flags = read_request(BreakdownRequest, given, ServingSpec, model=model, gpu=gpu)
    path = find_checkpoint(asked.checkpoint)
    surrogate = Surrogate.load(path)
    teacher, sources = _teacher(asked.kernels, path, surrogate.checkpoint.metadata)
    deployment = make_deployment(canonical(named(asked.model, asked.gpu) | flags))
    if (warning := start_warning(deployment)) is not None:
        warn_user(warning)
    beta = surrogate.coefficients([deployment]).beta[0]
    batches = asked.batch or _EXAMPLES
    encoder = asked_encoder(deployment, asked, path)
    if encoder is not None:
        sources["encoder"] = encoder.sentence
    steps = tuple(steps_of.breakdown(deployment, text, beta, teacher, encoder) for text in batches)
    return StepBreakdowns(deployment, steps, {"network": _shown(path), **sources})


def _teacher(
    folder: Path | None, checkpoint: Path, metadata: Mapping[str, Any]
) -> tuple[Teacher | None, dict[str, str]]:
    """Return the kernel-based model of step time, and a description of the sources of its parts.

    The model sums fitted kernel times, scaled by calibration factors. If the folder of fits is
    missing, return None and the reason.
    """
    from pinn.kernels.surrogates import KernelSurrogates
    from pinn.training.teacher import Teacher, prior_scalars, saved_scalars

    found = find_kernels(folder, checkpoint)
    if found is None:
        missing = (
            "step times cannot be computed without fits to measured kernels: run 'python train.py "
            "kernels=on', and give the folder of fits with --kernels"
        )
        return None, {"kernels": missing}
    surrogates = KernelSurrogates.load(found)
    left_out = ", ".join(chain(*surrogates.metadata.get("excluded", {}).values()))
    without = f", fitted without {left_out}" if left_out else ""
    saved = metadata.get("scalars")
    scalars = saved_scalars(saved) if saved else prior_scalars()
    return Teacher(surrogates, scalars), {
        "kernels": f"{_shown(found)}{without}",
        "overheads": "stored in the checkpoint"
        if saved
        else "assumed, because the checkpoint was trained without measured kernels",
    }


def _shown(path: Path) -> str:
    """Return a path relative to the working directory, if it is inside it."""
    whole, here = path.absolute(), Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else path)
