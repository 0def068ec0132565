"""Trainings that hold models or GPUs out, each remembered on disk.

A held-out model trains nothing: not its kernels, not its measured deployments, not its serving
runs, and no near copy of it either. A held-out GPU takes its deployments and runs along, and its
kernels where the fold says so.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from pinn.common.files import write_json_file
from pinn.common.progress import note, shown, still
from pinn.common.store import remembered_folder
from pinn.common.workers import Workers
from pinn.kernels.exclusion import Exclusion, is_near_copy
from pinn.measurements.runs.measured_runs import MeasuredRun
from pinn.specs.model import ModelSpec
from pinn.surrogate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pinn.surrogate.network import CoefficientNetwork
from pinn.training.kernel_data import KernelSettings, fitted_surrogates
from pinn.training.kernel_learner import KernelLearner, Learned
from pinn.training.run_scalars import run_fit_from_json
from pinn.training.serving_rows import ServingRows
from pinn.training.teacher import Teacher


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
    # Where surrogates lie decides nothing; their content does.
    plain = replace(learner.kernels, released=None, cache="", tables="")
    recipe, aside = replace(learner, kernels=plain), {"kernels": learner.kernels}
    place = remembered_folder(_learn, recipe, fold, surrogates.digest(), root=root, aside=aside)
    fit = run_fit_from_json(json.loads((place / "fit.json").read_text()))
    checkpoint = load_checkpoint(place / CHECKPOINT)
    network = CoefficientNetwork.from_weights(checkpoint.network)
    return Learned(Teacher(surrogates, fit.scalars), fit, network)


CHECKPOINT = "checkpoint.safetensors"
#: When a fold says for the first time what it is doing.
_FIRST_S = 30.0


def _learn(
    folder: Path, learner: KernelLearner, fold: Fold, _: str, *, kernels: KernelSettings
) -> None:
    whole = replace(learner, kernels=kernels)
    learned = whole.learn(fold.rows, fold.runs, fold.exclude, folder / "logs")
    write_json_file(folder / "fit.json", learned.fit.to_json(), indent=1)
    without = {"excluded": fold.exclude.describe()}
    checkpoint = Checkpoint(learned.network.weights(), without)
    save_checkpoint(checkpoint, folder / CHECKPOINT)


def learn_all(learner: KernelLearner, folds: Sequence[Fold], root: Path, workers: Workers) -> None:
    """Learn folds side by side, so that each is remembered.

    Args:
        learner: The recipe.
        folds: To learn.
        root: Folder in which folds are remembered.
        workers: Where they run.
    """
    began_s = time.monotonic()
    for done, (i, _) in enumerate(workers.run(partial(_learn_one, learner, root), folds), 1):
        left = still(done, len(folds), began_s)
        note(f"fold {done} of {len(folds)}: {_name(folds[i])}, {left}")


def _learn_one(learner: KernelLearner, root: Path, fold: Fold) -> None:
    with shown(f"fold {_name(fold)}", sys.stderr, _FIRST_S):
        learn_fold(learner, fold, root)


def _name(fold: Fold) -> str:
    return fold.exclude.slug().replace("-", " ", 1)
