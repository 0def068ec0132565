"""Distances of deployments from a checkpoint's training data, cached on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinn.common import files
from pinn.common.store import remembered_value
from pinn.engines.deployment import Deployment
from pinn.specs.gpu import load_gpu

# Distance from the measured kernels, as commands use it; the module ``held_out`` computes it.

#: Batch whose step represents a deployment if no batch is given.
REFERENCE_BATCH = "32 decode @ 2000"


@dataclass(frozen=True)
class KernelDistance:
    """Distance of one step from the measured kernels.

    Attributes:
        total: Mean distance of the step's kernels in log units, weighted by their time. It is 0 if
            each kernel itself was measured, and 0.69 if one size of each kernel is twice or half a
            measured size.
        by_operator: Contribution of each operator (kernel type) to ``total``.
        elsewhere: Share of the time in kernels whose nearest measurement is on another GPU.
    """

    total: float
    by_operator: Mapping[str, float]
    elsewhere: float


# GPUs with measured servers in a checkpoint's training data.


def gpu_is_known(checkpoint: Path, deployment: Deployment) -> bool:
    """Return whether the checkpoint was trained on serving data of the deployment's GPU.

    Raises:
        PinnError: If the checkpoint is missing or unreadable.
    """
    return deployment.gpu.name in served_gpus(checkpoint)


def served_gpus(checkpoint: Path) -> list[str]:
    """Return the names of the GPUs whose serving data a checkpoint was trained on.

    Raises:
        PinnError: If the checkpoint is missing or unreadable.
    """
    return remembered_value(_served, checkpoint)


def measured_gpus(checkpoint: Path) -> dict[str, str]:
    """Return, by GPU name, what was measured on it: kernels, or kernels and servers.

    Raises:
        PinnError: If the checkpoint is missing or unreadable.
    """
    from pinn.kernels.tables.table import SYSTEMS

    kernels = {load_gpu(system).name: "kernels" for system in SYSTEMS}
    return kernels | dict.fromkeys(served_gpus(checkpoint), "kernels, servers")


def _served(checkpoint: Path) -> list[str]:
    from pinn.surrogate.checkpoint import load_checkpoint

    names = [name.rpartition(" on ") for name in load_checkpoint(checkpoint).anchor_names]
    return sorted({gpu for _, _, gpu in names})


# Distances for commands, computed with the kernel surrogates of a checkpoint.
#
# Loading the kernel surrogates takes longer than a simulation, so distances are cached on disk.


def locate(
    checkpoint: Path, deployment: Deployment, batch: str = REFERENCE_BATCH
) -> KernelDistance:
    """Return the distance of a deployment's step from the kernels in the training data.

    Raises:
        PinnError: If there are no kernel surrogates, or the batch cannot be read.
    """
    return locate_each(checkpoint, deployment, [batch])[0]


def locate_each(
    checkpoint: Path, deployment: Deployment, batches: Sequence[str]
) -> list[KernelDistance]:
    """Return the distances of a deployment's steps from the kernels in the training data.

    Raises:
        PinnError: If there are no kernel surrogates, or the batch cannot be read.
    """
    kernels = files.needed_kernels(checkpoint, "the distance from measured kernels")
    found = remembered_value(_distances, kernels, deployment, list(batches))
    return [KernelDistance(**each) for each in found]


def outside_inputs(checkpoint: Path, deployment: Deployment) -> dict[str, float]:
    """Return the network inputs of a deployment that lie outside the training range.

    Returns: Distance from the range in standard deviations by name of the input, farthest first.

    Raises:
        PinnError: If the checkpoint is missing or unreadable.
    """
    return remembered_value(_outside, checkpoint, deployment)


def _distances(kernels: Path, deployment: Deployment, batches: list[str]) -> list[dict[str, Any]]:
    # Imported only when needed, because these modules load torch, which is slow.
    from pinn.kernels.surrogates import KernelSurrogates
    from pinn.surrogate.uncertainty.held_out import kernel_distance

    surrogates = KernelSurrogates.load(kernels.parent)
    return [vars(kernel_distance(surrogates, deployment, batch)) for batch in batches]


def _outside(checkpoint: Path, deployment: Deployment) -> dict[str, float]:
    from pinn.surrogate.checkpoint import load_checkpoint
    from pinn.surrogate.uncertainty.training_space import training_space

    space = training_space(load_checkpoint(checkpoint))
    return space.locate([deployment]).outside_names(0)
