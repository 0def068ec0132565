"""The network reproduces the deployments that ran and carries the alpha that was fitted."""

from functools import partial

import numpy as np
import torch
from run_cases import operator_betas, three_runs

from pinn.features.step import step_features
from pinn.kernels.composition import OPERATORS
from pinn.latency.surrogate import predict_coefficients
from pinn.network.coefficient_network import NetworkSettings
from pinn.physics.costs import step_costs
from pinn.teacher.batches import sample_batches
from pinn.teacher.composed import ComposedSteps
from pinn.training import run_network
from pinn.training.distillation import (
    DistillationRows,
    DistillationSettings,
    distillation_rows,
)
from pinn.training.kernel_learner import KernelLearner, KernelSettings
from pinn.training.run_scalars import LEARNED_ALPHAS, RunFit, RunFitSettings
from pinn.training.trainer import make_trainer


def composed(deployments):
    """Steps that take what the priors of all operators say."""
    batches = tuple(sample_batches(seed) for seed in range(len(deployments)))
    costs, betas = step_costs(deployments), operator_betas()
    features = [
        step_features(costs.take(i), b.sums(d.model.window_tokens))
        for i, (d, b) in enumerate(zip(deployments, batches, strict=True))
    ]
    return ComposedSteps(tuple(deployments), batches, np.array(features) @ betas.T)


def test_measured_steps_take_what_their_betas_say():
    deployments = [run.deployment for run in three_runs()]
    betas = np.stack([RunFit().scalars.betas(operator_betas()) * s for s in (1.0, 1.2, 0.9)])
    rows = run_network.measured_steps(deployments, betas, seed=0)
    assert rows.deployments == len(deployments) * run_network.REPEATS
    own = np.einsum("mnf,mf->mn", rows.features.double(), betas.repeat(run_network.REPEATS, 0))
    np.testing.assert_allclose(rows.seconds, own, rtol=1e-5)


def test_the_network_learns_a_departure(tmp_path, monkeypatch):
    monkeypatch.setattr(run_network, "REPEATS", 8)
    deployments = [run.deployment for run in three_runs()]
    alpha = RunFit().alpha * np.linspace(0.8, 1.2, len(RunFit().alpha))
    fit = RunFit(departures={"dense-a": np.full(len(OPERATORS) + 1, 0.2)}, alpha=alpha)
    betas = np.stack([fit.of_model(d.model.name).betas(operator_betas()) for d in deployments])
    learner = KernelLearner(
        KernelSettings(None, str(tmp_path), ("H100-SXM",)),
        NetworkSettings(hidden=16, depth=1),
        DistillationSettings(epochs=150, batch=8, learning_rate=0.02),
        RunFitSettings(),
        partial(make_trainer, progress=False),
    )
    taught = distillation_rows(composed(deployments[1:]), fit.scalars)
    ran = run_network.measured_steps(deployments, betas, seed=1)
    together = DistillationRows(*(torch.cat(pair) for pair in zip(taught, ran, strict=True)))
    network = learner.distil(together, tmp_path)
    run_network.set_alpha(network, fit.alpha)
    found = predict_coefficients(network, deployments)
    costs, batches = step_costs(deployments), sample_batches(99)
    for i, deployment in enumerate(deployments):
        features = step_features(costs.take(i), batches.sums(deployment.model.window_tokens))
        assert np.median(np.abs(features @ found.beta[i] / (features @ betas[i]) - 1)) < 0.03
    np.testing.assert_allclose(
        found.alpha[:, LEARNED_ALPHAS], np.tile(fit.alpha[LEARNED_ALPHAS], (3, 1)), rtol=1e-6
    )
    assert (np.delete(found.alpha, LEARNED_ALPHAS, axis=1) == 0).all()
