"""What the folds of a published checkpoint predicted, where the suite's own fits are not made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.errors import PinnError
from pinn.evaluation.left_out_runs import LEFT_OUT, RUNS_LEFT_OUT
from pinn.evaluation.publish import CHECKPOINT_COLUMN
from pinn.research.suite_runs import run_predictions
from pinn.specs.files.read_report import file_sha256

_PAIR = ["split", "method"]

#: Measured values are kept with eight digits.
_ROUNDING = 1e-6


def shipped_predictions(
    checkpoint: Path, splits: Sequence[str], made: pd.DataFrame, observations: pd.DataFrame
) -> pd.DataFrame:
    """Predictions of pairs of split and method that are not made, by the checkpoint's own folds.

    Each was made by a fit that left its row's model, or GPU and kernels, out.

    Args:
        checkpoint: Beside which ``publish`` put its predictions.
        splits: Kinds of split to take.
        made: Predictions that there are; their pairs are not taken.
        observations: What was measured; the predictions have to be of the same.

    Returns:
        As ``pinn.evaluation.crossvalidation.cross_validate`` returns them, with the checkpoint's
        SHA-256 in the column ``CHECKPOINT_COLUMN``.

    Raises:
        PinnError: If there are none, or they are of another checkpoint or of other measurements.
    """
    path = checkpoint.with_suffix(".predictions.csv")
    kept = _published(path, checkpoint)
    kept = kept[kept["split"].isin(list(splits))]
    measured = observations.set_index("row_id")[["tpot_s", "ttft_s"]].reindex(kept["row_id"])
    own = kept[["tpot_measured_s", "ttft_measured_s"]].to_numpy()
    if not np.allclose(measured.to_numpy(), own, rtol=_ROUNDING, atol=0):
        raise PinnError(f"{path} predicts other measurements than those at hand")
    there = pd.MultiIndex.from_frame(made[_PAIR])
    return kept[~pd.MultiIndex.from_frame(kept[_PAIR]).isin(there)]


def shipped_runs(checkpoint: Path) -> pd.DataFrame:
    """Serving runs as the checkpoint's own folds predicted them, each without the run's model.

    Args:
        checkpoint: Beside which ``publish`` put their scores.

    Returns:
        As :func:`shipped_predictions`, and the column ``group``.

    Raises:
        PinnError: If there are none, or they are of another checkpoint.
    """
    scores = _published(checkpoint.with_suffix(".serving_runs.csv"), checkpoint)
    scores = scores[scores["method"].str.endswith(LEFT_OUT)]
    unseen = scores.assign(method=scores["method"].str.removesuffix(LEFT_OUT))
    return run_predictions(unseen, RUNS_LEFT_OUT)


def _published(path: Path, checkpoint: Path) -> pd.DataFrame:
    """A table that was published with a checkpoint."""
    if not path.is_file():
        raise PinnError(f"no {path}: the checkpoint was published without it")
    table = pd.read_csv(path, dtype={"stage": str})
    if set(table[CHECKPOINT_COLUMN]) != {file_sha256(checkpoint)}:
        raise PinnError(f"{path} belongs to another checkpoint than {checkpoint}: publish both")
    return table
