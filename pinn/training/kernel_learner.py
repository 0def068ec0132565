"""Learning from measured kernels: surrogates, composed steps, scalars, then the network."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pinn.coefficients.coefficient_network import CoefficientNetwork, NetworkSettings
from pinn.coefficients.scaling import fit_scale
from pinn.data.measured_runs import MeasuredRun
from pinn.errors import PinnError
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.fitted import surrogates_without
from pinn.kernels.near_copy import is_near_copy
from pinn.kernels.surrogates import KernelSurrogates
from pinn.specs.deployment import Deployment
from pinn.specs.files.progress import doing
from pinn.specs.gpu import GpuSpec
from pinn.specs.gpu_catalog import load_gpu
from pinn.specs.model import ModelSpec
from pinn.training.distillation import (
    Distillation,
    DistillationRows,
    DistillationSettings,
    distillation_loader,
    distillation_rows,
)
from pinn.training.learner import TrainerFactory
from pinn.training.run_learner import learn_from_runs
from pinn.training.run_scalars import RunFit, RunFitSettings
from pinn.training.serving_rows import ServingRows
from pinn.training.teacher.catalog_deployments import catalog_deployments
from pinn.training.teacher.composed import ComposedSteps, remembered_steps
from pinn.training.teacher.synthetic import synthetic_deployments
from pinn.training.teacher.teacher import Teacher


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
        workers: Processes that compose.
        seed: Of surrogates, deployments and batches.
    """

    released: str | None
    cache: str
    gpus: tuple[str, ...]
    synthetic: int = 18000
    catalog: int = 6000
    workers: int = 2
    seed: int = 0


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
        network = self.distil(distillation_rows(steps, fit.scalars), folder)
        network.set_alpha(torch.tensor(fit.alpha))
        return Learned(Teacher(surrogates, fit.scalars), fit, network)

    def distil(self, rows: DistillationRows, folder: Path) -> CoefficientNetwork:
        """A network that has learned composed steps; its alpha is still the prior."""
        torch.manual_seed(self.seed)
        network = CoefficientNetwork(self.network, fit_scale(rows.free.numpy(), rows.rates.numpy()))
        trainer = self.trainer(max_epochs=self.distillation.epochs, folder=folder)
        module = Distillation(network, self.distillation, rows.deployments)
        loader = distillation_loader(rows, self.distillation, self.seed, lambda: module.global_step)
        trainer.fit(module, loader, ckpt_path=_last(folder), weights_only=True)
        return network.double().requires_grad_(False).eval()


def fitted_surrogates(settings: KernelSettings, exclude: Exclusion) -> KernelSurrogates:
    """Surrogates without the excluded kernels: released, remembered or fitted now.

    Released ones tell in their metadata which code fitted them; no other code makes them invalid.
    """
    if settings.released is not None:
        folder = Path(settings.released) / exclude.slug()
        if (folder / "kernels.json").is_file():
            return _checked(KernelSurrogates.load(folder), exclude, folder)
    return surrogates_without(exclude, settings.seed, Path(settings.cache), _tell)


def _checked(surrogates: KernelSurrogates, exclude: Exclusion, folder: Path) -> KernelSurrogates:
    """The surrogates, if what they were fitted without is what has to be left out."""
    found = surrogates.metadata.get("excluded")
    if found != exclude.describe():
        raise PinnError(
            f"{folder} holds surrogates fitted without {found}, wanted without "
            f"{exclude.describe()}: delete the folder or name another one"
        )
    return surrogates


def composed_steps(
    settings: KernelSettings, surrogates: KernelSurrogates, exclude: Exclusion
) -> ComposedSteps:
    """Steps of synthetic and known deployments, none a near copy of a held-out model."""
    return remembered_steps(
        surrogates,
        training_deployments(settings, exclude),
        settings.seed,
        Path(settings.cache),
        workers=settings.workers,
        progress=lambda done, total: doing(f"composing steps, shard {done} of {total}"),
    )


def training_deployments(settings: KernelSettings, exclude: Exclusion) -> Sequence[Deployment]:
    """What steps are composed for: no near copy of a held-out model, no held-out GPU."""
    gpus: list[GpuSpec] = [load_gpu(name) for name in settings.gpus]
    gpus = [gpu for gpu in gpus if gpu.name not in exclude.gpus]

    def allowed(model: ModelSpec) -> bool:
        return not any(is_near_copy(model, held_out) for held_out in exclude.models)

    synthetic = synthetic_deployments(settings.synthetic, gpus, settings.seed + 1, allowed)
    return synthetic + catalog_deployments(settings.catalog, gpus, settings.seed + 2, allowed)


def _last(folder: Path) -> str | None:
    path = folder / "last.ckpt"
    return str(path) if path.is_file() else None


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
