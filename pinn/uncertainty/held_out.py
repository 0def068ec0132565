"""Errors of left-out rows beside their distances: what intervals are calibrated on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.errors import PinnError
from pinn.evaluation.crossvalidation import held_out_kernels
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.surrogates import KernelSurrogates
from pinn.observations.closed_loop import SHORTEST_SHARE
from pinn.observations.table import read_observations, replace_atomically
from pinn.training.serving_rows import ServingRows, serving_rows
from pinn.uncertainty.kernel_distance import kernel_distance

#: Metrics with an interval; ITL is TPOT's mean by another name.
METRICS = ("tpot", "ttft", "e2e")

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
        folder: Of a leave-one-out experiment: ``predictions.csv`` and ``observations``.
        surrogates: Gives the kernel surrogates of an exclusion.

    Returns:
        Table with ``COLUMNS``; kept in the folder as ``held_out_errors.csv`` and read from there
        where the predictions have not changed since.

    Raises:
        PinnError: If the folder holds no predictions of the network that kernels taught.
    """
    source, target = folder / "predictions.csv", folder / "held_out_errors.csv"
    if not source.is_file():
        raise PinnError(f"no {source}: run the experiment with its evaluation first")
    if target.is_file() and target.stat().st_mtime >= source.stat().st_mtime:
        return pd.read_csv(target)
    predictions = pd.read_csv(source)
    predictions = predictions[predictions["method"] == METHOD]
    if predictions.empty:
        raise PinnError(f"{source} has no method {METHOD!r}: run the experiment with kernels=on")
    observations = read_observations(folder / "observations" / "silicon.parquet")
    errors = _errors(predictions, observations)
    distances = _distances(errors, serving_rows(observations), surrogates)
    errors = errors.merge(distances, on=["split", "row_id"])[list(COLUMNS)]
    replace_atomically(target, lambda path: errors.to_csv(path, index=False))
    return errors


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
    errors: pd.DataFrame, rows: ServingRows, surrogates: Callable[[Exclusion], KernelSurrogates]
) -> pd.DataFrame:
    found = []
    for (split, _), part in errors.groupby(["split", "held_out"], sort=False):
        test = rows.take(np.isin(rows.row_id, part["row_id"]))
        kernels = surrogates(held_out_kernels(str(split), test))
        of_row = dict(zip(test.row_id, test.deployment, strict=True))
        for row in part.to_dict("records"):
            context = row["prompt_tokens"] + row["output_tokens"] // 2
            at = kernel_distance(
                kernels,
                test.deployments[of_row[row["row_id"]]],
                f"{row['concurrency']} decode @ {context}",
            )
            found.append((split, row["row_id"], at.total, at.elsewhere))
    return pd.DataFrame(found, columns=["split", "row_id", "distance", "elsewhere"])
