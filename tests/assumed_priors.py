"""Priors of steps alone, where no checkpoint tells."""

import numpy as np

from pinn.training.calibration.prior import NAMES, Prior, assumed_prior


def beta_prior(beta: np.ndarray) -> Prior:
    """The prior around step coefficients; nothing is known of requests."""
    return assumed_prior(np.concatenate([beta, np.zeros(len(NAMES) - len(beta))]))
