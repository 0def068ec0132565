"""Learning from kernels: the same bits again, also after a power cut in any of its stages."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from power_cuts import assert_same_bits, interrupted_trainer

from pinn.kernels.exclusion import Exclusion
from pinn.network.coefficient_network import NetworkSettings
from pinn.teacher import composed
from pinn.training.distillation import DistillationSettings
from pinn.training.kernel_learner import KernelLearner, KernelSettings
from pinn.training.serving_fit import STEPS_PER_EPOCH, ServingFitSettings
from pinn.training.trainer import make_trainer

EPOCHS, DEPLOYMENTS, BATCH = 5, 7, 2
DISTILLATION_STEPS = EPOCHS * 4


@pytest.fixture(scope="module")
def released(h100_kernels, tmp_path_factory):
    """Quickly fitted surrogates where released ones lie."""
    folder = tmp_path_factory.mktemp("released")
    h100_kernels.save(folder / "all")
    return folder


@pytest.fixture
def kernel_learner(released, tmp_path, monkeypatch):
    monkeypatch.setattr(composed, "SHARD_DEPLOYMENTS", 3)
    return KernelLearner(
        KernelSettings(
            str(released), str(tmp_path / "cache"), ("H100-SXM",), DEPLOYMENTS, 0, workers=1
        ),
        NetworkSettings(hidden=16, depth=1),
        DistillationSettings(epochs=EPOCHS, batch=BATCH),
        ServingFitSettings(steps=3 * STEPS_PER_EPOCH, learning_rate=0.02),
        partial(make_trainer, progress=False),
        seed=3,
    )


@pytest.fixture
def whole(kernel_learner, rows, tmp_path):
    """What learning gives without a cut."""
    return kernel_learner.learn(rows, Exclusion(), tmp_path / "whole")


@pytest.mark.parametrize(
    ("step", "stage"),
    [
        (DISTILLATION_STEPS // 2 + 1, "distillation"),
        (DISTILLATION_STEPS // 2 + 2, "distillation"),
        (DISTILLATION_STEPS + STEPS_PER_EPOCH, "alpha"),
    ],
)
def test_learning_goes_on_to_the_same_bits(kernel_learner, rows, tmp_path, whole, step, stage):
    cut = replace(
        kernel_learner,
        kernels=replace(kernel_learner.kernels, cache=str(tmp_path / "other")),
        trainer=partial(interrupted_trainer, step),
    )
    with pytest.raises(RuntimeError, match="power cut"):
        cut.learn(rows, Exclusion(), tmp_path / "cut")
    assert (tmp_path / "cut" / stage / "last.ckpt").is_file()
    resumed = replace(cut, trainer=kernel_learner.trainer)
    again = resumed.learn(rows, Exclusion(), tmp_path / "cut")
    assert_same_bits(again.network, whole.network)
    np.testing.assert_array_equal(
        again.teacher.betas(rows.deployments), whole.teacher.betas(rows.deployments)
    )


def test_another_seed_gives_another_network(kernel_learner, rows, tmp_path, whole):
    other = replace(kernel_learner, seed=4).learn(rows, Exclusion(), tmp_path / "other")
    assert not np.array_equal(
        other.network.trunk[0].weight.numpy(), whole.network.trunk[0].weight.numpy()
    )


def test_distillation_teaches_the_composed_steps(kernel_learner, rows, tmp_path, whole):
    """More passes over a few deployments come closer to the teacher on them."""
    longer = replace(
        kernel_learner,
        distillation=replace(kernel_learner.distillation, epochs=60),
        fit=replace(kernel_learner.fit, steps=STEPS_PER_EPOCH),
    )
    learned = longer.learn(rows, Exclusion(), tmp_path / "longer")
    errors = [error_on_composed(kernel_learner, result) for result in (whole, learned)]
    assert errors[1] < 0.7 * errors[0]


def error_on_composed(learner, learned):
    """Median relative error of the network on the steps that it learned from."""
    from pinn.training.distillation import distillation_rows, step_errors
    from pinn.training.kernel_learner import composed_steps

    steps = composed_steps(learner.kernels, learned.teacher.kernels, Exclusion())
    rows = distillation_rows(steps, learned.teacher.scalars)
    double = rows._replace(free=rows.free.double(), rates=rows.rates.double())
    return float(np.median(np.abs(step_errors(learned.network, double))))
