"""Fits can overfit, repeat to the bit, and resume after an interruption."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from power_cuts import assert_same_bits, interrupted_trainer

from pinn.evaluation.metrics import error_summary
from pinn.surrogate.architecture import NetworkSettings
from pinn.surrogate.featurizer import featurize
from pinn.training.serving_fit import STEPS_PER_EPOCH, predict, predict_rows, serving_batch


def test_a_network_can_overfit_a_few_rows(rows, learner, folder):
    free = replace(learner.fit, steps=600, base_spread=100.0, correction_spread=100.0)
    loose = replace(learner, fit=free, network=NetworkSettings(hidden=32))
    network = loose.learn(rows, folder)
    tpot, ttft = (x.numpy() for x in predict_rows(network, serving_batch(rows)))
    assert error_summary(tpot, rows.tpot_s).mean < 2
    assert error_summary(ttft, rows.ttft_s).mean < 4
    # Simulated times differ where the server's work and the steps' change places, and where steps
    # wait for launching instead of the GPU.
    found = predict(network, rows)
    assert error_summary(found.tpot_s, rows.tpot_s).mean < 3
    assert error_summary(found.ttft_s, rows.ttft_s).mean < 12


def test_tight_priors_keep_the_prior(rows, learner, folder):
    tight = replace(learner.fit, base_spread=1e-4, correction_spread=1e-4)
    network = replace(learner, fit=tight).learn(rows, folder)
    assert network.beta_base.abs().max() < 0.01


def test_a_global_vector_is_the_same_everywhere(rows, learner, folder):
    shared = replace(learner, network=replace(learner.network, corrected=False))
    network = shared.learn(rows, folder)
    beta, alpha = network(*map(torch.from_numpy, featurize(rows.deployments)))
    np.testing.assert_array_equal(beta.numpy(), np.tile(beta[0].numpy(), (len(beta), 1)))
    np.testing.assert_array_equal(alpha.numpy(), np.tile(alpha[0].numpy(), (len(alpha), 1)))


def test_the_same_seed_gives_the_same_bits(rows, learner, tmp_path):
    brief = replace(learner, fit=replace(learner.fit, steps=STEPS_PER_EPOCH))
    first, second = (brief.learn(rows, tmp_path / name) for name in ("a", "b"))
    assert_same_bits(first, second)
    other = replace(brief, seed=4).learn(rows, tmp_path / "c")
    assert not np.array_equal(other.trunk[0].weight.numpy(), first.trunk[0].weight.numpy())


@pytest.mark.parametrize("step", [STEPS_PER_EPOCH + 30, 2 * STEPS_PER_EPOCH])
def test_an_interrupted_fit_goes_on_to_the_same_bits(rows, learner, tmp_path, step):
    whole = learner.learn(rows, tmp_path / "whole")
    cut = replace(learner, trainer=partial(interrupted_trainer, step))
    with pytest.raises(RuntimeError, match="power cut"):
        cut.learn(rows, tmp_path / "cut")
    assert (tmp_path / "cut" / "last.ckpt").is_file()
    assert_same_bits(learner.learn(rows, tmp_path / "cut"), whole)


def test_a_finished_fit_is_not_run_again(rows, learner, folder):
    whole = learner.learn(rows, folder)
    never = replace(learner, trainer=partial(interrupted_trainer, 1))
    assert_same_bits(never.learn(rows, folder), whole)


def test_a_fit_logs_its_loss_and_shows_nothing(rows, learner, folder, capsys):
    brief = replace(learner, fit=replace(learner.fit, steps=STEPS_PER_EPOCH))
    brief.learn(rows, folder)
    assert (folder / "csv" / "metrics.csv").read_text().count("\n") > 2
    assert list((folder / "tensorboard").glob("events*"))
    assert capsys.readouterr().out == ""


def test_work_beside_the_steps_hides_half_of_them_at_most(rows, learner, folder):
    """Check that TTFT is the steps and the waited work, and at least half the steps."""
    network = learner.learn(rows, folder)
    batch = serving_batch(rows)
    beta, _ = network(batch["free"], batch["rates"])
    steps = (beta[batch["deployment"]] * batch["ttft_features"]).sum(-1)
    hidden = batch | {
        "ttft_offset": -steps,
        "request_features": torch.zeros_like(batch["request_features"]),
    }
    np.testing.assert_allclose(predict_rows(network, hidden)[1], 0.5 * steps, rtol=1e-12)
    longer = hidden | {"ttft_offset": steps}
    np.testing.assert_allclose(predict_rows(network, longer)[1], 2 * steps, rtol=1e-12)
