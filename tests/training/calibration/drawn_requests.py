"""Requests of a server whose alpha is known, without a server."""

import numpy as np
from assumed_priors import prior_coefficients

from pinn.calibration.requests import PHASES, RequestRows
from pinn.surrogate.request_features import REQUEST_FEATURES, phase_mask, request_features
from pinn.surrogate.step_features import STEP_FEATURES

ALPHA = prior_coefficients(1).alpha[0]


def true_alpha(seed: int, least: float = 0.1, most: float = 0.5) -> np.ndarray:
    """Return alphas that differ from the priors by shares between two, up or down."""
    draw = np.random.default_rng(seed)
    sign = draw.choice([-1.0, 1.0], len(ALPHA))
    return ALPHA * (1 + sign * draw.uniform(least, most, len(ALPHA)))


def requests(alpha: np.ndarray, count: int = 300, stalls: float = 0.03, seed: int = 0):
    """Return requests that wait for short or long steps, or for none, some of them in a stall."""
    draw = np.random.default_rng(seed)
    long = draw.random(count) < 0.25
    in_flight = np.where(long, draw.uniform(0.02, 0.08, count), draw.uniform(0.006, 0.012, count))
    in_flight[draw.random(count) < 0.2] = 0.0
    features = request_features(np.exp(draw.uniform(4, 8, count)))
    targets = {}
    for phase in PHASES:
        seconds = features @ (alpha * phase_mask(phase)) * (1 + 0.1 * draw.standard_normal(count))
        if phase == "arrival_to_queue":
            seconds += in_flight * draw.random(count)
        targets[phase] = seconds + (draw.random(count) < stalls) * draw.exponential(0.05, count)
    never = np.zeros(count, bool)
    return RequestRows(
        features,
        {"arrival_to_queue": in_flight, "schedule_to_first_token": in_flight},
        np.zeros((count, len(STEP_FEATURES))),
        targets,
        np.digitize(np.arange(count) / count, (0.6, 0.8)),
        never,
        never,
    )


def index(name: str) -> int:
    """Return the place of an alpha."""
    return list(REQUEST_FEATURES).index(name)
