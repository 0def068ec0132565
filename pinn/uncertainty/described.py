"""Everything known of left-out rows before they are measured: what their spread may hang on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from pinn.kernels.near_copy import is_near_copy
from pinn.kernels.surrogates import KernelSurrogates
from pinn.specs.batch import parse_batch
from pinn.specs.deployment import Deployment
from pinn.specs.model import ModelSpec
from pinn.uncertainty.kernel_distance import kernel_distance
from pinn.uncertainty.kinds import kind_of, place_of
from pinn.uncertainty.spread_parts import SPREAD_PARTS, Situation, spread_parts

#: Columns of a description: the kind of weights, what is known of the GPU, the whole distance from
#: measured kernels, and a column per part of the spread.
DESCRIPTION = ("kind", "place", "distance", *SPREAD_PARTS)


@dataclass(frozen=True)
class Step:
    """A step of a deployment.

    Attributes:
        deployment: What runs it.
        batch: As ``pinn.specs.batch.parse_batch`` reads it.
        gpu_known: Whether serving data of its GPU were learned from.
    """

    deployment: Deployment
    batch: str
    gpu_known: bool = True


def situation(kernels: KernelSurrogates, step: Step) -> Situation:
    """Where a step lies for those who know these kernels.

    Raises:
        PinnError: If the batch cannot be read or runs no kernel.
    """
    at = kernel_distance(kernels, step.deployment, step.batch)
    return Situation(step.deployment, at, len(parse_batch(step.batch)), step.gpu_known)


def described_steps(kernels: KernelSurrogates, steps: Sequence[Step]) -> pd.DataFrame:
    """Describe steps, each for those who know these kernels; some 30 ms each.

    Returns:
        One row per step, columns ``DESCRIPTION``.
    """
    found = [situation(kernels, step) for step in steps]
    rows = [
        {"kind": kind_of(s.deployment.model), "place": place_of(s), "distance": s.distance.total}
        | spread_parts(s)
        for s in found
    ]
    return pd.DataFrame(rows, columns=list(DESCRIPTION))


def decode_step(requests: float, prompt_tokens: float, output_tokens: float) -> str:
    """The step in the middle of so many requests' answers."""
    return f"{max(round(requests), 1)} decode @ {max(int(prompt_tokens + output_tokens / 2), 1)}"


def shape_names(models: Iterable[ModelSpec]) -> dict[str, str]:
    """Model name -> name of the first model, in order of name, that it is a near copy of."""
    found: dict[str, str] = {}
    firsts: list[ModelSpec] = []
    for _, model in sorted({model.name: model for model in models}.items()):
        first = next((other for other in firsts if is_near_copy(model, other)), None)
        if first is None:
            firsts.append(model)
        found[model.name] = (first or model).name
    return found
