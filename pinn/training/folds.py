"""Training runs that hold out models or GPUs, each cached on disk.

Each run yields a teacher, which sums kernel times to step times, and a network. The training data
excludes kernels, measured deployments and serving runs of a held-out model and of models of almost
the same shape (near copies). It also excludes measured deployments and serving runs on a held-out
GPU. Kernels of that GPU are excluded only if the fold's ``exclude`` names it.
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
    """Training data of one cross-validation fold.

    Attributes:
        rows: Measured deployments to train on.
        runs: Serving runs to train on.
        exclude: Models and GPUs whose kernels are excluded.
    """

    rows: ServingRows
    runs: tuple[MeasuredRun, ...]
    exclude: Exclusion


def fold_of(rows: ServingRows, runs: Sequence[MeasuredRun], exclude: Exclusion) -> Fold:
    """Return a fold with the given training rows and the serving runs it may be trained on.

    Serving runs of a held-out model are excluded, as are runs on a GPU that occurs in no row.

    Args:
        rows: Measured deployments to train on.
        runs: All serving runs.
        exclude: Models and GPUs whose kernels are excluded.
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
    """Return the measured deployments without a model and its near copies."""
    other = np.array([not is_near_copy(d.model, model) for d in rows.deployments])
    return rows.take(other[rows.deployment])


def learn_fold(learner: KernelLearner, fold: Fold, root: Path) -> Learned:
    """Train a fold's teacher (summed kernel times) and network, or read them from the cache.

    Args:
        learner: Learner with its settings.
        fold: Training data of the fold.
        root: Folder of cached folds.
    """
    surrogates = fitted_surrogates(learner.kernels, fold.exclude)
    # The cache key depends on the content of the surrogates, not on their folder.
    plain = replace(learner.kernels, released=None, cache="", tables="")
    recipe, aside = replace(learner, kernels=plain), {"kernels": learner.kernels}
    place = remembered_folder(_learn, recipe, fold, surrogates.digest(), root=root, aside=aside)
    fit = run_fit_from_json(json.loads((place / "fit.json").read_text()))
    checkpoint = load_checkpoint(place / CHECKPOINT)
    network = CoefficientNetwork.from_weights(checkpoint.network)
    return Learned(Teacher(surrogates, fit.scalars), fit, network)


CHECKPOINT = "checkpoint.safetensors"
#: Time in seconds from the start of a fold's training to its first progress report.
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
    """Train the teacher and network of each fold (:func:`learn_fold`) in parallel processes.

    Args:
        learner: Learner with its settings.
        folds: Folds to train.
        root: Folder of cached folds.
        workers: Processes that train the folds.
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
