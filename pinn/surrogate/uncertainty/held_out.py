"""Descriptions of held-out rows: kind of weights, GPU, distance from measured kernels."""

from collections.abc import Sequence

import pandas as pd

from pinn.engines.deployment import Deployment
from pinn.kernels.surrogates import KernelSurrogates
from pinn.specs.model import ModelSpec
from pinn.surrogate.uncertainty.kernel_distance import kernel_distance
from pinn.surrogate.uncertainty.kinds import Situation, kind_of, place_of

# What is known of left-out rows before they are measured.

#: Columns of a description: the kind of weights, what is known of the GPU, and the whole distance
#: from measured kernels.
DESCRIPTION = ("kind", "place", "distance")

#: A deployment, its batch as ``pinn.specs.batch.parse_batch`` reads it, and whether serving data of
#: its GPU were learned from.
Step = tuple[Deployment, str, bool]


def situation(
    kernels: KernelSurrogates, deployment: Deployment, batch: str, gpu_known: bool = True
) -> Situation:
    """Where a step lies for those who know these kernels.

    Raises:
        PinnError: If the batch cannot be read or runs no kernel.
    """
    return Situation(deployment, kernel_distance(kernels, deployment, batch), gpu_known)


def described_steps(kernels: KernelSurrogates, steps: Sequence[Step]) -> pd.DataFrame:
    """Describe steps, each for those who know these kernels; some 30 ms each.

    Returns:
        One row per step, columns ``DESCRIPTION``.
    """
    found = [situation(kernels, *step) for step in steps]
    rows = [(kind_of(s.deployment.model), place_of(s), s.distance.total) for s in found]
    return pd.DataFrame(rows, columns=list(DESCRIPTION))


def decode_step(requests: float, prompt_tokens: float, output_tokens: float) -> str:
    """The step in the middle of so many requests' answers."""
    return f"{max(round(requests), 1)} decode @ {max(int(prompt_tokens + output_tokens / 2), 1)}"


def shape_of(model: ModelSpec) -> str:
    """Main shapes of a model; those of equal shape count as one when models are left out.

    >>> from pinn.specs.catalog import load_model
    >>> shape_of(load_model("meta-llama/Llama-3.3-70B-Instruct"))
    'hidden 8192, width 28672'
    """
    moe = model.moe
    if moe is not None:
        return f"hidden {model.hidden_size}, {moe.experts} experts of {moe.width}, top {moe.top_k}"
    width = max((g.ffn.width for g in model.layer_groups if g.ffn is not None), default=0)
    return f"hidden {model.hidden_size}, width {width}"
