"""Distances of steps from measured kernels, and other facts known before a measurement."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.kernels.evidence import KernelUse, kernels_used
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.batch_sums import alike
from pinn.specs.batch import parse_batch
from pinn.specs.gpu import GpuSpec, find_gpu
from pinn.specs.model import ModelSpec
from pinn.surrogate.uncertainty.distance import REFERENCE_BATCH, KernelDistance
from pinn.surrogate.uncertainty.kinds import Situation, kind_of, place_of

# Distance of a step from measured kernels: the mean over its kernels, weighted by their time.
#
# The times of a step's kernels are interpolated from measured kernels. A kernel's distance is that
# to the nearest measured kernel, in log units. Distances are not fitted to prediction errors.

#: Assumed distance of a kernel without any comparable measurement: a factor of four in one size.
UNMEASURED = float(np.log(4.0))


def kernel_distance(
    kernels: KernelSurrogates, deployment: Deployment, batch: str = REFERENCE_BATCH
) -> KernelDistance:
    """Return the distance of one step from measured kernels.

    The distance reflects neither the quality of an operator's interpolation nor anything other than
    kernels.

    Args:
        kernels: Fitted surrogates with the sizes that they were fitted to.
        deployment: Model, GPU and engine configuration.
        batch: Description of the step's batch, as ``parse_batch`` reads it.

    Raises:
        PinnError: If the batch cannot be read, or runs no kernel.
    """
    used = kernels_used(kernels, deployment, alike([parse_batch(batch)]))
    whole = sum(use.total_seconds for use in used)
    if not whole:
        raise PinnError(f"the batch {batch!r} runs no kernel: give at least one request")
    by_operator, elsewhere = dict.fromkeys([use.operator for use in used], 0.0), 0.0
    for use in used:
        share, other = use.total_seconds / whole, _gpu_gap(use, deployment.gpu)
        stretch = UNMEASURED if use.nearest is None else use.nearest.stretch
        by_operator[use.operator] += share * (stretch + other)
        elsewhere += share * (other > 0)
    return KernelDistance(sum(by_operator.values()), by_operator, elsewhere)


def _gpu_gap(use: KernelUse, gpu: GpuSpec) -> float:
    """Return a GPU's distance from the GPU with a kernel's nearest measurement, in log units.

    The distance is the larger of two log ratios, of memory bandwidth and of peak FLOP/s. It is 0 if
    the nearest kernel is pooled over several GPUs.
    """
    if use.nearest is None or use.nearest.gpu == gpu.name:
        return 0.0
    other = find_gpu(use.nearest.gpu)
    if other is None:
        return 0.0
    return max(
        abs(np.log(gpu.memory_bandwidth_bytes_per_s / other.memory_bandwidth_bytes_per_s)),
        abs(np.log(gpu.peak_flop_per_s["bf16"] / other.peak_flop_per_s["bf16"])),
    )


# Descriptions of held-out rows by facts that are known before measuring.

#: Columns that describe a step: type of weights, which measurements of the GPU exist, and distance
#: from measured kernels.
DESCRIPTION = ("kind", "place", "distance")

#: Step: deployment, batch as text, and whether the training data include serving data of its GPU.
Step = tuple[Deployment, str, bool]


def situation(
    kernels: KernelSurrogates, deployment: Deployment, batch: str, gpu_known: bool = True
) -> Situation:
    """Return the facts of a step that are known before a measurement.

    Raises:
        PinnError: If the batch cannot be read, or runs no kernel.
    """
    return Situation(deployment, kernel_distance(kernels, deployment, batch), gpu_known)


def described_steps(kernels: KernelSurrogates, steps: Sequence[Step]) -> pd.DataFrame:
    """Return each step's type of weights, GPU measurements, and distance from measured kernels.

    Computing the distance of a step takes about 30 ms.

    Returns:
        Table with one row per step and the columns ``DESCRIPTION``.
    """
    found = [situation(kernels, *step) for step in steps]
    rows = [(kind_of(s.deployment.model), place_of(s), s.distance.total) for s in found]
    return pd.DataFrame(rows, columns=list(DESCRIPTION))


def decode_step(requests: float, prompt_tokens: float, output_tokens: float) -> str:
    """Describe a decode step in which every request has generated half of its output."""
    return f"{max(round(requests), 1)} decode @ {max(int(prompt_tokens + output_tokens / 2), 1)}"


def shape_of(model: ModelSpec) -> str:
    """Return a model's main sizes as text; models with the same text are held out together.

    >>> from pinn.specs.catalog import load_model
    >>> shape_of(load_model("meta-llama/Llama-3.3-70B-Instruct"))
    'hidden 8192, width 28672'
    """
    moe = model.moe
    if moe is not None:
        return f"hidden {model.hidden_size}, {moe.experts} experts of {moe.width}, top {moe.top_k}"
    width = max((g.ffn.width for g in model.layer_groups if g.ffn is not None), default=0)
    return f"hidden {model.hidden_size}, width {width}"
