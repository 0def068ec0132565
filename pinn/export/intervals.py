"""Intervals of exported coefficients, where a checkpoint's calibration tells them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float

from pinn.coefficients.coefficients import NAMES
from pinn.coefficients.surrogate import Surrogate
from pinn.errors import PinnError
from pinn.export.configured import Configured
from pinn.kernels.search import find_kernels
from pinn.physics.step import STEP_FEATURES
from pinn.specs.files.progress import counted
from pinn.trust.calibration import read_calibration
from pinn.trust.distance import REFERENCE_BATCH
from pinn.trust.known import gpu_is_known
from pinn.trust.spread_parts import spread_parts


def find_intervals(
    configured: Configured, checkpoint: Path
) -> Float[np.ndarray, "2 n coefficients"]:
    """Low and high ends of the intervals of coefficients, betas first, then alphas.

    NaN where none is known: of rows that do not come from the network, and of alphas that no data
    taught. Takes some 30 ms for each row, since every row's kernels are compared with the measured
    ones.

    Args:
        configured: Configurations with coefficients.
        checkpoint: File of the network; its intervals and kernel surrogates lie beside it.

    Raises:
        PinnError: If the checkpoint has no intervals of its own, or no kernel surrogates.
    """
    calibration = read_calibration(checkpoint)
    folder = find_kernels(None, checkpoint)
    if folder is None:
        raise PinnError("no kernel surrogates beside the checkpoint: fit them with kernels=on")
    from pinn.kernels.surrogates import KernelSurrogates  # imports torch
    from pinn.trust.described import Step, situation

    kernels = KernelSurrogates.load(folder)
    taught = np.append([True] * len(STEP_FEATURES), Surrogate.load(checkpoint).taught_alphas())
    given = configured.coefficients
    values = np.concatenate([given.beta, given.alpha], axis=1)
    ends = np.full((2, *values.shape), np.nan)
    for row, deployment in enumerate(counted(configured.deployments, "intervals of row")):
        if configured.sources[row] == "network":
            known = gpu_is_known(checkpoint, deployment)
            parts = spread_parts(situation(kernels, Step(deployment, REFERENCE_BATCH, known)))
            for i in np.flatnonzero(taught):
                value = float(values[row, i])
                ends[:, row, i] = calibration.coefficient_interval(NAMES[i], value, parts)
    return ends
