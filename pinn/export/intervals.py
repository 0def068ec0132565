"""Intervals of exported coefficients, where a checkpoint's calibration tells them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float

from pinn.coefficients.coefficients import NAMES
from pinn.coefficients.surrogate import Surrogate
from pinn.export.configured import Configured
from pinn.physics.step import STEP_FEATURES
from pinn.trust.calibration import read_calibration
from pinn.trust.known import gpu_is_known


def find_intervals(
    configured: Configured, checkpoint: Path
) -> Float[np.ndarray, "2 n coefficients"]:
    """Low and high ends of the intervals of coefficients, betas first, then alphas.

    NaN where none is known: of rows that do not come from the network, and of alphas that no data
    taught.

    Args:
        configured: Configurations with coefficients.
        checkpoint: File of the network; its intervals lie beside it.

    Raises:
        PinnError: If the checkpoint has no intervals of its own.
    """
    calibration = read_calibration(checkpoint)
    taught = np.append([True] * len(STEP_FEATURES), Surrogate.load(checkpoint).taught_alphas())
    given = configured.coefficients
    values = np.concatenate([given.beta, given.alpha], axis=1)
    ends = np.full((2, *values.shape), np.nan)
    for row, deployment in enumerate(configured.deployments):
        if configured.sources[row] == "network":
            known = gpu_is_known(checkpoint, deployment)
            for i in np.flatnonzero(taught):
                value = float(values[row, i])
                ends[:, row, i] = calibration.coefficient_interval(NAMES[i], value, known)
    return ends
