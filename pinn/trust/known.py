"""Which GPUs a checkpoint learned serving data of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pinn.specs.deployment import Deployment
from pinn.specs.files.store import remembered_value


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
    return list(remembered_value(_served, checkpoint)["gpus"])


def _served(checkpoint: Path) -> dict[str, Any]:
    from pinn.coefficients.checkpoint import load_checkpoint

    names = [name.rpartition(" on ") for name in load_checkpoint(checkpoint).anchor_names]
    return {"gpus": sorted({gpu for _, _, gpu in names})}
