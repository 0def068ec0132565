"""Errors and coefficient changes of held-out rows, read back from an experiment's folder."""

import numpy as np
import pandas as pd
import pytest
from changed_weights import with_array
from left_out_experiment import KIND, observations, write_experiment

from pinn.errors import PinnError
from pinn.evaluation.crossvalidation import COLUMNS, held_out_errors
from pinn.surrogate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pinn.surrogate.uncertainty.coefficient_changes import FoldNetwork, coefficient_changes
from pinn.surrogate.uncertainty.held_out import decode_step, situation
from pinn.surrogate.uncertainty.intervals import NAMES
from pinn.training.serving_rows import serving_rows


@pytest.fixture
def folder(tmp_path):
    """Return the folder of an experiment that held out each of three models."""
    return write_experiment(tmp_path / "moe_ep")


def test_errors_are_log_ratios_beside_all_that_was_known_of_the_row(folder, h100_kernels):
    asked = []

    def surrogates(exclude):
        asked.append([model.name for model in exclude.models])
        return h100_kernels

    errors = held_out_errors(folder, observations(), surrogates)
    assert asked == [[name] for name in dict.fromkeys(errors["model"])]
    assert tuple(errors.columns) == COLUMNS
    # Predicted TPOT is 10 % too long, TTFT half of what was measured.
    np.testing.assert_allclose(errors["tpot"], np.log(1 / 1.1))
    np.testing.assert_allclose(errors["ttft"], np.log(2.0))
    assert errors["e2e"].between(errors["tpot"], errors["ttft"]).all()
    assert errors["ttft_share"].between(0, 1, inclusive="neither").all()
    assert (errors[["tpot_gain", "ttft_gain", "e2e_gain"]] == 1).all(axis=None)
    assert set(errors["place"]) == {"a measured GPU"}
    row = errors.iloc[0]
    rows = serving_rows(observations())
    load = decode_step(*map(float, row[["concurrency", "prompt_tokens", "output_tokens"]]))
    assert load == f"{row['concurrency']} decode @ 272"
    at = situation(h100_kernels, rows.deployments[rows.deployment[0]], load)
    assert row["distance"] == pytest.approx(at.distance.total)
    assert row["group"] == "meta-llama/Meta-Llama-3.1-8B on H100-SXM"


def test_models_of_equal_shape_share_it_whatever_their_names(folder, h100_kernels):
    errors = held_out_errors(folder, observations(), lambda _: h100_kernels)
    assert errors.groupby("model")["shape"].nunique().eq(1).all()
    assert errors["shape"].nunique() == 3


def test_a_left_out_gpu_is_one_without_serving_data(folder, h100_kernels):
    kind = "leave-one-gpu-out"
    path = folder / "predictions.csv"
    pd.read_csv(path).assign(split=kind, held_out="h100_sxm").to_csv(path, index=False)
    errors = held_out_errors(folder, observations(), lambda _: h100_kernels)
    assert set(errors["place"]) == {"a GPU without serving data"}


def test_descriptions_are_worked_out_once(folder, h100_kernels, monkeypatch):
    first = held_out_errors(folder, observations(), lambda _: h100_kernels)
    monkeypatch.setattr("pinn.surrogate.uncertainty.held_out.kernel_distance", None)
    again = held_out_errors(folder, observations(), lambda _: h100_kernels)
    pd.testing.assert_frame_equal(again, first)


def test_experiments_without_what_is_needed_are_refused(folder, h100_kernels):
    path = folder / "predictions.csv"
    predictions = pd.read_csv(path)
    predictions[predictions["method"] != "network"].to_csv(path, index=False)
    with pytest.raises(
        PinnError, match=r"method 'network' has no predictions .*: run the experiment"
    ):
        held_out_errors(folder, observations(), lambda _: h100_kernels)
    path.unlink()
    with pytest.raises(PinnError, match=r"has no predictions: run the experiment"):
        held_out_errors(folder, observations(), lambda _: h100_kernels)


def test_coefficient_changes_are_those_between_fold_and_whole(tmp_path, checkpoint_path):
    fold_path, whole_path = tmp_path / "fold.safetensors", tmp_path / "whole.safetensors"
    fold_path.write_bytes(checkpoint_path.read_bytes())
    whole_path.write_bytes(checkpoint_path.read_bytes())
    deployments = tuple(serving_rows(observations()).deployments)
    folds = [
        FoldNetwork(KIND, deployments[:1], fold_path),
        FoldNetwork("x", deployments, fold_path),
    ]
    same = coefficient_changes(whole_path, folds)
    assert (same[list(NAMES)] == 0).all(axis=None)
    assert same["split"].tolist() == [KIND] + ["x"] * len(deployments)
    assert same["model"].tolist()[1:] == [d.model.name for d in deployments]

    whole = load_checkpoint(whole_path)
    other = with_array(whole.network, "alpha_base", whole.network.arrays["alpha_base"] + 0.25)
    save_checkpoint(Checkpoint(other), whole_path)
    changed = coefficient_changes(whole_path, folds)
    assert (changed.filter(regex="^beta") == 0).all(axis=None)
    assert (changed.filter(regex="^alpha") != 0).any(axis=None)
    with pytest.raises(PinnError, match="the network of a cross-validation fold, does not exist"):
        coefficient_changes(whole_path, [FoldNetwork(KIND, deployments, tmp_path / "none")])
