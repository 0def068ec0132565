"""Training on traces beside measured deployments."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from calibration_rows import BASE, deployment, intervals

from pinn.coefficients.coefficient_network import CoefficientNetwork
from pinn.coefficients.surrogate import predict_coefficients
from pinn.coefficients.trained_network import fit_scale
from pinn.errors import PinnError
from pinn.training.trace_fit import TracedRun, TraceFitSettings, TraceLearner, read_runs, trace_rows


@pytest.fixture(scope="module")
def traced():
    """A server 30 % slower than the priors say, and one of which there is little."""
    slow = TracedRun("slow", deployment(), intervals(1.3 * BASE, 200))
    return [slow, TracedRun("few", deployment(), intervals(1.3 * BASE, 20, seed=1))]


def start(rows, learner):
    torch.manual_seed(0)
    return CoefficientNetwork(learner.network, fit_scale(*rows.embedding())).double()


def test_runs_weigh_the_same(traced):
    rows = trace_rows(traced, rows_per_run=50, seed=0)
    assert np.bincount(rows.run).tolist() == [50, 12]
    assert np.bincount(rows.run, weights=rows.weight) == pytest.approx([31, 31])
    assert rows.features @ (1.3 * BASE) == pytest.approx(rows.seconds)


def test_traces_teach_and_the_start_stays(traced, rows, learner, folder):
    before = start(rows, learner)
    kept = {k: v.clone() for k, v in before.state_dict().items()}
    fit = replace(learner.fit, steps=300, base_spread=1.0, correction_spread=1.0, ttft_weight=0.0)
    trainer = TraceLearner(fit, TraceFitSettings(trace_weight=20.0), learner.trainer)
    data = trace_rows(traced, rows_per_run=100, seed=0)
    network = trainer.learn(before, rows, data, folder)
    assert all(torch.equal(v, before.state_dict()[k]) for k, v in kept.items())

    def error(of) -> float:
        beta = predict_coefficients(of, [deployment()]).beta[0]
        return float(np.median(np.abs(data.features @ beta / data.seconds - 1)))

    assert error(before) > 0.2
    assert error(network) < 0.03


def test_tight_priors_keep_the_start(traced, rows, learner, folder):
    before = start(rows, learner)
    before.beta_base.data += 0.3
    fit = replace(learner.fit, steps=100, base_spread=1e-5, correction_spread=1e-5)
    trainer = TraceLearner(fit, TraceFitSettings(), learner.trainer)
    network = trainer.learn(before, rows, trace_rows(traced, 50, 0), folder)
    moved = (network.beta_base - before.beta_base).abs().max()
    assert moved < 0.01


def test_no_traces_are_an_error():
    with pytest.raises(PinnError, match=r"data\.traces=run1"):
        read_runs([])
