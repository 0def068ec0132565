"""From the folders of experiments to the intervals of their checkpoint."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import yaml
from left_out_experiment import (
    KIND,
    observations,
    write_experiment,
)
from omegaconf import OmegaConf

from pinn.common.files import file_sha256
from pinn.evaluation.crossvalidation import held_out_errors
from pinn.evaluation.methods import kernel_settings
from pinn.kernels.exclusion import Exclusion
from pinn.specs.catalog import load_model
from pinn.surrogate.uncertainty.interval_fit import calibrate
from pinn.surrogate.uncertainty.kernel_distance import FoldNetwork, coefficient_changes
from pinn.training.kernel_data import fitted_surrogates
from pinn.training.serving_rows import serving_rows

MODELS = sorted(set(observations()["model"]))


@pytest.fixture
def folder(tmp_path, h100_kernels):
    """An experiment with its configuration, and the kernels of its folds."""
    found = write_experiment(tmp_path / "moe_ep")
    for name in MODELS:
        exclude = Exclusion(models=(load_model(name),))
        fitted = replace(h100_kernels, metadata={"excluded": exclude.describe()})
        fitted.save(tmp_path / "kernels" / exclude.slug())
    settings = {
        "_target_": "pinn.training.kernel_learner.KernelSettings",
        "released": str(tmp_path / "kernels"),
        "cache": str(tmp_path / "cache"),
        "gpus": {"_target_": "builtins.tuple", "_args_": [["H100-SXM"]]},
    }
    config = found / ".hydra" / "config.yaml"
    config.parent.mkdir()
    config.write_text(yaml.safe_dump({"kernels": {"settings": settings}}))
    return found


def test_a_checkpoint_is_calibrated_on_what_its_experiment_left_out(folder, checkpoint_path):
    rows = serving_rows(observations())
    folds = [FoldNetwork(KIND, tuple(rows.deployments), checkpoint_path)]
    changes = coefficient_changes(checkpoint_path, folds)
    config = OmegaConf.load(folder / ".hydra" / "config.yaml")
    errors = held_out_errors(folder, partial(fitted_surrogates, kernel_settings(config)))
    found = calibrate(errors, changes, checkpoint_path, [])
    assert found.checkpoint_sha256 == file_sha256(checkpoint_path)
    # The folds gave the same coefficients as the whole.
    assert set(found.coefficients.values()) == {0.0}
    # TPOT is 10 % off and TTFT 50 % everywhere, so both are covered, one far more tightly.
    assert found.half_width("tpot", gpu_known=True) == pytest.approx(np.log(1.1))
    assert found.half_width("ttft", gpu_known=True) == pytest.approx(np.log(2))
    assert {row["name"] for row in found.coverage if row["part"] == "model"} == set(MODELS)
