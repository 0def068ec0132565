"""Predictions of a published checkpoint's folds are used only for its own data and splits."""

import pandas as pd
import pytest
from evaluations import observations, predictions

from pinn.common.files import file_sha256, find_checkpoint
from pinn.errors import PinnError
from pinn.evaluation.folds import CHECKPOINT_COLUMN, shipped_predictions, shipped_runs
from pinn.evaluation.serving_runs import RUNS_HELD_OUT
from pinn.simulator.metric_features import WHOLE_RUN

SPLITS = ("leave-one-model-out",)


@pytest.fixture
def rows():
    return observations()


@pytest.fixture
def checkpoint(rows, tmp_path):
    path = tmp_path / "pinn.safetensors"
    path.write_bytes(b"weights")
    kept = predictions(rows).assign(**{CHECKPOINT_COLUMN: file_sha256(path)})
    kept.to_csv(path.with_suffix(".predictions.csv"), index=False, float_format="%.8g")
    return path


def test_only_what_is_missing_of_the_splits_asked_for_is_taken(checkpoint, rows):
    every = predictions(rows)
    made = every[every["method"] == "teacher"]
    taken = shipped_predictions(checkpoint, SPLITS, made, rows)
    assert set(taken["split"]) == set(SPLITS)
    assert set(taken["method"]) == set(every["method"]) - {"teacher"}
    of_network = taken[taken["method"] == "network"]
    assert sorted(of_network["row_id"]) == sorted(rows["row_id"])
    assert set(taken[CHECKPOINT_COLUMN]) == {file_sha256(checkpoint)}


def test_those_of_another_checkpoint_are_refused(checkpoint, rows):
    checkpoint.write_bytes(b"other weights")
    with pytest.raises(PinnError, match="belongs to a checkpoint other than"):
        shipped_predictions(checkpoint, SPLITS, predictions(rows), rows)


@pytest.mark.parametrize("change", ["value", "row"])
def test_those_of_other_measurements_are_refused(checkpoint, rows, change):
    other = rows.iloc[1:] if change == "row" else rows.assign(tpot_s=rows["tpot_s"] * 1.001)
    with pytest.raises(PinnError, match="other measurements"):
        shipped_predictions(checkpoint, SPLITS, pd.DataFrame(columns=["split", "method"]), other)


def test_a_checkpoint_without_predictions_is_refused(checkpoint, rows):
    checkpoint.with_suffix(".predictions.csv").unlink()
    with pytest.raises(PinnError, match="published without this table"):
        shipped_predictions(checkpoint, SPLITS, predictions(rows), rows)


def test_serving_runs_are_those_of_folds_without_the_model():
    checkpoint = find_checkpoint()
    runs = shipped_runs(checkpoint)
    scores = pd.read_csv(checkpoint.with_suffix(".serving_runs.csv"), dtype={"stage": str})
    assert set(runs["split"]) == {RUNS_HELD_OUT}
    assert set(runs["method"]) == {"network", "teacher"}
    assert set(runs["row_id"]) == set(scores["run"])
    one = runs[runs["method"] == "network"].iloc[0]
    of_run = scores[
        (scores["run"] == one["row_id"])
        & (scores["method"] == "network, model held out")
        & (scores["stage"] == WHOLE_RUN)
    ].set_index("figure")
    assert one["e2e_s"] == of_run.loc["e2e_mean_s", "predicted_s"]
    assert one["e2e_measured_s"] == of_run.loc["e2e_mean_s", "measured_s"]
    assert one["held_out"] == one["group"] == of_run["model"].iloc[0]


def test_serving_runs_of_another_checkpoint_are_refused(checkpoint):
    (checkpoint.with_suffix(".serving_runs.csv")).write_text(f"method,{CHECKPOINT_COLUMN}\na,b\n")
    with pytest.raises(PinnError, match="belongs to a checkpoint other than"):
        shipped_runs(checkpoint)
