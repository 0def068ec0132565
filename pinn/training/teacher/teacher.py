"""The teacher: kernels, their composition and the scalars, projected per deployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pinn.kernels.composition import compose_many
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.costs import step_costs
from pinn.physics.step import step_features
from pinn.specs.deployment import Deployment
from pinn.training.teacher.batches import sample_batches
from pinn.training.teacher.projection import project
from pinn.training.teacher.scalars import Scalars


def projected_parts(
    kernels: KernelSurrogates, deployments: Sequence[Deployment], seed: int = 0
) -> Float[np.ndarray, "n operators features"]:
    """Betas of each part of ``n`` deployments' steps, fitted to 96 composed batches each."""
    costs = step_costs(deployments)
    batches = [sample_batches(seed + i) for i in range(len(deployments))]
    parts = compose_many(kernels, deployments, batches)
    return np.array(
        [
            project(step_features(costs.take(i), b.sums(d.model.window_tokens)), parts[i])
            for i, (d, b) in enumerate(zip(deployments, batches, strict=True))
        ]
    )


@dataclass(frozen=True)
class Teacher:
    """The slower, more exact path from a deployment to betas.

    Attributes:
        kernels: Operator surrogates.
        scalars: Multipliers and overheads that serving data set.
    """

    kernels: KernelSurrogates
    scalars: Scalars

    def betas(self, deployments: Sequence[Deployment]) -> Float[np.ndarray, "n features"]:
        """Betas of deployments."""
        return self.scalars.betas(projected_parts(self.kernels, deployments))
