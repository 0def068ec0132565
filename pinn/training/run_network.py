"""What runs teach the network beside composed steps: the steps of what ran, and alpha."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

from pinn.embedding.descriptors import embed
from pinn.features.step import step_features
from pinn.network.coefficient_network import CoefficientNetwork
from pinn.physics.costs import step_costs
from pinn.specs.deployment import Deployment
from pinn.teacher.batches import sample_batches
from pinn.training.distillation import DistillationRows

#: How often a deployment that ran occurs among the thousands of composed ones, each time with
#: other batches: often enough that the network reproduces its steps closely.
REPEATS = 300


def measured_steps(
    deployments: Sequence[Deployment], betas: Float[np.ndarray, "n features"], seed: int
) -> DistillationRows:
    """Steps of measured deployments by their own coefficients, ``REPEATS`` draws of batches each.

    Args:
        deployments: What was measured.
        betas: Of each.
        seed: Of the batches.
    """
    free, rates = embed(deployments)
    costs = step_costs(deployments)
    index = np.repeat(np.arange(len(deployments)), REPEATS)
    features = np.stack(
        [
            step_features(
                costs.take(i),
                sample_batches(seed + draw).sums(deployments[i].model.window_tokens),
            )
            for draw, i in enumerate(index.tolist())
        ]
    )
    seconds = np.einsum("mnf,mf->mn", features, betas[index])
    return DistillationRows(
        torch.tensor(free[index]),
        torch.tensor(rates[index]),
        torch.tensor(features, dtype=torch.float32),
        torch.tensor(seconds, dtype=torch.float32),
    )


def set_alpha(network: CoefficientNetwork, alpha: Float[np.ndarray, " request_features"]) -> None:
    """Give the network an alpha; one whose prior is 0 stays 0."""
    wanted, prior = torch.tensor(alpha), network.alpha_prior
    known = (prior > 0) & (wanted > 0)
    ratio = torch.where(known, wanted / torch.where(prior > 0, prior, 1.0), 1.0)
    with torch.no_grad():
        network.alpha_base.copy_(torch.log(ratio))
