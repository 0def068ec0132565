"""The released network: taught by composed steps, and by what runs say of their models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from pinn.embedding.descriptors import embed
from pinn.features.step import step_features
from pinn.network.coefficient_network import CoefficientNetwork
from pinn.physics.costs import step_costs
from pinn.specs.deployment import Deployment
from pinn.teacher.batches import sample_batches
from pinn.teacher.composed import ComposedSteps
from pinn.training.distillation import DistillationRows, distillation_rows
from pinn.training.kernel_learner import KernelLearner
from pinn.training.run_scalars import RunFit

#: How often a deployment that ran occurs among the thousands of composed ones, each time with
#: other batches: often enough that the network reproduces its steps closely.
REPEATS = 300

#: Log of the factor that makes an alpha vanish which is 0 in a simulation.
_VANISHED = -20.0


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


def distil_release(
    learner: KernelLearner,
    steps: ComposedSteps,
    fit: RunFit,
    deployments: Sequence[Deployment],
    betas: Float[np.ndarray, "n features"],
    folder: Path,
) -> CoefficientNetwork:
    """Teach the network the shared scalars everywhere and the departures where they were measured.

    Args:
        learner: Settings of network, distillation and trainer.
        steps: Composed steps of synthetic and known deployments.
        fit: What runs taught; its alpha becomes the network's.
        deployments: What ran.
        betas: Their coefficients under the fit.
        folder: Of logs and of the state to resume from.
    """
    composed = distillation_rows(steps, fit.scalars)
    measured = measured_steps(list(deployments), betas, learner.seed + 1)
    pairs = zip(composed, measured, strict=True)
    rows = DistillationRows(*(torch.cat(pair) for pair in pairs))
    network = learner.distil(rows, folder)
    _set_alpha(network, fit.alpha)
    return network


def _set_alpha(network: CoefficientNetwork, alpha: Float[np.ndarray, " request_features"]) -> None:
    """Give the network an alpha; one whose prior is 0 stays 0."""
    wanted, prior = torch.tensor(alpha), network.alpha_prior
    known = (prior > 0) & (wanted > 0)
    ratio = torch.where(known, wanted / torch.where(prior > 0, prior, 1.0), 1.0)
    base = torch.where((prior > 0) & (wanted == 0), _VANISHED, torch.log(ratio))
    with torch.no_grad():
        network.alpha_base.copy_(base)
