"""Predicted latencies of held-out deployments, computed one cross-validation fold at a time."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.common import files, progress, store
from pinn.common.workers import Workers
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.evaluation.methods import Method
from pinn.evaluation.metrics import predictions_of, with_e2e
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.surrogates import KernelSurrogates
from pinn.surrogate.uncertainty import held_out
from pinn.surrogate.uncertainty.interval_fit import GAINS, METRICS, left_out_column
from pinn.training.data.splits import Split
from pinn.training.serving_rows import ServingRows, serving_rows

# Predictions of every method on every split. Each pair of method and split has its own file, so an
# interrupted evaluation can be resumed.


@dataclass(frozen=True)
class Cell:
    """TPOT and TTFT predictions of one method on one split, cached in a file.

    Attributes:
        kind: Split method, such as ``leave-one-model-out``.
        split: Rows to train and to test on.
        method: Prediction method that is trained and tested.
        path: File that stores the predictions.
        logs: Folder of the fit's logs; cells from the same fit share a folder.
    """

    kind: str
    split: Split
    method: Method
    path: Path
    logs: Path


def cells(
    splits: Mapping[str, Sequence[Split]], methods: Sequence[Method], folder: Path, fingerprint: str
) -> list[Cell]:
    """Return a cell for each pair of split and method, whether or not its predictions are on disk.

    Args:
        splits: Splits by split method, such as ``leave-one-model-out``.
        methods: Methods to compare.
        folder: Folder of cells and training logs.
        fingerprint: Hash of everything on which the cells depend. Cells on disk with another
            fingerprint are recomputed.
    """
    return [
        _cell(kind, split, method, folder, fingerprint)
        for kind, of_kind in splits.items()
        for split in of_kind
        for method in methods
    ]


def _cell(kind: str, split: Split, method: Method, folder: Path, fingerprint: str) -> Cell:
    parts = [fingerprint, kind, method.name, split.train_ids, split.test_ids]
    key = files.json_text([*parts, method.recipe] if method.recipe else parts)
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    path = folder / "cells" / f"{digest}.parquet"
    fold = hashlib.sha256(f"{fingerprint} {kind} {split.name}".encode()).hexdigest()[:16]
    return Cell(kind, split, method, path, folder / "logs" / fold / method.logs)


def missing(wanted: Sequence[Cell]) -> list[Cell]:
    """Return the cells whose predictions are not on disk."""
    return [cell for cell in wanted if not cell.path.is_file()]


def adopt(wanted: Sequence[Cell], folders: Sequence[Path]) -> None:
    """Copy predictions of cells that other experiments have computed with the same fingerprint.

    Args:
        wanted: Cells to look for; cells already on disk are kept.
        folders: Folders of the other experiments; missing folders are ignored.
    """
    for cell in missing(wanted):
        others = (folder / "cells" / cell.path.name for folder in folders)
        made = next((other for other in others if other.is_file()), None)
        if made is not None:
            files.write_whole(cell.path, made.read_bytes())


def read_cells(made: Sequence[Cell]) -> pd.DataFrame:
    """Read the predictions of all cells that are on disk.

    Returns:
        One row per (split method, row, prediction method): ``split``, ``held_out``, ``row_id``,
        ``method``, ``tpot_s``, ``ttft_s``, ``tpot_measured_s``, ``ttft_measured_s``.
    """
    return pd.concat([pd.read_parquet(cell.path) for cell in made], ignore_index=True)


def compute(rows: ServingRows, wanted: Sequence[Cell], workers: Workers) -> None:
    """Compute the missing predictions of cells, and write each file as soon as its fit completes.

    Only this process writes predictions. Its workers write only to the folder of logs.
    """
    shared: dict[Path, list[Cell]] = {}
    for cell in missing(wanted):
        shared.setdefault(cell.logs, []).append(cell)
    fits = list(shared.values())
    began_s = time.monotonic()
    for done, (i, tables) in enumerate(workers.run(partial(_compute, rows), fits), start=1):
        for cell, table in zip(fits[i], tables, strict=True):
            files.replace_atomically(cell.path, partial(table.to_parquet, index=False))
        names = [cell.method.name for cell in fits[i]]
        about = "; ".join(names) if len(names) <= 2 else f"{len(names)} methods"
        left = progress.still(done, len(fits), began_s)
        progress.note(f"fold {done} of {len(fits)}: {fits[i][0].split.name}: {about}, {left}")


def _compute(rows: ServingRows, of_fit: Sequence[Cell]) -> list[pd.DataFrame]:
    return [_predictions(rows, cell) for cell in of_fit]


def parts_of(rows: ServingRows, split: Split) -> tuple[ServingRows, ServingRows]:
    """Return a split's training deployments and its test deployments."""
    train, test = (
        rows.take(np.isin(rows.row_id, ids)) for ids in (split.train_ids, split.test_ids)
    )
    return train, test


def _predictions(rows: ServingRows, cell: Cell) -> pd.DataFrame:
    train, test = parts_of(rows, cell.split)
    predictor = cell.method.learn(train, held_out_kernels(cell.kind, test), cell.logs)
    tpot_s, ttft_s = predictor(test)
    return pd.DataFrame(
        {
            "split": cell.kind,
            "held_out": ", ".join(cell.split.held_out),
            "row_id": list(test.row_id),
            "method": cell.method.name,
            "tpot_s": tpot_s,
            "ttft_s": ttft_s,
            "tpot_measured_s": test.tpot_s,
            "ttft_measured_s": test.ttft_s,
        }
    )


