"""A checkpoint's own uncertainty as the prior of a calibration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float

from pinn.coefficients.coefficients import NAMES, Coefficients
from pinn.errors import PinnError
from pinn.physics.batch_sums import sum_batches
from pinn.physics.costs import step_costs
from pinn.physics.step import step_features
from pinn.specs.batch import parse_batch
from pinn.specs.deployment import Deployment
from pinn.training.calibration.prior import KnownSteps, Prior, assumed_prior
from pinn.trust.calibration import Calibration, read_calibration
from pinn.trust.conformal import NORMAL_QUANTILE
from pinn.trust.step_interval import step_half_width

#: Steps whose intervals the prior keeps: decodes, which TPOT taught, and a prompt, which TTFT did.
STEPS = ("32 decode @ 700", "1 prefill 2048 @ 0")


def checkpoint_prior(
    checkpoint: Path, deployment: Deployment, coefficients: Coefficients
) -> tuple[Prior, str | None]:
    """The prior of a deployment's coefficients, and why it is an assumption where it is one.

    Args:
        checkpoint: The network; its intervals lie beside it.
        deployment: What is calibrated.
        coefficients: Its coefficients before.
    """
    mean = np.concatenate([coefficients.beta[0], coefficients.alpha[0]])
    try:
        found = read_calibration(checkpoint)
        half = [step_half_width(found, checkpoint, deployment, step) for step in STEPS]
    except PinnError as error:
        return assumed_prior(mean), str(error)
    return prior_from_intervals(mean, found, deployment, half), None


def prior_from_intervals(
    mean: Float[np.ndarray, " coefficients"],
    found: Calibration,
    deployment: Deployment,
    half: list[float],
) -> Prior:
    """A prior where the half-widths of ``STEPS`` are known."""
    own = np.array([found.coefficients[name] for name in NAMES]) / NORMAL_QUANTILE
    batches = [parse_batch(step) for step in STEPS]
    sums = sum_batches(batches, deployment.model.window_tokens)
    features = step_features(step_costs([deployment]), sums)
    return assumed_prior(mean, own, KnownSteps(features, np.array(half) / NORMAL_QUANTILE))
