"""What the folds of a published checkpoint predicted, serving runs among it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.common.files import file_sha256
from pinn.errors import PinnError
from pinn.laboratory.folds import CHECKPOINT_COLUMN
from pinn.laboratory.serving_runs import LEFT_OUT, RUNS_LEFT_OUT
from pinn.training.data.measured_runs import WHOLE_RUN

#: Simulated figure -> metric of the suite.
_METRICS = {
    "itl_mean_s": "tpot", "ttft_mean_s": "ttft", "e2e_mean_s": "e2e", "e2e_p99_s": "e2e_p99",
}  # fmt: skip


def run_predictions(scores: pd.DataFrame, split: str) -> pd.DataFrame:
    """Whole runs in the schema of the other splits; a model's runs are one group.

    Args:
        scores: As ``pinn.laboratory.serving_runs.score_runs`` returns them.
        split: Name of their split.
    """
    whole = scores[(scores["stage"] == WHOLE_RUN) & scores["figure"].isin(list(_METRICS))]
    wide = whole.pivot(
        index=["method", "run", "model"], columns="figure", values=["predicted_s", "measured_s"]
    )
    table = wide.index.to_frame(index=False).rename(columns={"run": "row_id"})
    table = table.assign(split=split, held_out=table["model"], group=table["model"])
    for figure, metric in _METRICS.items():
        if ("predicted_s", figure) in wide:
            table[f"{metric}_s"] = wide["predicted_s", figure].to_numpy()
            table[f"{metric}_measured_s"] = wide["measured_s", figure].to_numpy()
    return table.drop(columns="model")


# What the folds of a published checkpoint predicted, where the suite's own fits are not made.

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
        As ``pinn.laboratory.crossvalidation.cross_validate`` returns them, with the checkpoint's
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
