"""Both forms of the network agree: numpy, which predicts, and torch, which trains."""

import numpy as np
import pytest
import torch

from pinn.common.files import find_checkpoint
from pinn.surrogate.architecture import NetworkSettings, NetworkWeights
from pinn.surrogate.checkpoint import load_checkpoint
from pinn.surrogate.featurizer import DESCRIPTORS, RATES, fit_scale
from pinn.surrogate.network import CoefficientNetwork

_ROWS = 200


def embedded(seed, spread=1.0):
    rng = np.random.default_rng(seed)
    free = rng.normal(5, 5 * spread, (_ROWS, len(DESCRIPTORS)))
    return free, rng.normal(0, spread, (_ROWS, len(RATES)))


def random_network(seed, settings):
    """Return weights that reach the bounds of some corrections and not of others."""
    torch.manual_seed(seed)
    network = CoefficientNetwork(settings, fit_scale(*embedded(seed))).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += torch.randn_like(parameter) / parameter.shape[-1] ** 0.5
    return network


def assert_same(network, trained, free, rates):
    with torch.no_grad():
        expected = network(torch.from_numpy(free), torch.from_numpy(rates))
    for found, wanted in zip(trained.coefficients(free, rates), expected, strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "settings",
    [NetworkSettings(), NetworkSettings(hidden=5, depth=1), NetworkSettings(corrected=False)],
)
def test_random_networks_agree_inside_and_outside_their_range(settings, seed):
    network = random_network(seed, settings)
    for spread in (0.5, 3.0):
        assert_same(network, network.weights(), *embedded(seed + 10, spread))


def test_beyond_the_training_range_coefficients_are_those_of_its_nearest_point():
    trained = load_checkpoint(find_checkpoint()).network
    scale, (free, rates) = trained.input_scale, embedded(0, 3.0)
    low, high = (scale.mean + scale.scale * end for end in (scale.low, scale.high))
    nearest = np.clip(free, low, high), np.clip(rates, scale.rate_low, scale.rate_high)
    assert np.abs(free - nearest[0]).max(axis=1).min() > 0
    pairs = zip(trained.coefficients(free, rates), trained.coefficients(*nearest), strict=True)
    for found, wanted in pairs:
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_the_released_network_agrees():
    trained = load_checkpoint(find_checkpoint()).network
    scale = trained.input_scale
    for spread in (0.5, 2.0):
        free, rates = embedded(0)
        free = scale.mean + spread * scale.scale * (free - 5) / 5
        assert_same(CoefficientNetwork.from_weights(trained), trained, free, rates)


def test_each_form_is_made_of_the_other():
    network = random_network(0, NetworkSettings(hidden=6))
    trained = network.weights()
    again = CoefficientNetwork.from_weights(trained).state_dict()
    assert trained.arrays.keys() == again.keys() == network.state_dict().keys()
    for name, array in network.state_dict().items():
        np.testing.assert_array_equal(again[name].numpy(), array.numpy(), err_msg=name)
    assert NetworkWeights(trained.settings, trained.arrays).settings.hidden == 6


def test_later_training_does_not_change_what_was_trained():
    network = random_network(0, NetworkSettings(hidden=6))
    trained = network.weights()
    before = trained.arrays["beta_base"].copy()
    with torch.no_grad():
        network.beta_base += 1.0
    np.testing.assert_array_equal(trained.arrays["beta_base"], before)


def test_saturated_units_overflow_nowhere():
    network = random_network(0, NetworkSettings(hidden=6))
    with torch.no_grad():
        for parameter in network.trunk.parameters():
            parameter *= 1e4
    with np.errstate(all="raise", under="ignore"):
        beta, alpha = network.coefficients(*embedded(1))
    assert np.isfinite(beta).all()
    assert np.isfinite(alpha).all()
