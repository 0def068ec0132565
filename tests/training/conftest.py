from functools import partial
from pathlib import Path

import numpy as np
import pytest
from serving_cases import observations, with_times

from pinn.surrogate.architecture import NetworkSettings
from pinn.training import composed
from pinn.training.alpha_head import AlphaHeadSettings
from pinn.training.distillation import DistillationSettings
from pinn.training.kernel_data import KernelSettings
from pinn.training.kernel_learner import KernelLearner
from pinn.training.run_scalars import RunFitSettings
from pinn.training.serving_fit import ServingFitSettings, ServingLearner
from pinn.training.serving_rows import ServingRows, serving_rows
from pinn.training.trainer import TrainerSettings, make_trainer

#: Measured time over the lower bound, for each of the five measurements.
_ABOVE = np.array([1.4, 1.6, 2.6, 2.9, 3.3])


@pytest.fixture(scope="session")
def rows() -> ServingRows:
    """Return five measurements, each above its roofline lower bound."""
    found = serving_rows(observations())
    tpot_s, ttft_s = _ABOVE * found.tpot_floor_s, 1.2 * _ABOVE * found.ttft_floor_s + 0.01
    return with_times(found, tpot_s, ttft_s)


@pytest.fixture
def learner() -> ServingLearner:
    """Return a learner that is quiet, small and quick."""
    return ServingLearner(
        NetworkSettings(hidden=16, depth=1),
        ServingFitSettings(steps=300, learning_rate=0.02),
        partial(make_trainer, TrainerSettings(progress=False)),
        seed=3,
    )


@pytest.fixture(scope="session")
def released(h100_kernels, tmp_path_factory) -> Path:
    """Return a folder of released surrogates with quickly fitted ones in it."""
    folder = tmp_path_factory.mktemp("released")
    h100_kernels.save(folder / "all")
    return folder


@pytest.fixture
def kernel_learner(released, tmp_path, monkeypatch) -> KernelLearner:
    """Return the kernel learner with seven composed deployments and a small network."""
    monkeypatch.setattr(composed, "SHARD_DEPLOYMENTS", 3)
    return KernelLearner(
        KernelSettings(str(released), str(tmp_path / "cache"), ["H100-SXM"], 7, 0, validation=2),
        NetworkSettings(hidden=16, depth=1),
        DistillationSettings(epochs=5, batch=2),
        RunFitSettings(rounds=2),
        AlphaHeadSettings(),
        partial(make_trainer, TrainerSettings(progress=False)),
        seed=3,
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return the folder of logs and of the state to resume from."""
    return tmp_path / "logs"
