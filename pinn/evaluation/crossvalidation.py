"""Predictions of what was left out, fold by fold."""

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

# Every method on every split, each cell kept on disk so that an interrupted run goes on.


@dataclass(frozen=True)
class Cell:
    """One method on one split.

    Attributes:
        kind: Of the split, such as ``leave-one-model-out``.
        split: What to train and to test on.
        method: What learns and predicts.
        path: Where its predictions are kept.
        logs: Where its fit logs; cells that share a fit share it.
    """

    kind: str
    split: Split
    method: Method
    path: Path
    logs: Path


def cells(
    splits: Mapping[str, Sequence[Split]], methods: Sequence[Method], folder: Path, fingerprint: str
) -> list[Cell]:
    """The cells of every split and method, made or not.

    Args:
        splits: Name of a kind of split, such as ``leave-one-model-out``, -> its splits.
        methods: What to compare.
        folder: Where cells and training logs are kept.
        fingerprint: Of everything a cell depends on beside its own split and method; cells that
            were made under another one are made anew.
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
    """Cells that are not on disk."""
    return [cell for cell in wanted if not cell.path.is_file()]


def adopt(wanted: Sequence[Cell], folders: Sequence[Path]) -> None:
    """Take over cells that other experiments made under the same fingerprint.

    Args:
        wanted: Cells; those on disk stay as they are.
        folders: Of those experiments; one that is not there holds nothing.
    """
    for cell in missing(wanted):
        others = (folder / "cells" / cell.path.name for folder in folders)
        made = next((other for other in others if other.is_file()), None)
        if made is not None:
            files.write_whole(cell.path, made.read_bytes())


def read_cells(made: Sequence[Cell]) -> pd.DataFrame:
    """The predictions of cells that are on disk.

    Returns:
        One row per (kind of split, row, method): ``split``, ``held_out``, ``row_id``, ``method``,
        ``tpot_s``, ``ttft_s``, ``tpot_measured_s``, ``ttft_measured_s``.
    """
    return pd.concat([pd.read_parquet(cell.path) for cell in made], ignore_index=True)


def compute(rows: ServingRows, wanted: Sequence[Cell], workers: Workers) -> None:
    """Compute the cells that are not on disk and keep each as soon as its fit is done.

    Only this process writes, so that workers need no folder in common but that of the logs.
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
    """What a split trains on, and what it tests on."""
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
    """What a kind of split holds out of the kernels beside its serving rows.

    A held-out model's kernels always go. A GPU's stay where only its serving rows are held out, as
    for a GPU whose kernels somebody measured.
    """
    if kind == "leave-one-model-out":
        models = {d.model.name: d.model for d in test.deployments}
        return Exclusion(models=tuple(models[name] for name in sorted(models)))
    if kind == "leave-one-gpu-and-its-kernels-out":
        return Exclusion(gpus=tuple(sorted({d.gpu.name for d in test.deployments})))
    return Exclusion()


# Errors of left-out rows beside all that was known of them: what intervals are calibrated on.

#: The method whose errors calibrate intervals.
METHOD = "network"

#: Columns of a table of errors; metrics hold log(measured / predicted), ``ttft_share`` is of the
#: predicted E2E, ``shape`` is the same for models of equal shape.
COLUMNS = (
    "split", "row_id", "model", "shape", "gpu", "group", "concurrency", "prompt_tokens",
    "output_tokens", "ttft_share", *GAINS, *held_out.DESCRIPTION, *METRICS,
)  # fmt: skip


def held_out_errors(
    folder: Path,
    observations: pd.DataFrame,
    surrogates: Callable[[Exclusion], KernelSurrogates],
) -> pd.DataFrame:
    """Errors and descriptions of every left-out row of an experiment.

    Rows are described by the kernels that their prediction was allowed to know.

    Args:
        folder: Of a leave-one-out experiment: ``predictions.csv`` (or ``.parquet``).
            Descriptions are remembered in it.
        observations: What was measured.
        surrogates: Gives the kernel surrogates of an exclusion.

    Returns:
        Table with ``COLUMNS``, of the splits that leave models or GPUs out.

    Raises:
        PinnError: If the folder holds no predictions of the network that kernels taught.
    """
    predictions = predictions_of(folder)
    if predictions is None:
        raise PinnError(f"no predictions in {folder}: run the experiment with its evaluation first")
    return described_errors(predictions, observations, surrogates, folder)


def described_errors(
    predictions: pd.DataFrame,
    observations: pd.DataFrame,
    surrogates: Callable[[Exclusion], KernelSurrogates],
    root: Path | None = None,
) -> pd.DataFrame:
    """Errors and descriptions of the left-out rows among predictions.

    Args:
        predictions: As ``pinn.evaluation.crossvalidation.read_cells`` returns them.
        observations: What was measured.
        surrogates: Gives the kernel surrogates of an exclusion.
        root: Where descriptions are remembered; None for the cache of all.

    Returns:
        Table with ``COLUMNS``, of the splits that leave models or GPUs out.

    Raises:
        PinnError: If there are no predictions of the network that kernels taught.
    """
    left_out = predictions["split"].map(left_out_column).notna()
    wanted = predictions[(predictions["method"] == METHOD) & left_out]
    if wanted.empty:
        raise PinnError(
            f"no predictions of the method {METHOD!r} for left-out models or GPUs: run the "
            "experiment with kernels=on until its fits are made"
        )
    loads = observations[["row_id", "model", "concurrency", "prompt_tokens", "output_tokens"]]
    errors = with_e2e(wanted.merge(loads, on="row_id"))
    for metric in METRICS:
        errors[metric] = np.log(errors[f"{metric}_measured_s"] / errors[f"{metric}_s"])
    # A closed loop sends no more than it gets served: nothing magnifies the step time.
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
    """The step in the middle of each row's load: ``concurrency`` and lengths are its columns."""
    values = loads[["concurrency", "prompt_tokens", "output_tokens"]].to_numpy(float).tolist()
    each = zip(deployments, values, strict=True)
    return [(deployment, held_out.decode_step(*load), gpu_known) for deployment, load in each]
