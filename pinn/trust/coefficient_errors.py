"""How much coefficients change when a group's own kernels and rows become known.

The networks of the folds are an ensemble, each without one model or GPU (a delete-group
jackknife). For a left-out deployment a fold's network gives the coefficients that an unseen one
would get; the network of everything gives what they are once the group is known. No measurement
tells a single coefficient, so this is what its interval can be calibrated on: it holds what leaving
out kernels and rows does, not what the features themselves leave out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.coefficients.checkpoint import load_checkpoint
from pinn.coefficients.coefficients import NAMES
from pinn.coefficients.surrogate import predict_coefficients
from pinn.coefficients.trained_network import TrainedNetwork
from pinn.errors import PinnError
from pinn.specs.deployment import Deployment
from pinn.trust.described import shape_of


@dataclass(frozen=True)
class FoldNetwork:
    """What a fold learned, and whom it has never seen.

    Attributes:
        split: Kind of split.
        left_out: Deployments that were left out.
        checkpoint: The fold's network.
    """

    split: str
    left_out: tuple[Deployment, ...]
    checkpoint: Path


def coefficient_changes(checkpoint: Path, folds: Sequence[FoldNetwork]) -> pd.DataFrame:
    """Log changes of every coefficient of left-out deployments.

    Args:
        checkpoint: The network of everything.
        folds: Of the same recipe.

    Returns:
        Columns ``split``, ``model``, ``shape``, ``gpu`` and ``NAMES``, one row per split and
        deployment; coefficients that are 0 have change 0.

    Raises:
        PinnError: If a fold's weights are missing.
    """
    network = load_checkpoint(checkpoint).network
    parts = []
    for fold in folds:
        if not fold.checkpoint.is_file():
            raise PinnError(f"no weights of the fold at {fold.checkpoint}: run the experiment")
        without = load_checkpoint(fold.checkpoint).network
        changes = _changes(without, network, fold.left_out)
        about = pd.DataFrame(
            {
                "split": fold.split,
                "model": [d.model.name for d in fold.left_out],
                "shape": [shape_of(d.model) for d in fold.left_out],
                "gpu": [d.gpu.name for d in fold.left_out],
            }
        )
        parts.append(pd.concat([about, pd.DataFrame(changes, columns=list(NAMES))], axis=1))
    return pd.concat(parts, ignore_index=True)


def _changes(
    without: TrainedNetwork, network: TrainedNetwork, deployments: Sequence[Deployment]
) -> Float[np.ndarray, "deployments coefficients"]:
    before, after = (_coefficients(found, deployments) for found in (without, network))
    both = (before > 0) & (after > 0)
    return np.log(np.where(both, after, 1.0) / np.where(both, before, 1.0))


def _coefficients(
    network: TrainedNetwork, deployments: Sequence[Deployment]
) -> Float[np.ndarray, "deployments coefficients"]:
    found = predict_coefficients(network, deployments)
    return np.concatenate([found.beta, found.alpha], axis=1)
