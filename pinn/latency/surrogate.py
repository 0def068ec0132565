"""The surrogate: a checkpoint that turns deployments into coefficients and steps into seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from pinn.coefficients.coefficients import Coefficients
from pinn.embedding.descriptors import embed
from pinn.features.step import step_features
from pinn.network.checkpoint import Checkpoint, load_checkpoint
from pinn.network.coefficient_network import CoefficientNetwork
from pinn.physics.batch_sums import BatchSums, sum_batches
from pinn.physics.costs import StepCosts, step_costs
from pinn.physics.floor import floor_seconds
from pinn.specs.batch import Batch
from pinn.specs.deployment import Deployment


def predict_coefficients(
    network: CoefficientNetwork, deployments: Sequence[Deployment]
) -> Coefficients:
    """Coefficients of deployments, in float64."""
    free, rates = embed(deployments)
    with torch.no_grad():
        beta, alpha = network(torch.from_numpy(free), torch.from_numpy(rates))
    return Coefficients(beta.double().numpy(), alpha.double().numpy())


def step_seconds(
    beta: Float[np.ndarray, "... features"], costs: StepCosts, sums: BatchSums
) -> Float[np.ndarray, "..."]:
    """Step time: beta . features."""
    return (step_features(costs, sums) * beta).sum(-1)


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

    def taught_alphas(self) -> np.ndarray:
        """Whether data taught each alpha; the others are their priors.

        A base at exactly 0 never had a gradient, and a prior of 0 stays 0 whatever is learned.
        """
        network = self.checkpoint.network
        return ((network.alpha_base != 0) & (network.alpha_prior != 0)).numpy()

    def step_seconds(
        self, deployment: Deployment, batches: Sequence[Batch]
    ) -> Float[np.ndarray, " batches"]:
        """Step time of each batch on one deployment."""
        beta = self.coefficients([deployment]).beta[0]
        return step_seconds(beta, *batch_work(deployment, batches))


def batch_work(deployment: Deployment, batches: Sequence[Batch]) -> tuple[StepCosts, BatchSums]:
    """Costs of shape ``[1]`` and sums of shape ``[batches]`` of one deployment's batches."""
    return step_costs([deployment]), sum_batches(batches, deployment.model.window_tokens)


def batch_floor_seconds(
    deployment: Deployment, batches: Sequence[Batch]
) -> Float[np.ndarray, " batches"]:
    """Physical floor of each batch on one deployment."""
    return floor_seconds(*batch_work(deployment, batches))
