"""Module and data of the distillation: loss, validation, hyperparameters."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pinn.kernels.exclusion import Exclusion
from pinn.surrogate.architecture import NetworkSettings
from pinn.surrogate.featurizer import fit_scale
from pinn.surrogate.network import CoefficientNetwork
from pinn.surrogate.step_features import step_time
from pinn.training.distillation import (
    Distillation,
    DistillationData,
    DistillationSettings,
    distillation_rows,
)
from pinn.training.kernel_data import (
    composed_steps,
    fitted_surrogates,
    training_deployments,
    validation_steps,
)
from pinn.training.teacher import FEATURE_GROUPS, prior_scalars
from pinn.training.trainer import last_state


@pytest.fixture
def rows(kernel_learner):
    """Return composed steps of seven deployments."""
    surrogates = fitted_surrogates(kernel_learner.kernels, Exclusion())
    steps = composed_steps(kernel_learner.kernels, surrogates, Exclusion())
    return distillation_rows(steps, prior_scalars())


def module_for(rows, **settings):
    scale = fit_scale(rows.free.numpy(), rows.rates.numpy())
    network = CoefficientNetwork(NetworkSettings(hidden=4, depth=1), scale)
    module = Distillation(network, DistillationSettings(**settings), len(rows.free))
    module.log = lambda *_, **__: None
    return module


def predicted_seconds(module, rows):
    """Return the seconds that the network predicts for each group and each step, in numpy."""
    beta = module.network(rows.free, rows.rates)[0].detach().numpy()[:, None]
    features = rows.features.numpy()
    return features * beta @ FEATURE_GROUPS, step_time(features, beta)


def with_seconds(rows, seconds, whole):
    taught = (torch.tensor(each, dtype=torch.float32) for each in (seconds, whole))
    return rows._replace(**dict(zip(("seconds", "whole"), taught, strict=True)))


def test_steps_whose_parts_are_swapped_are_wrong_by_their_parts_alone(rows):
    module = module_for(rows)
    seconds, whole = predicted_seconds(module, rows)
    exact = with_seconds(rows, seconds, whole)
    swapped = with_seconds(rows, seconds[..., ::-1].copy(), whole)
    assert module.training_step(exact).item() == pytest.approx(0, abs=1e-6)
    whole_alone = module_for(rows, parts_weight=0.0)
    assert whole_alone.training_step(swapped).item() == pytest.approx(0, abs=1e-6)
    error = module.training_step(swapped).item()
    assert error > 0.1
    twice = module_for(rows, parts_weight=2.0).training_step(swapped).item()
    assert twice == pytest.approx(2 * error, rel=1e-4)


def test_validation_is_the_median_absolute_percentage_error_of_steps(rows):
    module = module_for(rows)
    _, whole = predicted_seconds(module, rows)
    expected = 100 * np.median(np.abs(whole / rows.whole.numpy() - 1))
    assert module.validation_step(rows).item() == pytest.approx(expected, rel=1e-2)


def test_hyperparameters_are_in_every_saved_state(kernel_learner, rows, tmp_path):
    kernel_learner.distil(rows, rows.take(slice(2)), tmp_path)
    state = torch.load(last_state(tmp_path), weights_only=True)
    saved = state["hyper_parameters"]
    assert saved["learning_rate"] == kernel_learner.distillation.learning_rate
    assert saved["network"] == {"hidden": 16, "depth": 1, "beta_bound": 4.0, "corrected": True}
    assert state["epoch"] == kernel_learner.distillation.epochs - 1
    log = (tmp_path / "csv" / "metrics.csv").read_text()
    assert "val_median_ape_percent" in log.splitlines()[0]


def test_validation_changes_nothing_that_is_trained(kernel_learner, rows, tmp_path):
    """Check that validation data do not change the bits of the trained network."""
    with_it = kernel_learner.distil(rows, rows.take(slice(3)), tmp_path / "with")
    without = kernel_learner.distil(rows, None, tmp_path / "without")
    for name, array in with_it.state_dict().items():
        np.testing.assert_array_equal(array.numpy(), without.state_dict()[name].numpy())


def test_validation_deployments_are_none_of_training(kernel_learner):
    settings = kernel_learner.kernels
    surrogates = fitted_surrogates(settings, Exclusion())
    held_out = validation_steps(settings, surrogates, Exclusion())
    train = training_deployments(settings, Exclusion())
    assert len(held_out.deployments) == settings.validation
    assert not {d.model.name for d in held_out.deployments} & {d.model.name for d in train}
    more = replace(settings, validation=settings.validation + 1)
    assert training_deployments(more, Exclusion()) == train
    assert validation_steps(replace(settings, validation=0), surrogates, Exclusion()) is None


def test_minibatches_hold_every_deployment_once(rows):
    data = DistillationData(rows, None, batch=3, seed=0)
    batches = list(data.train_dataloader())
    assert [len(batch.free) for batch in batches] == [3, 3, 1]
    drawn = torch.cat([batch.free for batch in batches])
    assert sorted(map(tuple, drawn.tolist())) == sorted(map(tuple, rows.free.tolist()))
    assert not list(data.val_dataloader())
