"""Intervals of a server whose coefficients are known, without a server."""

import numpy as np
from assumed_priors import prior_coefficients

from pinn.calibration.calibrate import Intervals
from pinn.engines.configurations import make_deployment
from pinn.physics.batch_sums import uniform_sums
from pinn.physics.costs import step_costs
from pinn.surrogate.step_features import overlapped, step_features

BASE = prior_coefficients(1).beta[0]


def deployment():
    return make_deployment({"model": "meta-llama/Llama-3.1-8B", "gpu": "H100"})


def intervals(beta: np.ndarray, count: int = 400, noise: float = 0.0, seed: int = 0) -> Intervals:
    """Return windows of ten steps at random loads, of which the first 60 % are the first part."""
    draw = np.random.default_rng(seed)
    decodes = draw.integers(1, 128, count).astype(float)
    context = draw.uniform(100, 4000, count)
    prefills = draw.integers(0, 3, count).astype(float)
    sums = uniform_sums(
        decode_requests=decodes,
        decode_context=context,
        prefill_requests=prefills,
        prefill_tokens=draw.integers(16, 2048, count).astype(float),
        prefill_cached=np.zeros(count),
        window=None,
    )
    features = overlapped(step_features(step_costs([deployment()]), sums), BASE)
    seconds = features @ beta * np.exp(noise * draw.standard_normal(count))
    return Intervals(
        features=features,
        seconds=seconds,
        steps=np.full(count, 10.0),
        row=np.arange(count),
        part=np.digitize(np.arange(count) / count, (0.6, 0.8)),
        sums=sums,
    )
