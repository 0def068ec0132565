"""The coefficients of a deployment for a simulation: from a file, or from a checkpoint.

A checkpoint's answer is remembered on disk, because loading the network takes longer than the
simulation.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pinn.coefficients.coefficient_set import read_coefficient_set
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.deployment import Deployment
from pinn.specs.files.store import remembered_value


def latency_from_json(deployment: Deployment, path: Path) -> LinearLatency:
    """Coefficients of a file of ``pinn coefficients --json`` or ``pinn calibrate``.

    Raises:
        PinnError: If the file cannot be used, or belongs to another deployment.
    """
    found = read_coefficient_set(path)
    found.check_deployment(deployment, str(path))
    return LinearLatency(deployment, found.beta, found.alpha)


def latency_from_checkpoint(deployment: Deployment, checkpoint: Path) -> LinearLatency:
    """Coefficients that a checkpoint gives a deployment.

    Raises:
        PinnError: If the checkpoint cannot be used.
    """
    found = remembered_value(_coefficients, deployment, checkpoint)
    return LinearLatency(deployment, np.array(found["beta"]), np.array(found["alpha"]))


def _coefficients(deployment: Deployment, checkpoint: Path) -> dict[str, list[float]]:
    from pinn.coefficients.surrogate import Surrogate

    found = Surrogate.load(checkpoint).coefficients([deployment])
    return {"beta": found.beta[0].tolist(), "alpha": found.alpha[0].tolist()}
