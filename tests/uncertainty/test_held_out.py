"""Errors and coefficient changes of left-out rows, read back from an experiment's folder."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from left_out_experiment import FINGERPRINT, observations, write_experiment, write_folds

from pinn.errors import PinnError
from pinn.network.checkpoint import load_checkpoint
from pinn.training.serving_rows import serving_rows
from pinn.uncertainty.calibration import NAMES
from pinn.uncertainty.coefficient_errors import coefficient_errors
from pinn.uncertainty.held_out import COLUMNS, held_out_errors
from pinn.uncertainty.kernel_distance import kernel_distance


@pytest.fixture
def folder(tmp_path):
    """An experiment that left out each of three models."""
    return write_experiment(tmp_path / "moe_ep")


def test_errors_are_log_ratios_beside_the_distance_at_the_rows_own_load(folder, h100_kernels):
    asked = []

    def surrogates(exclude):
        asked.append([model.name for model in exclude.models])
        return h100_kernels

    errors = held_out_errors(folder, surrogates)
    assert asked == [[name] for name in dict.fromkeys(errors["model"])]
    assert tuple(errors.columns) == COLUMNS
    # Predicted TPOT is 10 % too long, TTFT half of what was measured.
    np.testing.assert_allclose(errors["tpot"], np.log(1 / 1.1))
    np.testing.assert_allclose(errors["ttft"], np.log(2.0))
    assert errors["e2e"].between(errors["tpot"], errors["ttft"]).all()
    row = errors.iloc[0]
    rows = serving_rows(observations())
    load = f"{row['concurrency']} decode @ {row['prompt_tokens'] + row['output_tokens'] // 2}"
    at = kernel_distance(h100_kernels, rows.deployments[rows.deployment[0]], load)
    assert row["distance"] == pytest.approx(at.total)
    assert row["group"] == "meta-llama/Meta-Llama-3.1-8B on h100_sxm"


def test_distances_are_worked_out_once(folder, h100_kernels, monkeypatch):
    first = held_out_errors(folder, lambda _: h100_kernels)
    monkeypatch.setattr("pinn.uncertainty.kernel_distance.kernel_distance", None)
    again = held_out_errors(folder, lambda _: h100_kernels)
    pd.testing.assert_frame_equal(again, first)
    other = h100_kernels.all_reduce
    bent = {key: 1.01 * curve for key, curve in other.curves.items()}
    changed = replace(h100_kernels, all_reduce=replace(other, curves=bent))
    with pytest.raises(TypeError):
        held_out_errors(folder, lambda _: changed)


def test_experiments_without_what_is_needed_are_refused(folder, h100_kernels):
    path = folder / "predictions.csv"
    predictions = pd.read_csv(path)
    predictions[predictions["method"] != "network"].to_csv(path, index=False)
    with pytest.raises(PinnError, match="no predictions of the method 'network'"):
        held_out_errors(folder, lambda _: h100_kernels)
    path.unlink()
    with pytest.raises(PinnError, match=r"no predictions in .*: run the experiment"):
        held_out_errors(folder, lambda _: h100_kernels)


def test_coefficient_changes_are_those_between_fold_and_whole(
    folder, h100_kernels, checkpoint_path
):
    whole = load_checkpoint(checkpoint_path)
    errors = held_out_errors(folder, lambda _: h100_kernels)
    with pytest.raises(PinnError, match="no weights of the fold at"):
        coefficient_errors(folder, FINGERPRINT, whole, errors)
    write_folds(folder, whole.network)
    same = coefficient_errors(folder, FINGERPRINT, whole, errors)
    assert (same[list(NAMES)] == 0).all(axis=None)
    deployments = {m: set(r.distance) for m, r in errors.groupby("model")}
    for _, row in same.iterrows():
        of_model = deployments[row["model"]]
        assert min(of_model) <= row["distance"] <= max(of_model)
    assert len(same) == len(serving_rows(observations()).deployments)

    with torch.no_grad():
        whole.network.alpha_base += 0.25
    changed = coefficient_errors(folder, FINGERPRINT, whole, errors)
    assert (changed.filter(regex="^beta") == 0).all(axis=None)
    assert (changed.filter(regex="^alpha") != 0).any(axis=None)
