"""Intervals of a checkpoint from the folders of experiments."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from left_out_experiment import (
    KIND,
    observations,
    write_experiment,
)

from pinn.common.files import file_sha256
from pinn.evaluation.crossvalidation import held_out_errors
from pinn.kernels.exclusion import Exclusion
from pinn.specs.catalog import load_model
from pinn.surrogate.uncertainty.coefficient_changes import FoldNetwork, coefficient_changes
from pinn.surrogate.uncertainty.interval_fit import calibrate
from pinn.training.kernel_data import KernelSettings, fitted_surrogates
from pinn.training.serving_rows import serving_rows

MODELS = sorted(set(observations()["model"]))


@pytest.fixture
def folder(tmp_path, h100_kernels):
    """Return the folder of an experiment that has the kernels of its folds."""
    found = write_experiment(tmp_path / "moe_ep")
    for name in MODELS:
        exclude = Exclusion(models=(load_model(name),))
        fitted = replace(h100_kernels, metadata={"excluded": exclude.describe()})
        fitted.save(tmp_path / "kernels" / exclude.slug())
    return found


def test_a_checkpoint_is_calibrated_on_what_its_experiment_left_out(
    folder, tmp_path, checkpoint_path
):
    rows = serving_rows(observations())
    folds = [FoldNetwork(KIND, tuple(rows.deployments), checkpoint_path)]
    changes = coefficient_changes(checkpoint_path, folds)
    settings = KernelSettings(str(tmp_path / "kernels"), str(tmp_path / "cache"), ["H100-SXM"])
    errors = held_out_errors(folder, observations(), partial(fitted_surrogates, settings))
    found = calibrate(errors, changes, checkpoint_path, [])
    assert found.checkpoint_sha256 == file_sha256(checkpoint_path)
    # The folds gave the same coefficients as the whole.
    assert set(found.coefficients.values()) == {0.0}
    # TPOT errors are 10 % and TTFT errors 50 % everywhere: both are covered, TPOT far more tightly.
    assert found.half_width("tpot", rows.deployments[0], gpu_known=True) == pytest.approx(
        np.log(1.1)
    )
    assert found.half_width("ttft", rows.deployments[0], gpu_known=True) == pytest.approx(np.log(2))
    assert {row["name"] for row in found.coverage if row["part"] == "model"} == set(MODELS)
