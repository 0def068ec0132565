"""The network learned from composed steps and serving runs, fold by fold."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from pinn.common.files import write_json_file
from pinn.common.progress import doing, note, shown, still
from pinn.common.store import remembered_folder
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.kernels.composition import COMPOSED_PARTS
from pinn.kernels.exclusion import Exclusion, is_near_copy
from pinn.kernels.heldout import surrogates_without
from pinn.kernels.surrogates import KernelSurrogates
from pinn.measurements.runs.measured_runs import MeasuredRun
from pinn.specs.gpu import load_gpu
from pinn.specs.model import ModelSpec
from pinn.surrogate.architecture import NetworkSettings
from pinn.surrogate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pinn.surrogate.featurizer import fit_scale
from pinn.surrogate.network import CoefficientNetwork
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.training import distillation
from pinn.training.composed import ComposedSteps, remembered_steps
from pinn.training.distillation import Distillation, DistillationRows, DistillationSettings
from pinn.training.learner import TrainerFactory
from pinn.training.run_rows import NO_RUNS
from pinn.training.run_scalars import (
    Evidence,
    RunFit,
    RunFitSettings,
    RunSimulation,
    run_fit_from_json,
)
from pinn.training.serving_rows import ServingRows
from pinn.training.synthetic import catalog_deployments, synthetic_deployments
from pinn.training.teacher import Teacher, projected_parts
from pinn.training.trainer import LAST

# Learning from measured servers: simulate, take the batches, fit, until nothing changes.


def run_parts(
    kernels: KernelSurrogates, runs: Sequence[MeasuredRun]
) -> Float[np.ndarray, "runs operators features"]:
    """Projected betas of each run's operators; equal deployments are projected once."""
    deployments = list(dict.fromkeys(run.deployment for run in runs))
    if not deployments:
        return np.zeros((0, len(COMPOSED_PARTS), len(STEP_FEATURES)))
    parts = projected_parts(kernels, deployments)
    return parts[[deployments.index(run.deployment) for run in runs]]


def learn_from_runs(
    kernels: KernelSurrogates,
    runs: Sequence[MeasuredRun],
    serving: ServingRows,
    settings: RunFitSettings,
) -> RunFit:
    """Fit scalars, departures and alpha to measured deployments and runs.

    Every round simulates the runs with what was learned so far and fits to the batches that came
    out; a change that went too far is halved. It ends when the figures hardly change any more.
    Without runs one fit is all: the batches of closed loops hardly depend on the coefficients.

    Args:
        kernels: Surrogates to compose steps of.
        runs: To train on; may be none.
        serving: Measured deployments to train on.
        settings: How.
    """
    of_serving = projected_parts(kernels, serving.deployments)
    return alternate(runs, run_parts(kernels, runs), serving, of_serving, settings)


def alternate(
    runs: Sequence[MeasuredRun],
    parts: Float[np.ndarray, "runs operators features"],
    serving: ServingRows,
    serving_parts: Float[np.ndarray, "deployments operators features"],
    settings: RunFitSettings,
) -> RunFit:
    """The rounds themselves, given the projected betas of every deployment's operators."""
    models = [run.deployment.model.name for run in runs]
    evidence = Evidence(NO_RUNS, models, parts, serving, serving_parts)
    return RunSimulation(runs, evidence, settings).fit()


# Learning from measured kernels: surrogates, composed steps, scalars, then the network.


@dataclass(frozen=True)
class KernelSettings:
    """Where kernels come from and how many deployments are composed of them.

    Attributes:
        released: Folder of fitted surrogates that come with the project, one sub-folder per
            exclusion; None fits them anew.
        cache: Folder in which surrogates and composed steps are remembered.
        synthetic: Synthetic deployments.
        catalog: Draws of deployments of known models.
        gpus: On which they run; those whose kernels were measured.
        seed: Of surrogates, deployments and batches.
        tables: Folder of newer kernel tables (``make kernel-tables``), which surrogates are fitted
            to; empty for those of the installed package.
    """

    released: str | None
    cache: str
    gpus: tuple[str, ...]
    synthetic: int = 24000
    catalog: int = 6000
    seed: int = 0
    tables: str = ""


@dataclass(frozen=True)
class Learned:
    """What one training gives.

    Attributes:
        teacher: Kernels and shared scalars.
        fit: The scalars, what models that ran depart from them by, and alpha.
        network: Distilled from the teacher, shared scalars alone; its alpha is the fit's.
    """

    teacher: Teacher
    fit: RunFit
    network: CoefficientNetwork


