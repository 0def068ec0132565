"""The surrogate with a part taken away."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from pinn.coefficients.coefficient_network import CoefficientNetwork
from pinn.evaluation.methods import LearnedNetwork, Prediction, Predictor
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.fitted import kernel_tables
from pinn.kernels.heldout import FOLDS, fold_of_rows
from pinn.kernels.surrogates import OPERATORS, KernelSurrogates
from pinn.specs.deployment import Deployment
from pinn.training.distillation import DistillationRows
from pinn.training.kernel_learner import (
    KernelLearner,
    KernelSettings,
    fitted_surrogates,
)
from pinn.training.learner import ServingLearner
from pinn.training.serving_rows import ServingRows
from pinn.training.teacher.scalars import Scalars, fit_scalars, prior_scalars
from pinn.training.teacher.teacher import projected_parts


@dataclass(frozen=True)
class ComposedKernels:
    """The teacher's TPOT without a network behind it: composed kernels and global scalars.

    Attributes:
        name: In tables.
        kernels: Where kernels come from.
        anchored: Whether measured deployments set the scalars; off leaves their priors, so that
            nothing but kernels is known.
        folds: Of ``FOLDS`` equal shares of the measured kernel shapes, how many the surrogates
            are fitted to: a point of the learning curve.
    """

    name: str
    kernels: KernelSettings
    anchored: bool = True
    folds: int = FOLDS
    logs: str = "composed"

    def learn(self, train: ServingRows, exclude: Exclusion, folder: Path) -> Predictor:  # noqa: ARG002
        """Fit the scalars."""
        scalars = self._scalars(train, exclude) if self.anchored else prior_scalars()

        def from_kernels(rows: ServingRows) -> Prediction:
            betas = scalars.betas(self._parts(exclude, rows.deployments))
            tpot = (betas[rows.deployment] * rows.tpot_features).sum(axis=1)
            return tpot, np.full(len(rows), np.nan)

        return from_kernels

    def _scalars(self, train: ServingRows, exclude: Exclusion) -> Scalars:
        projected = self._parts(exclude, train.deployments)[train.deployment]
        parts = np.einsum("nof,nf->no", projected, train.tpot_features)
        return fit_scalars(parts, train.tpot_features, train.tpot_s, train.weight)

    def _parts(self, exclude: Exclusion, deployments: tuple[Deployment, ...]) -> np.ndarray:
        return _parts(self.kernels, exclude, deployments, self.folds)


@lru_cache(maxsize=64)
def _parts(
    kernels: KernelSettings, exclude: Exclusion, deployments: tuple[Deployment, ...], folds: int
) -> np.ndarray:
    """Projected parts; every study of a fold needs the same."""
    if folds == FOLDS:
        return projected_parts(fitted_surrogates(kernels, exclude), deployments)
    return projected_parts(_few_kernels(kernels, exclude, folds), deployments)


@lru_cache(maxsize=1)
def _few_kernels(kernels: KernelSettings, exclude: Exclusion, folds: int) -> KernelSurrogates:
    """Surrogates fitted to some of the measured shapes of every operator."""
    tables = kernel_tables()
    kept = {}
    for operator in OPERATORS:
        rows = getattr(tables, operator.name)
        kept[operator.name] = rows[fold_of_rows(rows, operator.group, kernels.seed) < folds]
    return KernelSurrogates.fit(replace(tables, **kept), exclude=exclude, seed=kernels.seed)


def without_hierarchy(learner: ServingLearner) -> LearnedNetwork:
    """No kernels, and configurations as free to depart as the shared base is."""
    free = replace(learner.fit, correction_spread=learner.fit.base_spread)
    return LearnedNetwork("network, no kernels, no hierarchy", replace(learner, fit=free))


@dataclass(frozen=True)
class FewerDeployments(KernelLearner):
    """Distils from some of the composed deployments: a point of the learning curve.

    Attributes:
        deployments: How many, drawn by the seed.
        most_epochs: How many times as many epochs at most, so that few deployments are seen as
            often as many are.
    """

    deployments: int = 1000
    most_epochs: float = 4.0

    def distil(self, rows: DistillationRows, folder: Path) -> CoefficientNetwork:
        """A network that has learned some of the composed steps."""
        count = min(self.deployments, rows.deployments)
        chosen = np.sort(np.random.default_rng(self.seed).permutation(rows.deployments)[:count])
        longer = min(self.most_epochs, rows.deployments / count)
        settings = replace(self.distillation, epochs=round(self.distillation.epochs * longer))
        plain = KernelLearner(
            self.kernels, self.network, settings, self.run_fit, self.trainer, self.seed
        )
        return plain.distil(rows.take(torch.from_numpy(chosen)), folder)
