"""Predictions of a published checkpoint's folds stand in only where they are what they claim."""

import pandas as pd
import pytest
from evaluations import observations, predictions

from pinn.errors import PinnError
from pinn.evaluation.publish import CHECKPOINT_COLUMN
from pinn.files.read_report import file_sha256
from pinn.research.suite_shipped import shipped_predictions

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
    made = every[every["method"] == "teacher, composed"]
    taken = shipped_predictions(checkpoint, SPLITS, made, rows)
    assert set(taken["split"]) == set(SPLITS)
    assert set(taken["method"]) == set(every["method"]) - {"teacher, composed"}
    of_network = taken[taken["method"] == "network"]
    assert sorted(of_network["row_id"]) == sorted(rows["row_id"])
    assert set(taken[CHECKPOINT_COLUMN]) == {file_sha256(checkpoint)}


def test_those_of_another_checkpoint_are_refused(checkpoint, rows):
    checkpoint.write_bytes(b"other weights")
    with pytest.raises(PinnError, match="belongs to another checkpoint"):
        shipped_predictions(checkpoint, SPLITS, predictions(rows), rows)


@pytest.mark.parametrize("change", ["value", "row"])
def test_those_of_other_measurements_are_refused(checkpoint, rows, change):
    other = rows.iloc[1:] if change == "row" else rows.assign(tpot_s=rows["tpot_s"] * 1.001)
    with pytest.raises(PinnError, match="other measurements"):
        shipped_predictions(checkpoint, SPLITS, pd.DataFrame(columns=["split", "method"]), other)


def test_a_checkpoint_without_predictions_is_refused(checkpoint, rows):
    checkpoint.with_suffix(".predictions.csv").unlink()
    with pytest.raises(PinnError, match="published without its predictions"):
        shipped_predictions(checkpoint, SPLITS, predictions(rows), rows)
