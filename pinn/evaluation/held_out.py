"""Errors of left-out rows beside all that was known of them: what intervals are calibrated on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.data.silicon import LENGTH_RANGE
from pinn.data.table import read_observations
from pinn.errors import PinnError
from pinn.evaluation.crossvalidation import held_out_kernels
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.surrogates import KernelSurrogates
from pinn.specs.files.store import remembered_table
from pinn.training.serving_rows import ServingRows, serving_rows
from pinn.trust.described import (
    DESCRIPTION,
    Step,
    decode_step,
    described_steps,
    shape_of,
)
from pinn.trust.half_widths import GAINS, METRICS, left_out_column

#: The method whose errors calibrate intervals.
METHOD = "network"

#: Columns of a table of errors; metrics hold log(measured / predicted), ``ttft_share`` is of the
#: predicted E2E, ``shape`` is the same for models of equal shape.
COLUMNS = (
    "split", "row_id", "model", "shape", "gpu", "group", "concurrency", "prompt_tokens",
    "output_tokens", "ttft_share", *GAINS, *DESCRIPTION, *METRICS,
)  # fmt: skip


def held_out_errors(
    folder: Path, surrogates: Callable[[Exclusion], KernelSurrogates]
) -> pd.DataFrame:
    """Errors and descriptions of every left-out row of an experiment.

    Rows are described by the kernels that their prediction was allowed to know.

    Args:
        folder: Of a leave-one-out experiment: ``predictions.csv`` (or ``.parquet``) and
            ``observations``. Descriptions are remembered in it.
        surrogates: Gives the kernel surrogates of an exclusion.

    Returns:
        Table with ``COLUMNS``, of the splits that leave models or GPUs out.

    Raises:
        PinnError: If the folder holds no predictions of the network that kernels taught.
    """
    observations = read_observations(folder / "observations" / "silicon.parquet")
    return described_errors(_read_predictions(folder), observations, surrogates, folder)


def described_errors(
    predictions: pd.DataFrame,
    observations: pd.DataFrame,
    surrogates: Callable[[Exclusion], KernelSurrogates],
    root: Path | None = None,
) -> pd.DataFrame:
    """Errors and descriptions of the left-out rows among predictions.

    Args:
        predictions: As ``pinn.evaluation.crossvalidation.cross_validate`` returns them.
        observations: What was measured.
        surrogates: Gives the kernel surrogates of an exclusion.
        root: Where descriptions are remembered; None for the cache of all.

    Returns:
        Table with ``COLUMNS``, of the splits that leave models or GPUs out.

    Raises:
        PinnError: If there are no predictions of the network that kernels taught.
    """
    left_out = predictions["split"].map(lambda split: left_out_column(split) is not None)
    wanted = (predictions["method"] == METHOD) & left_out
    if not wanted.any():
        raise PinnError(
            f"no predictions of the method {METHOD!r} for left-out models or GPUs: run the "
            "experiment with kernels=on until its fits are made"
        )
    errors = _errors(predictions[wanted], observations)
    predicted = observations[observations["row_id"].isin(errors["row_id"])]
    return _described(errors, serving_rows(predicted), surrogates, root)[list(COLUMNS)]


def _read_predictions(folder: Path) -> pd.DataFrame:
    table = folder / "predictions.parquet"
    if table.is_file():
        return pd.read_parquet(table)
    if not table.with_suffix(".csv").is_file():
        raise PinnError(f"no predictions in {folder}: run the experiment with its evaluation first")
    return pd.read_csv(table.with_suffix(".csv"))


def _errors(predictions: pd.DataFrame, observations: pd.DataFrame) -> pd.DataFrame:
    loads = observations[["row_id", "model", "concurrency", "prompt_tokens", "output_tokens"]]
    found = predictions.merge(loads, on="row_id")
    later = found["output_tokens"] * sum(LENGTH_RANGE) / 2 - 1
    for metric in ("tpot", "ttft"):
        found[metric] = np.log(found[f"{metric}_measured_s"] / found[f"{metric}_s"])
    measured = found["ttft_measured_s"] + later * found["tpot_measured_s"]
    predicted = found["ttft_s"] + later * found["tpot_s"]
    found["e2e"] = np.log(measured / predicted)
    found["ttft_share"] = found["ttft_s"] / predicted
    # A closed loop sends no more than it gets served: nothing magnifies the step time.
    return found.assign(**dict.fromkeys(GAINS, 1.0))


def _described(
    errors: pd.DataFrame,
    rows: ServingRows,
    surrogates: Callable[[Exclusion], KernelSurrogates],
    root: Path | None,
) -> pd.DataFrame:
    """The errors with what is known of each row's mean step; its GPU has its datasheet's name."""
    of_row = {
        name: rows.deployments[i] for name, i in zip(rows.row_id, rows.deployment, strict=True)
    }
    found = []
    for (split, _), part in errors.groupby(["split", "held_out"], sort=False):
        test = rows.take(np.isin(rows.row_id, part["row_id"]))
        kernels = surrogates(held_out_kernels(str(split), test))
        loads = part[["concurrency", "prompt_tokens", "output_tokens"]].itertuples(index=False)
        deployments = [of_row[name] for name in part["row_id"]]
        steps = [
            Step(deployment, decode_step(*load), left_out_column(str(split)) != "gpu")
            for deployment, load in zip(deployments, loads, strict=True)
        ]
        known = remembered_table(described_steps, kernels, steps, root=root)
        about = part.reset_index(drop=True).assign(
            gpu=[deployment.gpu.name for deployment in deployments],
            shape=[shape_of(deployment.model) for deployment in deployments],
        )
        found.append(pd.concat([about, known], axis=1))
    together = pd.concat(found, ignore_index=True)
    return together.assign(group=together["model"] + " on " + together["gpu"])
