"""The surrogate: a checkpoint that turns deployments into coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from pinn.engines.deployment import Deployment
from pinn.physics.batch_sums import BatchSums, sum_batches
from pinn.physics.costs import StepCosts, step_costs
from pinn.specs.batch import Batch
from pinn.surrogate.checkpoint import Checkpoint, load_checkpoint
from pinn.surrogate.coefficients import Coefficients
from pinn.surrogate.deployment_features import deployment_features, deployment_floor_seconds
from pinn.surrogate.featurizer import featurize
from pinn.surrogate.step_features import step_features, step_time

# The surrogate: a checkpoint that turns deployments into coefficients and steps into seconds.


@runtime_checkable
class Network(Protocol):
    """A trained network, or one in training."""

    def coefficients(
        self, free: Float[np.ndarray, "n descriptors"], rates: Float[np.ndarray, "n rates"]
    ) -> tuple[Float[np.ndarray, "n beta"], Float[np.ndarray, "n alpha"]]:
        """Beta and alpha of ``n`` embedded deployments."""


def predict_coefficients(network: Network, deployments: Sequence[Deployment]) -> Coefficients:
    """Coefficients of deployments, in float64."""
    return Coefficients(*network.coefficients(*featurize(deployments)))


def step_seconds(
    beta: Float[np.ndarray, "... features"], costs: StepCosts, sums: BatchSums
) -> Float[np.ndarray, "..."]:
    """Step time: beta . features, launching overlapped (``step_time``)."""
    return step_time(step_features(costs, sums), beta)


class Surrogate:
    """A trained network ready to predict.

    Attributes:
        checkpoint: What it was loaded from.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    @classmethod
    def load(cls, path: str | Path) -> Surrogate:
        """Load from a checkpoint file.

        Raises:
            PinnError: If the file cannot be used.
        """
        return cls(load_checkpoint(path))

    def coefficients(self, deployments: Sequence[Deployment]) -> Coefficients:
        """Coefficients of ``n`` deployments."""
        return predict_coefficients(self.checkpoint.network, deployments)

    def taught_alphas(self) -> Bool[np.ndarray, " alpha"]:
        """Whether data taught each alpha; the others are their priors.

        A base at exactly 0 never had a gradient.
        """
        return self.checkpoint.network.arrays["alpha_base"] != 0


def batch_work(deployment: Deployment, batches: Sequence[Batch]) -> tuple[StepCosts, BatchSums]:
    """Costs of shape ``[1]`` and sums of shape ``[batches]`` of one deployment's batches."""
    return step_costs([deployment]), sum_batches(batches, deployment.model.window_tokens)


def batch_seconds(
    beta: Float[np.ndarray, " features"], deployment: Deployment, batches: Sequence[Batch]
) -> Float[np.ndarray, " batches"]:
    """Step time of each batch on one deployment, drafting and verifying included."""
    sums = sum_batches(batches, deployment.model.window_tokens)
    return step_time(deployment_features(deployment, sums), beta)


def batch_floor_seconds(
    deployment: Deployment, batches: Sequence[Batch]
) -> Float[np.ndarray, " batches"]:
    """Physical floor of each batch on one deployment."""
    sums = sum_batches(batches, deployment.model.window_tokens)
    return deployment_floor_seconds(deployment, sums)
