"""What ``scripts/score_calibration.py`` scores: public steps, deployments, serving runs."""

from __future__ import annotations

from pathlib import Path

from pinn.coefficients.surrogate import Surrogate
from pinn.common.files import find_checkpoint
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.server.calibration.prior import Prior, checkpoint_prior


def prior_of(deployment: Deployment, network: Path | None = None) -> Prior:
    """The checkpoint's own prior of a deployment, around another network's coefficients if given.

    Raises:
        PinnError: If the checkpoint has no intervals.
    """
    checkpoint = find_checkpoint(None)
    coefficients = Surrogate.load(network or checkpoint).coefficients([deployment])
    prior, missing = checkpoint_prior(checkpoint, deployment, coefficients)
    if missing:
        raise PinnError(missing)
    return prior
