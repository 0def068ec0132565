"""The alpha head: differences of request times between deployments are found, and shrunk."""

from dataclasses import replace

import numpy as np
import pytest
from serving_cases import with_times

from pinn.surrogate.architecture import NetworkSettings, NetworkWeights
from pinn.surrogate.featurizer import featurize, fit_scale
from pinn.surrogate.network import CoefficientNetwork
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.surrogate import predict_coefficients
from pinn.training.alpha_head import (
    AlphaHeadSettings,
    Latencies,
    fit_alpha_head,
    most_probable_head,
)
from pinn.training.serving_rows import simulate_rows

_ALPHAS = len(REQUEST_FEATURES)
#: Alphas of the time before a request's first token: the constant of its arrival.
_EARLY = [list(REQUEST_FEATURES).index("arrival_to_queue.constant")]


def made_up(seed, models=40, features=3):
    """Return latencies of which the first alpha doubles per unit of the first feature."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(models, features))
    request = rng.uniform(0.002, 0.02, (models, _ALPHAS))
    other = rng.uniform(0.02, 0.1, models)
    factors = np.ones((models, _ALPHAS))
    factors[:, 0] = 2 ** x[:, 0]
    measured = other + (request * factors).sum(axis=1)
    return Latencies(request, other, measured, x, np.ones(models))


def test_a_feature_that_doubles_an_alpha_is_found():
    settings = AlphaHeadSettings(spread=1.0, noise=1e-3, outlier=1.0)
    head = most_probable_head([made_up(0)], settings)
    assert head[0, 0] == pytest.approx(np.log(2), rel=0.02)
    assert np.abs(np.delete(head.ravel(), 0)).max() < 0.05


def test_a_narrow_prior_keeps_the_head_near_zero_and_a_spread_of_zero_at_it():
    sizes = [
        np.abs(most_probable_head([made_up(0)], AlphaHeadSettings(spread=spread))).max()
        for spread in (0.0, 0.01, 0.1)
    ]
    assert sizes[0] == 0 < sizes[1] < 0.02 < sizes[2]


def test_repeated_latencies_of_one_model_count_once():
    one, settings = made_up(0, models=6), AlphaHeadSettings(spread=0.1)
    names = ("request_s", "other_s", "measured_s", "features", "weight")
    twice = replace(one, **{n: np.concatenate([getattr(one, n)] * 2) for n in names})
    halved = replace(twice, weight=twice.weight / 2)
    expected = most_probable_head([one], settings)
    np.testing.assert_allclose(most_probable_head([halved], settings), expected, atol=1e-6)


def test_a_model_with_longer_request_times_gets_larger_alphas(rows):
    """Check TTFTs simulated with three times the shared alpha for one model, once for another."""
    plain = CoefficientNetwork(NetworkSettings(), fit_scale(*featurize(rows.deployments))).weights()
    found = predict_coefficients(plain, rows.deployments)
    slow = np.array(["Llama" in d.model.name for d in rows.deployments])
    alpha = found.alpha * np.where(slow, 3.0, 1.0)[:, None]
    seen = with_times(rows, *simulate_rows(rows, found.beta, alpha))
    head = fit_alpha_head(plain, seen, (), AlphaHeadSettings(spread=1.0, noise=0.001, outlier=1.0))
    again = replace_head(plain, head).coefficients(*featurize(rows.deployments))[1]
    total = again[:, _EARLY].sum(axis=1) / found.alpha[:, _EARLY].sum(axis=1)
    assert total[slow].min() > 2
    assert total[~slow].max() < 1.2


def replace_head(weights, head):
    return NetworkWeights(weights.settings, weights.arrays | {"alpha_head": head})
