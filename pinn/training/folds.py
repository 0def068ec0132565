"""What is left to learn from when models or GPUs are left out of everything, and learning from it.

A model that is left out teaches nothing: not its kernels, not its measured deployments, not its
serving runs, and no near copy of it either. A GPU that is left out takes its deployments and runs
along, and its kernels where the fold says so. What a fold learned is remembered on disk.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pinn.coefficients.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pinn.coefficients.coefficient_network import CoefficientNetwork
from pinn.data.measured_runs import MeasuredRun
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.near_copy import is_near_copy
from pinn.specs.files.progress import shown, still
from pinn.specs.files.store import remembered_folder
from pinn.specs.model import ModelSpec
from pinn.training.kernel_learner import KernelLearner, Learned, fitted_surrogates
from pinn.training.run_scalars import run_fit_from_json
from pinn.training.serving_rows import ServingRows
from pinn.training.teacher.teacher import Teacher


@dataclass(frozen=True)
class Fold:
    """One training.

    Attributes:
        rows: Measured deployments to learn from.
        runs: Serving runs to learn from.
        exclude: What the kernels are without.
    """

    rows: ServingRows
    runs: tuple[MeasuredRun, ...]
    exclude: Exclusion


def fold_of(rows: ServingRows, runs: Sequence[MeasuredRun], exclude: Exclusion) -> Fold:
    """The fold of training rows: with the runs that may be learned from beside them.

    Runs of a left-out model go, and those on a GPU that none of the rows is on any more.

    Args:
        rows: Those to train on.
        runs: All.
        exclude: What the kernels are without.
    """
    gpus = {d.gpu.name for d in rows.deployments}
    kept = tuple(
        run
        for run in runs
        if run.deployment.gpu.name in gpus
        and not any(is_near_copy(run.deployment.model, model) for model in exclude.models)
    )
    return Fold(rows, kept, exclude)


def without_model(rows: ServingRows, model: ModelSpec) -> ServingRows:
    """The measured deployments of other models; near copies go too."""
    other = np.array([not is_near_copy(d.model, model) for d in rows.deployments])
    return rows.take(other[rows.deployment])


def learn_fold(learner: KernelLearner, fold: Fold, root: Path) -> Learned:
    """What a fold learns; the same fold is learned once.

    Args:
        learner: The recipe.
        fold: What to learn from.
        root: Folder in which folds are remembered.
    """
    surrogates = fitted_surrogates(learner.kernels, fold.exclude)
    # Where surrogates lie and how many processes compose decide nothing; their content does.
    plain = replace(learner.kernels, released=None, cache="", workers=1)
    place = remembered_folder(
        _learn,
        replace(learner, kernels=plain),
        fold,
        surrogates.digest(),
        root=root,
        aside={"kernels": learner.kernels},
    )
    fit = run_fit_from_json(json.loads((place / "fit.json").read_text()))
    network = CoefficientNetwork.from_trained(load_checkpoint(place / CHECKPOINT).network)
    return Learned(Teacher(surrogates, fit.scalars), fit, network)


CHECKPOINT = "checkpoint.safetensors"
#: When a fold says for the first time what it is doing.
_FIRST_S = 30.0


def _learn(folder: Path, learner: KernelLearner, fold: Fold, _: str, *, kernels: Any) -> None:
    whole = replace(learner, kernels=kernels)
    learned = whole.learn(fold.rows, fold.runs, fold.exclude, folder / "logs")
    (folder / "fit.json").write_text(json.dumps(learned.fit.to_json(), indent=1) + "\n")
    metadata: Mapping[str, Any] = {"excluded": fold.exclude.describe()}
    checkpoint = Checkpoint(learned.network.trained(), dict(metadata))
    save_checkpoint(checkpoint, folder / CHECKPOINT)


def learn_all(learner: KernelLearner, folds: Sequence[Fold], root: Path, workers: Any) -> None:
    """Learn folds side by side, so that each is remembered.

    Args:
        learner: The recipe.
        folds: To learn.
        root: Folder in which folds are remembered.
        workers: A ``pinn.evaluation.workers.Workers``, or anything with its ``run``.
    """
    began_s = time.monotonic()
    for done, (i, _) in enumerate(workers.run(partial(_learn_one, learner, root), folds), 1):
        left = still(done, len(folds), began_s)
        print(
            f"fold {done} of {len(folds)}: {_name(folds[i])}, {left}", file=sys.stderr, flush=True
        )


def _learn_one(learner: KernelLearner, root: Path, fold: Fold) -> None:
    with shown(f"fold {_name(fold)}", sys.stderr, _FIRST_S):
        learn_fold(learner, fold, root)


def _name(fold: Fold) -> str:
    return fold.exclude.slug().replace("-", " ", 1)