def held_out_kernels(kind: str, test: ServingRows) -> Exclusion:
    """Return the models and the GPUs whose kernels a split method holds out for given test rows.

    A held-out model's kernels are always held out. A held-out GPU's kernels are held out only by
    ``leave-one-gpu-and-its-kernels-out``. Other split methods represent a GPU whose kernels have
    been measured.
    """
    if kind == "leave-one-model-out":
        models = {d.model.name: d.model for d in test.deployments}
        return Exclusion(models=tuple(models[name] for name in sorted(models)))
    if kind == "leave-one-gpu-and-its-kernels-out":
        return Exclusion(gpus=tuple(sorted({d.gpu.name for d in test.deployments})))
    return Exclusion()


# Errors and features of held-out rows, for calibrating prediction intervals.

#: Prediction method to whose errors the intervals are calibrated.
METHOD = "network"

#: Columns of a table of held-out errors. Columns named in ``METRICS`` have log(measured /
#: predicted). ``ttft_share`` is the predicted TTFT / E2E latency, and ``shape`` is equal for models
#: of equal shape.
COLUMNS = (
    "split", "row_id", "model", "shape", "gpu", "group", "concurrency", "prompt_tokens",
    "output_tokens", "ttft_share", *GAINS, *held_out.DESCRIPTION, *METRICS,
)  # fmt: skip


def held_out_errors(
    folder: Path,
    observations: pd.DataFrame,
    surrogates: Callable[[Exclusion], KernelSurrogates],
) -> pd.DataFrame:
    """Return log errors of held-out rows, with the columns used to fit interval widths.

    One of these columns is the distance of a row from the kernels on which its fold was trained.

    Args:
        folder: Folder of a leave-one-out experiment with ``predictions.csv`` (or ``.parquet``);
            distances are cached in it.
        observations: Table of measured deployments.
        surrogates: Function that returns the kernel surrogates fitted without given models and
            GPUs.

    Returns:
        Table with ``COLUMNS``, for the splits that hold out models or GPUs.

    Raises:
        PinnError: If the folder has no predictions by the network trained on kernels.
    """
    predictions = predictions_of(folder)
    if predictions is None:
        raise PinnError(
            f"the folder {folder} has no predictions: run the experiment with its evaluation first"
        )
    return described_errors(predictions, observations, surrogates, folder)


def described_errors(
    predictions: pd.DataFrame,
    observations: pd.DataFrame,
    surrogates: Callable[[Exclusion], KernelSurrogates],
    root: Path | None = None,
) -> pd.DataFrame:
    """Return log errors of held-out predictions, with the columns used to fit interval widths.

    Args:
        predictions: Predictions as ``pinn.evaluation.crossvalidation.read_cells`` returns them.
        observations: Table of measured deployments.
        surrogates: Function that returns the kernel surrogates fitted without given models and
            GPUs.
        root: Folder of cached distances from the training data; None for the common cache.

    Returns:
        Table with ``COLUMNS``, for the splits that hold out models or GPUs.

    Raises:
        PinnError: If there are no predictions by the network trained on kernels.
    """
    left_out = predictions["split"].map(left_out_column).notna()
    wanted = predictions[(predictions["method"] == METHOD) & left_out]
    if wanted.empty:
        raise PinnError(
            f"the method {METHOD!r} has no predictions for held-out models or GPUs: run the "
            "experiment with kernels=on until its fits are finished"
        )
    loads = observations[["row_id", "model", "concurrency", "prompt_tokens", "output_tokens"]]
    errors = with_e2e(wanted.merge(loads, on="row_id"))
    for metric in METRICS:
        errors[metric] = np.log(errors[f"{metric}_measured_s"] / errors[f"{metric}_s"])
    # A gain is the relative change of a latency per relative change of all step times. Gains are 1
    # in a closed loop, where the number of requests in flight does not depend on step times.
    gains = dict.fromkeys(GAINS, 1.0)
    errors = errors.assign(ttft_share=errors["ttft_s"] / errors["e2e_s"], **gains)
    rows = serving_rows(observations[observations["row_id"].isin(errors["row_id"])])
    of_row = dict(zip(rows.row_id, (one.deployment for one in rows.measured), strict=True))
    found = []
    for (split, _), part in errors.groupby(["split", "held_out"], sort=False):
        test = rows.take(np.isin(rows.row_id, part["row_id"]))
        kernels = surrogates(held_out_kernels(str(split), test))
        deployments = [of_row[name] for name in part["row_id"]]
        steps = mean_steps(deployments, part, left_out_column(str(split)) != "gpu")
        known = store.remembered_table(held_out.described_steps, kernels, steps, root=root)
        about = part.reset_index(drop=True).assign(
            gpu=[deployment.gpu.name for deployment in deployments],
            shape=[held_out.shape_of(deployment.model) for deployment in deployments],
        )
        found.append(pd.concat([about, known], axis=1))
    table = pd.concat(found, ignore_index=True)
    return table.assign(group=table["model"] + " on " + table["gpu"])[list(COLUMNS)]


def mean_steps(
    deployments: Sequence[Deployment], loads: pd.DataFrame, gpu_known: bool = True
) -> list[held_out.Step]:
    """Return a tuple (deployment, decode step, ``gpu_known``) for each row of loads.

    In the decode step, every client's request has generated half of its output.
    """
    values = loads[["concurrency", "prompt_tokens", "output_tokens"]].to_numpy(float).tolist()
    each = zip(deployments, values, strict=True)
    return [(deployment, held_out.decode_step(*load), gpu_known) for deployment, load in each]
