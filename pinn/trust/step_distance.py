"""Distances for commands: the surrogates that belong to a checkpoint, answers kept on disk.

Loading what knows the measured kernels takes longer than a simulation, so its answer is remembered.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pinn.errors import PinnError
from pinn.kernels.search import find_kernels
from pinn.specs.deployment import Deployment
from pinn.specs.files.store import remembered_value
from pinn.trust.distance import REFERENCE_BATCH, KernelDistance


def locate(
    checkpoint: Path, deployment: Deployment, batch: str = REFERENCE_BATCH
) -> KernelDistance:
    """How far a step of a deployment lies from the kernels that a checkpoint learned from.

    Raises:
        PinnError: If there are no kernel surrogates, or the batch cannot be read.
    """
    folder = find_kernels(None, checkpoint)
    if folder is None:
        raise PinnError(
            "no kernel surrogates beside the checkpoint, so its distance from the data is unknown: "
            "fit them with 'python train.py kernels=on'"
        )
    # The JSON file holds the hash of the file beside it.
    return KernelDistance(**remembered_value(_distance, folder / "kernels.json", deployment, batch))


def outside_inputs(checkpoint: Path, deployment: Deployment) -> dict[str, float]:
    """Inputs beyond a checkpoint's training range, in standard deviations, farthest first.

    Raises:
        PinnError: If the checkpoint cannot be used.
    """
    return remembered_value(_outside, checkpoint, deployment)


def _distance(kernels: Path, deployment: Deployment, batch: str) -> dict[str, Any]:
    from pinn.kernels.surrogates import KernelSurrogates  # imports torch
    from pinn.trust.kernel_distance import kernel_distance

    return vars(kernel_distance(KernelSurrogates.load(kernels.parent), deployment, batch))


def _outside(checkpoint: Path, deployment: Deployment) -> dict[str, float]:
    from pinn.coefficients.checkpoint import load_checkpoint
    from pinn.coefficients.distance import training_space

    space = training_space(load_checkpoint(checkpoint))
    return space.locate([deployment]).outside_names(0)
