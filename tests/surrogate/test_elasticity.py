"""Law: a faster GPU is never slower, even with the steepest elasticities that can be learned."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from batch_work import batch_work

from pinn.specs.batch import Batch
from pinn.specs.model_variants import with_precision
from pinn.surrogate.architecture import NetworkSettings
from pinn.surrogate.featurizer import DESCRIPTORS, RATES, InputScale
from pinn.surrogate.network import CoefficientNetwork, elasticity_bounds
from pinn.surrogate.step_features import STEP_FEATURES, step_features, step_time
from pinn.surrogate.surrogate import predict_coefficients


def steepest(bias):
    """Return a network with an unlimited range, every elasticity at one end of its bounds."""
    d, r = np.full(len(DESCRIPTORS), 100.0), np.full(len(RATES), 5.0)
    network = CoefficientNetwork(NetworkSettings(), InputScale(0 * d, d / d, -d, d, -r, r))
    with torch.no_grad():
        network.elasticity_head.bias.fill_(bias)
    return network.double().requires_grad_(False)


def test_only_a_features_own_rate_may_raise_its_coefficient():
    _, upper = elasticity_bounds()
    raised = {
        (name, rate): upper[row, column].item()
        for row, name in enumerate(STEP_FEATURES)
        for column, rate in enumerate(RATES)
        if upper[row, column] > 0
    }
    assert set(raised.values()) == {1.0}
    own = {"memory_bandwidth": "bandwidth", "link_bandwidth": "link"}
    assert all(STEP_FEATURES[name].resource == own[rate] for name, rate in raised)


def test_no_coefficient_falls_faster_than_the_square_root_of_a_rate():
    lower, _ = elasticity_bounds()
    assert lower.min().item() == -0.5
    network = steepest(-50.0)
    free = torch.zeros(2, len(DESCRIPTORS), dtype=torch.float64)
    rates = torch.tensor([[0.0] * len(RATES), [np.log(4.0)] + [0.0] * (len(RATES) - 1)])
    beta, _ = network(free, rates.double())
    above = beta - network.beta_floor
    np.testing.assert_allclose(above[1] / above[0], 0.5, rtol=1e-6)


@pytest.mark.parametrize("bias", [-50.0, 50.0])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("rate", ["memory", "link", "bf16", "fp8"])
@pytest.mark.parametrize("sampled", [True, False])
def test_doubling_a_rate_never_slows_a_step(llama_8b_h100, rate, precision, bias, sampled):
    model, gpu = with_precision(llama_8b_h100.model, precision), llama_8b_h100.gpu
    serving = replace(llama_8b_h100.serving, tensor_parallel_size=2)
    peaks = gpu.peak_flop_per_s
    faster = {
        "memory": {"memory_bandwidth_bytes_per_s": 2 * gpu.memory_bandwidth_bytes_per_s},
        "link": {"link_bandwidth_bytes_per_s": 2 * gpu.link_bandwidth_bytes_per_s},
        "bf16": {"peak_flop_per_s": peaks | {"bf16": 2 * peaks["bf16"]}},
        "fp8": {"peak_flop_per_s": peaks | {"fp8": 2 * peaks["fp8"]}},
    }[rate]

    def work(deployment):
        costs, sums = batch_work(deployment, BATCHES)
        return (costs if sampled else replace(costs, sampled_step_s=np.zeros(1))), sums

    before, after = (
        step_time(step_features(*work(d)), predict_coefficients(network, [d]).beta[0])
        for network in [steepest(bias)]
        for d in (
            replace(llama_8b_h100, model=model, gpu=g, serving=serving)
            for g in (gpu, replace(gpu, **faster))
        )
    )
    assert (after <= before * (1 + 1e-12)).all()


BATCHES = [Batch.decode(1, 100), Batch.decode(64, 700), Batch.prefill(1, 4096)]
