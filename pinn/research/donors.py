"""The donors of the hierarchical pipeline: what their benchmarks teach a baseline."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.data.deployments import observed_deployment
from pinn.physics.batch_sums import BatchSums
from pinn.research.calibration.hierarchical import DONORS, fit_donors, shared_features
from pinn.research.load_bases import row_bases
from pinn.specs.deployment import Deployment


def donor_coefficients(observations: pd.DataFrame) -> Float[np.ndarray, " features"]:
    """Base and configuration coefficients of the donors among measured deployments.

    Args:
        observations: As ``pinn.data.table.read_observations`` gives them.

    Raises:
        PinnError: If no donor is among them.
    """
    chosen = [
        (row["model"], observed_deployment(row).gpu.name) in DONORS
        for _, row in observations.iterrows()
    ]
    donors = observations[chosen]
    if donors.empty:
        return fit_donors(np.zeros((0, 1)), np.zeros(0))
    return fit_donors(row_bases(donors, hierarchical_basis).tpot, donors["tpot_s"].to_numpy())


def hierarchical_basis(
    deployment: Deployment, sums: BatchSums, _: float
) -> Float[np.ndarray, "batches functions"]:
    """F_base and F_config of batches."""
    return shared_features(deployment, sums, deployment.recipe.token_budget)
