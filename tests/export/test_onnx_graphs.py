"""ONNX equals torch, at batch sizes other than that of the export."""

from __future__ import annotations

import json

import hypothesis
import numpy as np
import onnx
import pytest
import strategies
import torch
from hypothesis import given
from onnx_sessions import onnx_sessions

from pinn.common.files import find_checkpoint
from pinn.export.onnx_graphs import OPSET, export_onnx
from pinn.surrogate.checkpoint import Checkpoint, load_checkpoint, registry
from pinn.surrogate.featurizer import DESCRIPTORS, RATES
from pinn.surrogate.network import CoefficientNetwork
from pinn.surrogate.step_features import LAUNCHING, STEP_FEATURES
from pinn.surrogate.step_features import step_time as numpy_step_time

_CASES = 10_000
_LARGEST_BYTES = 500_000


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """Return the released network and its graphs."""
    checkpoint = load_checkpoint(find_checkpoint())
    return checkpoint, onnx_sessions(checkpoint, tmp_path_factory.mktemp("onnx"))


def difference(got, wanted):
    return np.max(np.abs(got - wanted) / np.maximum(np.abs(wanted), 1e-300))


def test_ten_thousand_configurations_equal_torch(graphs):
    checkpoint, (coefficients, _) = graphs
    rng = np.random.default_rng(0)
    network = CoefficientNetwork.from_weights(checkpoint.network)
    for count in (1, 3, _CASES):
        free = network.mean.numpy() + 3 * network.scale.numpy() * rng.normal(
            size=(count, len(DESCRIPTORS))
        )
        rates = rng.normal(0, 1.5, (count, len(RATES)))
        alpha, beta = coefficients.run(None, {"descriptors": free, "rates": rates})
        with torch.no_grad():
            expected = network(torch.from_numpy(free), torch.from_numpy(rates))
        assert beta.shape == (count, len(STEP_FEATURES))
        assert difference(beta, expected[0].numpy()) < 1e-12
        assert difference(alpha, expected[1].numpy()) < 1e-12


def test_ten_thousand_batches_equal_numpy(graphs):
    _, (_, step_time) = graphs
    rng = np.random.default_rng(1)
    features = rng.exponential(1e-3, (_CASES, len(STEP_FEATURES)))
    features[::2, LAUNCHING] *= 100  # longer than the GPU's work
    for beta in (rng.exponential(1, (1, len(STEP_FEATURES))), rng.exponential(1, features.shape)):
        seconds, microseconds = step_time.run(None, {"features": features, "beta": beta})
        expected = numpy_step_time(features, beta)
        assert difference(seconds, expected) < 1e-12
        assert np.abs(microseconds - expected * 1e6).max() <= 0.5 + 1e-6
        assert microseconds.dtype == np.int64


def test_microseconds_are_rounded_half_to_even_and_at_least_one(graphs):
    _, (_, step_time) = graphs
    features = np.zeros((4, len(STEP_FEATURES)))
    features[:, 0] = [0.0, 1.5e-6, 2.5e-6, 3.5e-6]
    _, found = step_time.run(None, {"features": features, "beta": np.ones((1, features.shape[1]))})
    assert found.tolist() == [1, 2, 2, 4]


@given(network=strategies.networks())
@hypothesis.settings(max_examples=5)
def test_any_network_equals_torch(network, tmp_path_factory):
    coefficients, _ = onnx_sessions(Checkpoint(network.weights()), tmp_path_factory.mktemp("onnx"))
    rng = np.random.default_rng(2)
    free, rates = rng.normal(5, 5, (7, len(DESCRIPTORS))), rng.normal(0, 2, (7, len(RATES)))
    alpha, beta = coefficients.run(None, {"descriptors": free, "rates": rates})
    expected = network(torch.from_numpy(free), torch.from_numpy(rates))
    assert difference(beta, expected[0].numpy()) < 1e-9
    assert difference(alpha, expected[1].numpy()) < 1e-9


def test_metadata_says_what_the_graphs_are(measured, tmp_path):
    checkpoint = measured[0].checkpoint
    for path in export_onnx(checkpoint, {"checkpoint_sha256": "ab"}, tmp_path):
        model = onnx.load(path)
        facts = {entry.key: entry.value for entry in model.metadata_props}
        assert facts["opset"] == str(OPSET) == str(model.opset_import[0].version)
        assert json.loads(facts["registry"]) == registry()
        assert json.loads(facts["provenance"]) == {"checkpoint_sha256": "ab"}
        assert json.loads(facts["beta"])["layer"] == "s/layer"
        scale = json.loads(facts["embedding_scale"])
        assert scale["mean"] == checkpoint.network.input_scale.mean.tolist()
        assert json.loads(facts["units"])["step_time_us"] == "us"


def test_the_released_network_is_small(tmp_path):
    for path in export_onnx(load_checkpoint(find_checkpoint()), {}, tmp_path):
        assert path.stat().st_size < _LARGEST_BYTES
