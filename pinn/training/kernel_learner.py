"""Training of the network on kernels, and fit of calibration factors to measured servers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from pinn.common.progress import doing
from pinn.kernels.composition import COMPOSED_PARTS
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.surrogates import KernelSurrogates
from pinn.measurements.runs.measured_runs import MeasuredRun
from pinn.surrogate.architecture import NetworkSettings
from pinn.surrogate.featurizer import fit_scale
from pinn.surrogate.network import CoefficientNetwork
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.training import kernel_data
from pinn.training.alpha_head import AlphaHeadSettings, fit_alpha_head
from pinn.training.distillation import (
    Distillation,
    DistillationData,
    DistillationRows,
    DistillationSettings,
    distillation_rows,
)
from pinn.training.run_scalars import Evidence, RunFit, RunFitSettings, fit_in_rounds
from pinn.training.serving_rows import ServingRows, resimulated
from pinn.training.teacher import Teacher, prior_scalars, projected_parts
from pinn.training.trainer import TrainerFactory, last_state


def run_parts(
    kernels: KernelSurrogates, runs: Sequence[MeasuredRun]
) -> Float[np.ndarray, "runs operators features"]:
    """Return step coefficients (betas) that explain the operators' times, for each run.

    Betas are fitted only once per distinct deployment. The shape is ``[runs, operators,
    features]``.
    """
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
    """Fit calibration factors, per-model effects and alpha to measured deployments and runs.

    Args:
        kernels: Surrogates of kernel times, which are summed to step times.
        runs: Serving runs to train on; may be empty.
        serving: Measured deployments to train on.
        settings: Settings of the fit.
    """
    of_serving = projected_parts(kernels, serving.deployments)
    serving = resimulated(serving, prior_scalars().betas(of_serving))
    evidence = Evidence(runs, run_parts(kernels, runs), serving, of_serving)
    return fit_in_rounds(evidence, settings)


@dataclass(frozen=True)
class Learned:
    """Teacher, fitted factors and network that result from one training.

    Attributes:
        teacher: Kernel surrogates with the calibration factors that all models share.
        fit: Calibration factors, per-model effects and request coefficients (alpha), fitted to
            measured servers.
        network: Network distilled from the teacher, without per-model effects, with the shared
            alpha from ``fit``, and with an alpha head fitted to the same measurements.
    """

    teacher: Teacher
    fit: RunFit
    network: CoefficientNetwork


@dataclass(frozen=True)
class KernelLearner:
    """Learner that trains the network on kernels and fits calibration factors to measured servers.

    Attributes:
        kernels: Sources of kernel measurements.
        network: Size and bounds of the network.
        distillation: Settings for training the network on step times summed from kernels.
        run_fit: Settings for fitting calibration factors and request coefficients (alpha) to
            measured servers.
        alpha_head: Settings for fitting the differences of alpha between deployments.
        trainer: Function that takes ``max_epochs`` and ``folder`` and returns the Lightning
            trainer.
        seed: Random seed for the initial weights and the order of deployments.
    """

    kernels: kernel_data.KernelSettings
    network: NetworkSettings
    distillation: DistillationSettings
    run_fit: RunFitSettings
    alpha_head: AlphaHeadSettings
    trainer: TrainerFactory
    seed: int = 0

    def learn(
        self, rows: ServingRows, runs: Sequence[MeasuredRun], exclude: Exclusion, folder: Path
    ) -> Learned:
        """Fit a teacher to kernels, measured deployments and runs, and train a network on it.

        Args:
            rows: Measured deployments to train on.
            runs: Serving runs to train on; may be empty.
            exclude: Held-out models and GPUs. Their kernels, models of almost the same shape, and
                synthetic deployments of both are excluded.
            folder: Folder for logs and the state from which to resume.
        """
        surrogates = kernel_data.fitted_surrogates(self.kernels, exclude)
        fit = learn_from_runs(surrogates, runs, rows, self.run_fit)
        steps = kernel_data.composed_steps(self.kernels, surrogates, exclude)
        held_out = kernel_data.validation_steps(self.kernels, surrogates, exclude)
        network = self.distil(
            distillation_rows(steps, fit.scalars),
            None if held_out is None else distillation_rows(held_out, fit.scalars),
            folder,
        )
        network.set_alpha(torch.tensor(fit.alpha))
        head = fit_alpha_head(network.weights(), rows, runs, self.alpha_head)
        network.set_alpha_head(torch.tensor(head))
        return Learned(Teacher(surrogates, fit.scalars), fit, network)

    def distil(
        self, train: DistillationRows, held_out: DistillationRows | None, folder: Path
    ) -> CoefficientNetwork:
        """Train a network on step times summed from kernels; its alpha remains at the prior.

        Args:
            train: Steps to train on.
            held_out: Steps to validate on; None for no validation.
            folder: Folder for logs and the state from which to resume.
        """
        doing("training the network")
        torch.manual_seed(self.seed)
        scale = fit_scale(train.free.numpy(), train.rates.numpy())
        network = CoefficientNetwork(self.network, scale)
        data = DistillationData(train, held_out, self.distillation.batch, self.seed)
        module = Distillation(network, self.distillation, len(train.free))
        trainer = self.trainer(max_epochs=self.distillation.epochs, folder=folder)
        trainer.fit(module, data, ckpt_path=last_state(folder), weights_only=True)
        return network.double().requires_grad_(False).eval()
