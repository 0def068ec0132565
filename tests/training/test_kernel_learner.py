"""Learning from kernels gives equal bits again, also after a power cut in the middle."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from configurations import configure
from power_cuts import assert_same_bits, interrupted_trainer
from run_cases import measured, on_h100

from pinn.errors import PinnError
from pinn.kernels.exclusion import Exclusion
from pinn.surrogate.surrogate import predict_coefficients
from pinn.training.distillation import distillation_rows
from pinn.training.kernel_data import composed_steps, fitted_surrogates
from pinn.training.kernel_learner import run_parts
from pinn.training.run_scalars import RunFit, run_latencies

#: Optimizer steps of the distillation: 5 epochs of 7 deployments, 2 at a time.
STEPS = 5 * 4


@pytest.fixture
def whole(kernel_learner, rows, tmp_path):
    """Return the result of learning without an interruption."""
    return kernel_learner.learn(rows, (), Exclusion(), tmp_path / "whole")


@pytest.mark.parametrize("step", [STEPS // 2 + 1, STEPS // 2 + 2, STEPS])
def test_learning_goes_on_to_the_same_bits(kernel_learner, rows, tmp_path, whole, step):
    cut = replace(
        kernel_learner,
        kernels=replace(kernel_learner.kernels, cache=str(tmp_path / "other")),
        trainer=partial(interrupted_trainer, step),
    )
    with pytest.raises(RuntimeError, match="power cut"):
        cut.learn(rows, (), Exclusion(), tmp_path / "cut")
    assert (tmp_path / "cut" / "last.ckpt").is_file()
    resumed = replace(cut, trainer=kernel_learner.trainer)
    again = resumed.learn(rows, (), Exclusion(), tmp_path / "cut")
    assert_same_bits(again.network, whole.network)
    np.testing.assert_array_equal(
        again.teacher.betas(rows.deployments), whole.teacher.betas(rows.deployments)
    )


def test_another_seed_gives_another_network(kernel_learner, rows, tmp_path, whole):
    other = replace(kernel_learner, seed=4).learn(rows, (), Exclusion(), tmp_path / "other")
    assert not np.array_equal(
        other.network.trunk[0].weight.numpy(), whole.network.trunk[0].weight.numpy()
    )


def test_the_network_has_the_shared_alpha_that_was_fitted_and_a_head_beside_it(rows, whole):
    arrays = whole.network.weights().arrays
    shared = arrays["alpha_prior"] * np.exp(arrays["alpha_base"])
    assert not np.allclose(whole.fit.alpha, RunFit().alpha)
    np.testing.assert_allclose(shared, whole.fit.alpha, rtol=1e-6)
    found = predict_coefficients(whole.network, rows.deployments)
    log_ratios = np.log(found.alpha / whole.fit.alpha)
    assert 0 < np.abs(log_ratios).max() < 1


def test_what_is_one_models_own_does_not_bend_the_network(kernel_learner, rows, tmp_path):
    """Check one model whose steps take 1.6 times as long as its kernels, and one as kernels say."""
    runs = [on_h100("slow", "Qwen/Qwen2.5-7B-Instruct"), on_h100("plain", "google/gemma-2-9b")]
    kernels = fitted_surrogates(kernel_learner.kernels, Exclusion())
    truth = run_latencies(RunFit(), runs, run_parts(kernels, runs))
    truth[0] = replace(truth[0], beta=1.6 * truth[0].beta)
    seen = [measured(run, latency) for run, latency in zip(runs, truth, strict=True)]
    longer = replace(
        kernel_learner,
        distillation=replace(kernel_learner.distillation, epochs=60, learning_rate=0.02),
        run_fit=replace(kernel_learner.run_fit, rounds=8, noise=0.01),
    )
    learned = longer.learn(rows, seen, Exclusion(), tmp_path / "runs")
    slow, plain = (learned.fit.model_effects[run.deployment.model.name] for run in runs)
    assert slow[0] == pytest.approx(np.log(1.6), abs=0.1)  # of the matrix products
    assert np.abs(plain).max() < 0.25
    error = error_on_composed(longer, learned)
    assert error < 0.3  # error of steps by the shared factors, on few deployments


def test_distillation_teaches_the_composed_steps(kernel_learner, rows, tmp_path, whole):
    """Check that more passes over a few deployments come closer to the teacher on them."""
    longer = replace(kernel_learner, distillation=replace(kernel_learner.distillation, epochs=60))
    learned = longer.learn(rows, (), Exclusion(), tmp_path / "longer")
    errors = [error_on_composed(kernel_learner, result) for result in (whole, learned)]
    assert errors[1] < 0.7 * errors[0]


def error_on_composed(learner, learned):
    """Return the median relative error of the network on the steps that it was trained on."""
    steps = composed_steps(learner.kernels, learned.teacher.kernels, Exclusion())
    rows = distillation_rows(steps, learned.teacher.scalars)
    with torch.no_grad():
        beta, _ = learned.network(rows.free.double(), rows.rates.double())
        predicted = torch.einsum("mnf,mf->mn", rows.features.double(), beta.double())
    return float((predicted / rows.seconds.sum(-1) - 1).abs().median())


def test_surrogates_fitted_without_something_else_are_refused(
    kernel_learner, h100_kernels, tmp_path
):
    exclude = Exclusion(gpus=("H100-SXM",))
    h100_kernels.save(tmp_path / exclude.slug())
    settings = replace(kernel_learner.kernels, released=str(tmp_path))
    with pytest.raises(PinnError, match=r"fitted without .*, expected without .*H100-SXM"):
        fitted_surrogates(settings, exclude)


def test_newer_tables_are_asked_for_by_config_and_refused_where_there_are_none(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PINN_KERNEL_TABLES", str(tmp_path))
    settings = configure("kernels=newer").kernels.settings
    assert (settings.released, settings.tables) == (None, str(tmp_path))
    with pytest.raises(PinnError, match=r"has no kernel tables: run 'make kernel-tables', or"):
        fitted_surrogates(settings, Exclusion())
