"""Coefficients of a prior without a checkpoint."""

import numpy as np

from pinn.calibration.prior import NAMES, Prior, assumed_prior
from pinn.surrogate.coefficients import Coefficients
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES


def beta_prior(beta: np.ndarray) -> Prior:
    """The prior around step coefficients; nothing is known of requests."""
    return assumed_prior(np.concatenate([beta, np.zeros(len(NAMES) - len(beta))]))


def prior_coefficients(n: int) -> Coefficients:
    """The physical priors alone, for ``n`` deployments."""
    beta = np.array([f.prior for f in STEP_FEATURES.values()])
    alpha = np.array([f.prior for f in REQUEST_FEATURES.values()])
    return Coefficients(np.tile(beta, (n, 1)), np.tile(alpha, (n, 1)))
