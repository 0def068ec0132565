"""From the folders of experiments to the intervals of their checkpoint."""

import pytest
import yaml
from left_out_experiment import (
    FINGERPRINT,
    KIND,
    observations,
    write_experiment,
    write_folds,
)

from pinn.errors import PinnError
from pinn.experiments.intervals import calibrate_experiments, experiment_errors
from pinn.kernels.exclusion import Exclusion
from pinn.network.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pinn.sources.report import file_sha256
from pinn.specs.catalog import load_model
from pinn.uncertainty.calibration import NAMES

MODELS = sorted(set(observations()["model"]))


@pytest.fixture
def folder(tmp_path, h100_kernels):
    """An experiment with its configuration, and the kernels of its folds."""
    found = write_experiment(tmp_path / "moe_ep")
    for name in MODELS:
        exclude = Exclusion(models=(load_model(name),))
        fitted = h100_kernels.with_metadata(excluded=exclude.describe())
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


@pytest.fixture
def checkpoint(tmp_path, checkpoint_path):
    whole = load_checkpoint(checkpoint_path)
    path = tmp_path / "pinn.safetensors"
    save_checkpoint(Checkpoint(whole.network, {"fingerprint": FINGERPRINT}), path)
    return path


def test_a_checkpoint_is_calibrated_on_what_its_experiment_left_out(folder, checkpoint):
    write_folds(folder, load_checkpoint(checkpoint).network)
    found = calibrate_experiments([folder], checkpoint)
    assert found.checkpoint_sha256 == file_sha256(checkpoint)
    (source,) = found.sources
    assert source["splits"] == [KIND]
    assert source["rows"] == 4
    assert source["predictions_sha256"] == file_sha256(folder / "predictions.csv")
    assert set(found.coefficients) == set(NAMES)
    # The folds gave the same coefficients as the whole, TPOT is 10 % off everywhere.
    assert {half.base for half in found.coefficients.values()} == {0.0}
    low, high = found.interval("tpot", 1.0, 0.0)
    assert low <= 1 / 1.1 * 1.001
    assert high >= 1.1 * 0.9
    assert {row["left_out"] for row in found.coverage} == {"all", *MODELS}


def test_folds_of_other_settings_are_refused(folder, checkpoint):
    with pytest.raises(PinnError, match="no weights of the fold"):
        calibrate_experiments([folder], checkpoint)


def test_a_folder_without_an_experiment_is_refused(tmp_path):
    with pytest.raises(PinnError, match=r"no .*config\.yaml: give the results folder"):
        experiment_errors(tmp_path)
