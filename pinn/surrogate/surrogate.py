"""Surrogate: a checkpoint that predicts coefficients of deployments and step times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from pinn.engines.deployment import Deployment
from pinn.physics.batch_sums import sum_batches
from pinn.specs.batch import Batch
from pinn.surrogate.checkpoint import Checkpoint, load_checkpoint
from pinn.surrogate.coefficients import Coefficients
from pinn.surrogate.deployment_features import deployment_floor_seconds, padded_features
from pinn.surrogate.featurizer import featurize
from pinn.surrogate.step_features import step_time

# A surrogate predicts the coefficients of deployments, and from these the times of steps in
# seconds.


@runtime_checkable
class Network(Protocol):
    """Interface of a network that predicts coefficients, whether trained or in training."""

    def coefficients(
        self, free: Float[np.ndarray, "n descriptors"], rates: Float[np.ndarray, "n rates"]
    ) -> tuple[Float[np.ndarray, "n beta"], Float[np.ndarray, "n alpha"]]:
        """Return beta and alpha of ``n`` deployments from their features and log rates."""


def predict_coefficients(network: Network, deployments: Sequence[Deployment]) -> Coefficients:
    """Return the coefficients that a network predicts for deployments, in float64."""
    return Coefficients(*network.coefficients(*featurize(deployments)))


class Surrogate:
    """Trained network that is ready to predict.

    Attributes:
        checkpoint: Checkpoint with the network and its metadata.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    @classmethod
    def load(cls, path: str | Path) -> Surrogate:
        """Return the surrogate of a checkpoint file.

        Raises:
            PinnError: If the file is missing, truncated, or not a checkpoint of this version.
        """
        return cls(load_checkpoint(path))

    def coefficients(self, deployments: Sequence[Deployment]) -> Coefficients:
        """Return the coefficients that the network predicts for ``n`` deployments."""
        return predict_coefficients(self.checkpoint.network, deployments)

    def taught_alphas(self) -> Bool[np.ndarray, " alpha"]:
        """Return whether each request coefficient (alpha) was fitted to data; false for priors.

        The network stores log(alpha / prior). If this is exactly 0, alpha was never fitted.
        """
        return self.checkpoint.network.arrays["alpha_base"] != 0


def batch_seconds(
    beta: Float[np.ndarray, " features"], deployment: Deployment, batches: Sequence[Batch]
) -> Float[np.ndarray, " batches"]:
    """Return the step time of each batch in seconds, including drafting and verifying."""
    return step_time(batch_features(deployment, batches), beta)


def batch_features(
    deployment: Deployment, batches: Sequence[Batch]
) -> Float[np.ndarray, "batches features"]:
    """Return the step features of each batch as the engine runs it, with padding and drafts."""
    sums = sum_batches(batches, deployment.model.window_tokens)
    return padded_features(deployment, sums)


def batch_floor_seconds(
    deployment: Deployment, batches: Sequence[Batch]
) -> Float[np.ndarray, " batches"]:
    """Return the roofline lower bound of each batch on one deployment, in seconds."""
    sums = sum_batches(batches, deployment.model.window_tokens)
    return deployment_floor_seconds(deployment, sums)
