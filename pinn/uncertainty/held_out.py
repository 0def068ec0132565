"""Errors of left-out rows beside their distances: what intervals are calibrated on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pinn.errors import PinnError
from pinn.evaluation.crossvalidation import held_out_kernels
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.surrogates import KernelSurrogates
from pinn.observations.closed_loop import SHORTEST_SHARE
from pinn.observations.table import read_observations
from pinn.remembered.store import remembered_table
from pinn.training.serving_rows import ServingRows, serving_rows
from pinn.uncertainty.kernel_distance import kernel_distances

#: Metrics with an interval; ITL is TPOT's mean by another name.
METRICS = ("tpot", "ttft", "e2e")

#: Kind of split -> what it leaves out of training, and intervals of their calibration alike.
LEFT_OUT = {
    "leave-one-model-out": "model",
    "leave-one-gpu-out": "gpu",
    "leave-one-gpu-and-its-kernels-out": "gpu",
}

#: The method whose errors calibrate intervals.
METHOD = "network"

#: Columns of a table of errors; metrics hold log(measured / predicted).
COLUMNS = (
    "split", "row_id", "model", "gpu", "group", "concurrency", "prompt_tokens", "output_tokens",
    "distance", "elsewhere", *METRICS,
)  # fmt: skip


def held_out_errors(
    folder: Path, surrogates: Callable[[Exclusion], KernelSurrogates]
) -> pd.DataFrame:
    """Errors and distances of every left-out row of an experiment.

    The distance is that to the kernels which the row's prediction was allowed to know.

    Args:
        folder: Of a leave-one-out experiment: ``predictions.csv`` (or ``.parquet``) and
            ``observations``. Distances are remembered in it.
        surrogates: Gives the kernel surrogates of an exclusion.

    Returns:
        Table with ``COLUMNS``, of the splits in ``LEFT_OUT``.

    Raises:
        PinnError: If the folder holds no predictions of the network that kernels taught.
    """
    predictions = _read_predictions(folder)
    wanted = (predictions["method"] == METHOD) & predictions["split"].isin(list(LEFT_OUT))
    if not wanted.any():
        raise PinnError(
            f"{folder} has no predictions of the method {METHOD!r} for left-out models or GPUs: "
            "run the experiment with kernels=on until its fits are made"
        )
    observations = read_observations(folder / "observations" / "silicon.parquet")
    errors = _errors(predictions[wanted], observations)
    distances = _distances(errors, serving_rows(observations), surrogates, folder)
    return errors.merge(distances, on=["split", "row_id"])[list(COLUMNS)]


def _read_predictions(folder: Path) -> pd.DataFrame:
    table = folder / "predictions.parquet"
    if table.is_file():
        return pd.read_parquet(table)
    if not table.with_suffix(".csv").is_file():
        raise PinnError(f"no predictions in {folder}: run the experiment with its evaluation first")
    return pd.read_csv(table.with_suffix(".csv"))


def _errors(predictions: pd.DataFrame, observations: pd.DataFrame) -> pd.DataFrame:
    loads = observations[
        ["row_id", "model", "gpu", "concurrency", "prompt_tokens", "output_tokens"]
    ]
    found = predictions.merge(loads, on="row_id")
    found["group"] = found["model"] + " on " + found["gpu"]
    later = found["output_tokens"] * (1 + SHORTEST_SHARE) / 2 - 1
    for metric in ("tpot", "ttft"):
        found[metric] = np.log(found[f"{metric}_measured_s"] / found[f"{metric}_s"])
    found["e2e"] = np.log(
        (found["ttft_measured_s"] + later * found["tpot_measured_s"])
        / (found["ttft_s"] + later * found["tpot_s"])
    )
    return found


def _distances(
    errors: pd.DataFrame,
    rows: ServingRows,
    surrogates: Callable[[Exclusion], KernelSurrogates],
    root: Path,
) -> pd.DataFrame:
    """Distances by split and row."""
    found = []
    for (split, _), part in errors.groupby(["split", "held_out"], sort=False):
        test = rows.take(np.isin(rows.row_id, part["row_id"]))
        kernels = surrogates(held_out_kernels(str(split), test))
        of_row = dict(zip(test.row_id, test.deployment, strict=True))
        steps = [
            (test.deployments[of_row[row["row_id"]]], _mean_step(row))
            for row in part.to_dict("records")
        ]
        at = remembered_table(kernel_distances, kernels, steps, root=root)
        at = at.rename(columns={"total": "distance"})[["distance", "elsewhere"]]
        found.append(at.assign(split=str(split), row_id=part["row_id"].to_list()))
    return pd.concat(found, ignore_index=True)


def _mean_step(row: Mapping[Hashable, Any]) -> str:
    """The decode step in the middle of a row's requests."""
    return f"{row['concurrency']} decode @ {row['prompt_tokens'] + row['output_tokens'] // 2}"
