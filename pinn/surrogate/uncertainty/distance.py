"""Distance of a deployment from what a checkpoint was trained on; answers are cached on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinn.common import files
from pinn.common.store import remembered_value
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.specs.gpu import load_gpu

# A distance from the measured kernels, as commands pass it on; computing it is elsewhere.

#: Step by which a deployment as a whole is located.
REFERENCE_BATCH = "32 decode @ 2000"


@dataclass(frozen=True)
class KernelDistance:
    """How far one step lies from the measured kernels.

    Attributes:
        total: Mean distance of its kernels in log units, weighted by their time; 0 where each was
            measured itself, 0.69 where a size of each is twice or half of a measured one.
        by_operator: The same, split by operator; the parts add up to ``total``.
        elsewhere: Share of the time in kernels whose nearest measurement is of another GPU.
    """

    total: float
    by_operator: Mapping[str, float]
    elsewhere: float


# Which GPUs a checkpoint learned serving data of.


def gpu_is_known(checkpoint: Path, deployment: Deployment) -> bool:
    """Whether the checkpoint learned from serving data of the deployment's GPU.

    Raises:
        PinnError: If the checkpoint cannot be used.
    """
    return deployment.gpu.name in served_gpus(checkpoint)


def served_gpus(checkpoint: Path) -> list[str]:
    """Names of the GPUs whose serving data a checkpoint learned from.

    Raises:
        PinnError: If the checkpoint cannot be used.
    """
    return remembered_value(_served, checkpoint)


def measured_gpus(checkpoint: Path) -> dict[str, str]:
    """Return what was measured on each GPU by its name: kernels, or also servers.

    Raises:
        PinnError: If the checkpoint cannot be used.
    """
    from pinn.kernels.tables.table import SYSTEMS

    kernels = {load_gpu(system).name: "kernels" for system in SYSTEMS}
    return kernels | dict.fromkeys(served_gpus(checkpoint), "kernels, servers")


def _served(checkpoint: Path) -> list[str]:
    from pinn.surrogate.checkpoint import load_checkpoint

    names = [name.rpartition(" on ") for name in load_checkpoint(checkpoint).anchor_names]
    return sorted({gpu for _, _, gpu in names})


# Distances for commands: the surrogates that belong to a checkpoint, answers kept on disk.
#
# Loading what knows the measured kernels takes longer than a simulation, so its answer is
# remembered.


def locate(
    checkpoint: Path, deployment: Deployment, batch: str = REFERENCE_BATCH
) -> KernelDistance:
    """How far a step of a deployment lies from the kernels that a checkpoint learned from.

    Raises:
        PinnError: If there are no kernel surrogates, or the batch cannot be read.
    """
    return locate_each(checkpoint, deployment, [batch])[0]


def locate_each(
    checkpoint: Path, deployment: Deployment, batches: Sequence[str]
) -> list[KernelDistance]:
    """How far steps of a deployment lie from the kernels that a checkpoint learned from.

    Raises:
        PinnError: If there are no kernel surrogates, or the batch cannot be read.
    """
    folder = files.find_kernels(None, checkpoint)
    if folder is None:
        raise PinnError(
            "no kernel surrogates beside the checkpoint, so its distance from the data is unknown: "
            "fit them with 'python train.py kernels=on'"
        )
    # The JSON file holds the hash of the file beside it.
    found = remembered_value(_distances, folder / "kernels.json", deployment, list(batches))
    return [KernelDistance(**each) for each in found]


def outside_inputs(checkpoint: Path, deployment: Deployment) -> dict[str, float]:
    """Inputs beyond a checkpoint's training range, in standard deviations, farthest first.

    Raises:
        PinnError: If the checkpoint cannot be used.
    """
    return remembered_value(_outside, checkpoint, deployment)


def _distances(kernels: Path, deployment: Deployment, batches: list[str]) -> list[dict[str, Any]]:
    from pinn.kernels.surrogates import KernelSurrogates  # imports torch
    from pinn.surrogate.uncertainty.held_out import kernel_distance

    surrogates = KernelSurrogates.load(kernels.parent)
    return [vars(kernel_distance(surrogates, deployment, batch)) for batch in batches]


def _outside(checkpoint: Path, deployment: Deployment) -> dict[str, float]:
    from pinn.surrogate.checkpoint import load_checkpoint
    from pinn.surrogate.uncertainty.training_space import training_space

    space = training_space(load_checkpoint(checkpoint))
    return space.locate([deployment]).outside_names(0)