@dataclass(frozen=True)
class KernelLearner:
    """The one recipe: kernels teach the network, measured servers a few global scalars and alpha.

    Attributes:
        kernels: Where kernels come from.
        network: Size and bounds.
        distillation: How composed steps teach the network.
        run_fit: How measured deployments and runs teach scalars and alpha.
        trainer: Makes the Lightning trainer, given ``max_epochs`` and ``folder``.
        seed: Of the initial weights and of the order of deployments.
    """

    kernels: KernelSettings
    network: NetworkSettings
    distillation: DistillationSettings
    run_fit: RunFitSettings
    trainer: TrainerFactory
    seed: int = 0

    def learn(
        self, rows: ServingRows, runs: Sequence[MeasuredRun], exclude: Exclusion, folder: Path
    ) -> Learned:
        """Learn from kernels, measured deployments and serving runs.

        Args:
            rows: Measured deployments to train on.
            runs: Serving runs to train on; may be none.
            exclude: Held-out models and GPUs: their kernels, near copies and synthetic
                deployments are left out.
            folder: Of logs and of the state to resume from.
        """
        surrogates = fitted_surrogates(self.kernels, exclude)
        fit = learn_from_runs(surrogates, runs, rows, self.run_fit)
        steps = composed_steps(self.kernels, surrogates, exclude)
        network = self.distil(distillation.distillation_rows(steps, fit.scalars), folder)
        network.set_alpha(torch.tensor(fit.alpha))
        return Learned(Teacher(surrogates, fit.scalars), fit, network)

    def distil(self, rows: DistillationRows, folder: Path) -> CoefficientNetwork:
        """A network that has learned composed steps; its alpha is still the prior."""
        torch.manual_seed(self.seed)
        network = CoefficientNetwork(self.network, fit_scale(rows.free.numpy(), rows.rates.numpy()))
        trainer = self.trainer(max_epochs=self.distillation.epochs, folder=folder)
        module = Distillation(network, self.distillation, len(rows.free))
        how = self.distillation, self.seed
        loader = distillation.distillation_loader(rows, *how, lambda: module.global_step)
        last = folder / LAST
        trainer.fit(module, loader, ckpt_path=last if last.is_file() else None, weights_only=True)
        return network.double().requires_grad_(False).eval()


def fitted_surrogates(settings: KernelSettings, exclude: Exclusion) -> KernelSurrogates:
    """Surrogates without the excluded kernels: released, remembered or fitted now.

    Released ones tell in their metadata which code fitted them; no other code makes them invalid.
    """
    if settings.released is not None:
        folder = Path(settings.released) / exclude.slug()
        if (folder / "kernels.json").is_file():
            surrogates = KernelSurrogates.load(folder)
            found = surrogates.metadata.get("excluded")
            if found != exclude.describe():
                raise PinnError(
                    f"{folder} holds surrogates fitted without {found}, wanted without "
                    f"{exclude.describe()}: delete the folder or name another one"
                )
            return surrogates
    systems = Path(settings.tables) if settings.tables else None
    if systems is not None and not (systems / "data").is_dir():
        remedy = "run 'make kernel-tables', or name a systems folder in PINN_KERNEL_TABLES"
        raise PinnError(f"no kernel tables in {systems}: {remedy}")
    return surrogates_without(exclude, settings.seed, Path(settings.cache), systems)


def composed_steps(
    settings: KernelSettings, surrogates: KernelSurrogates, exclude: Exclusion
) -> ComposedSteps:
    """Steps of synthetic and known deployments, none a near copy of a held-out model."""
    return remembered_steps(
        surrogates,
        training_deployments(settings, exclude),
        settings.seed,
        Path(settings.cache),
        progress=lambda done, total: doing(f"composing steps, shard {done} of {total}"),
    )


def training_deployments(settings: KernelSettings, exclude: Exclusion) -> Sequence[Deployment]:
    """What steps are composed for: no near copy of a held-out model, no held-out GPU."""
    gpus = [gpu for gpu in map(load_gpu, settings.gpus) if gpu.name not in exclude.gpus]

    def allowed(model: ModelSpec) -> bool:
        return not any(is_near_copy(model, held_out) for held_out in exclude.models)

    synthetic = synthetic_deployments(settings.synthetic, gpus, settings.seed + 1, allowed)
    return synthetic + catalog_deployments(settings.catalog, gpus, settings.seed + 2, allowed)


# What is left to learn from when models or GPUs are left out of everything, and learning from
# it.
#
# A model that is left out teaches nothing: not its kernels, not its measured deployments, not
# its serving runs, and no near copy of it either. A GPU that is left out takes its deployments
# and runs along, and its kernels where the fold says so. What a fold learned is remembered on
# disk.


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


def _learn(folder: Path, learner: KernelLearner, fold: Fold, _: str, *, kernels: Any) -> None:
    whole = replace(learner, kernels=kernels)
    learned = whole.learn(fold.rows, fold.runs, fold.exclude, folder / "logs")
    write_json_file(folder / "fit.json", learned.fit.to_json(), indent=1)
    without = {"excluded": fold.exclude.describe()}
    checkpoint = Checkpoint(learned.network.weights(), without)
    save_checkpoint(checkpoint, folder / CHECKPOINT)


def learn_all(learner: KernelLearner, folds: Sequence[Fold], root: Path, workers: Any) -> None:
    """Learn folds side by side, so that each is remembered.

    Args:
        learner: The recipe.
        folds: To learn.
        root: Folder in which folds are remembered.
        workers: A ``pinn.common.workers.Workers``, or anything with its ``run``.
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
