from __future__ import annotations

import json

import pytest
from assumed_priors import prior_coefficients

from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES


@pytest.fixture
def coefficients(tmp_path):
    """A file of coefficients: the priors."""
    prior = prior_coefficients(1)
    values = {
        "beta": {n: {"value": v} for n, v in zip(STEP_FEATURES, prior.beta[0], strict=True)},
        "alpha": dict(zip(REQUEST_FEATURES, prior.alpha[0], strict=True)),
    }
    path = tmp_path / "coefficients.json"
    path.write_text(json.dumps(values))
    return path
