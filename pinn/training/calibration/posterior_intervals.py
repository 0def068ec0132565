"""Intervals of a calibrated server: its posterior, and what no coefficient explains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from pinn.coefficients.coefficient_set import CoefficientSet
from pinn.coefficients.coefficients import NAMES
from pinn.errors import PinnError
from pinn.physics.batch_sums import sum_batches
from pinn.physics.costs import step_costs
from pinn.physics.step import step_features
from pinn.specs.batch import parse_batch
from pinn.specs.deployment import Deployment
from pinn.training.calibration.figure_noise import TIME_NOISE, TTFT_NOISE
from pinn.training.calibration.posterior import relative_spread
from pinn.training.calibration.scalars import LOWER_BOUNDS
from pinn.trust.conformal import NORMAL_QUANTILE


def posterior_step_half_widths(
    found: CoefficientSet, deployment: Deployment, batches: Sequence[str]
) -> Float[np.ndarray, " batches"]:
    """Log half-widths of steps by a file's posterior.

    Args:
        found: With a covariance.
        deployment: What the steps run on.
        batches: As written on the command line.
    """
    parsed = [parse_batch(text) for text in batches]
    sums = sum_batches(parsed, deployment.model.window_tokens)
    features = step_features(step_costs([deployment]), sums)
    padded = np.pad(features, ((0, 0), (0, len(NAMES) - features.shape[1])))
    mean = np.concatenate([found.beta, found.alpha])
    spread = relative_spread(padded, mean, _covariance(found))
    noise = [TTFT_NOISE if any(batch.is_prefill) else TIME_NOISE for batch in parsed]
    return NORMAL_QUANTILE * np.hypot(spread, noise)


def posterior_coefficient_ends(found: CoefficientSet) -> Float[np.ndarray, "2 coefficients"]:
    """Low and high ends of every coefficient; NaN where the file has no variance.

    None lies below what the datasheet allows.
    """
    mean = np.concatenate([found.beta, found.alpha])
    half = NORMAL_QUANTILE * np.sqrt(np.diag(_covariance(found)))
    ends = np.stack([np.maximum(mean - half, np.minimum(LOWER_BOUNDS, mean)), mean + half])
    return np.where(half > 0, ends, np.nan)


def _covariance(found: CoefficientSet) -> Float[np.ndarray, "coefficients coefficients"]:
    if found.covariance is None:
        raise PinnError(
            "these coefficients have no covariance, which 'pinn calibrate' writes: take the "
            "network's intervals"
        )
    return found.covariance
