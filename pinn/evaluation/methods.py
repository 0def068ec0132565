"""Methods that predict TPOT and TTFT of deployments they have not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd

from pinn.data.measured_runs import MeasuredRun
from pinn.kernels.exclusion import Exclusion
from pinn.training.folds import fold_of, learn_fold
from pinn.training.kernel_learner import KernelLearner, Learned
from pinn.training.learner import ServingLearner, predict
from pinn.training.serving_rows import ServingRows
from pinn.training.simulated_rows import SimulatedRows, simulate_rows

#: (TPOT, TTFT) in seconds of every row; NaN where the method cannot predict one.
Prediction = tuple[np.ndarray, np.ndarray]
Predictor = Callable[[ServingRows], Prediction]

#: ``logs`` of methods that keep none, and so share no fit.
NO_LOGS = "none"


@runtime_checkable
class Method(Protocol):
    """Something that learns from training rows and then predicts others."""

    @property
    def name(self) -> str:
        """Its name in every table."""

    @property
    def logs(self) -> str:
        """Folder of its training logs; methods that share a fit share it."""

    def learn(self, train: ServingRows, exclude: Exclusion, folder: Path) -> Predictor:
        """Learn from rows, and from kernels but those of what is excluded."""


@dataclass(frozen=True)
class Roofline:
    """The physical floor itself: max(FLOPs / peak, bytes / bandwidth) of every step."""

    name: str = "roofline"
    logs: str = NO_LOGS

    def learn(self, train: ServingRows, exclude: Exclusion, folder: Path) -> Predictor:  # noqa: ARG002
        """Nothing to learn."""
        return lambda rows: (rows.tpot_floor_s, rows.ttft_floor_s)


@dataclass(frozen=True)
class LearnedNetwork:
    """A network learned from the training rows."""

    name: str
    learner: ServingLearner

    @property
    def logs(self) -> str:
        """A folder of its own."""
        return self.name.replace(" ", "-")

    def learn(self, train: ServingRows, exclude: Exclusion, folder: Path) -> Predictor:  # noqa: ARG002
        """Train the network."""
        network = self.learner.learn(train, folder)
        return lambda rows: _prediction(predict(network, rows))


def _prediction(found: SimulatedRows) -> Prediction:
    return found.tpot_s, found.ttft_s


@dataclass(frozen=True)
class KernelFits:
    """Fits of the recipe; teacher and network of a fold come from the same one.

    Attributes:
        learner: The recipe.
        runs: Serving runs; a fold learns from those that it does not leave out.
        root: Where folds are remembered.
    """

    learner: KernelLearner
    runs: tuple[MeasuredRun, ...]
    root: Path

    def learn(self, train: ServingRows, exclude: Exclusion) -> Learned:
        """Learn a fold, or read what it learned before."""
        return learn_fold(self.learner, fold_of(train, self.runs, exclude), self.root)


@dataclass(frozen=True)
class KernelNetwork:
    """The network that kernels taught."""

    fits: KernelFits
    name: str = "network"
    logs: str = "kernels"

    def learn(self, train: ServingRows, exclude: Exclusion, folder: Path) -> Predictor:  # noqa: ARG002
        """Train surrogates, scalars and network."""
        learned = self.fits.learn(train, exclude)
        return lambda rows: _prediction(predict(learned.network, rows))


@dataclass(frozen=True)
class KernelTeacher:
    """The teacher itself: composed kernels, projected for each deployment; alpha as the network."""

    fits: KernelFits
    name: str = "teacher"
    logs: str = "kernels"

    def learn(self, train: ServingRows, exclude: Exclusion, folder: Path) -> Predictor:  # noqa: ARG002
        """Train surrogates and scalars."""
        learned = self.fits.learn(train, exclude)

        def from_kernels(rows: ServingRows) -> Prediction:
            betas = learned.teacher.betas(rows.deployments)
            alpha = np.tile(learned.fit.alpha, (len(betas), 1))
            return _prediction(simulate_rows(rows, betas, alpha))

        return from_kernels


@dataclass(frozen=True)
class Peer:
    """Another estimator's predictions, made beforehand and looked up by row id."""

    name: str
    predictions: pd.DataFrame
    logs: str = NO_LOGS

    def learn(self, train: ServingRows, exclude: Exclusion, folder: Path) -> Predictor:  # noqa: ARG002
        """Nothing to learn: it holds its own kernel measurements, those of the very models."""
        table = self.predictions.set_index("row_id")

        def look_up(rows: ServingRows) -> Prediction:
            found = table.reindex(list(rows.row_id))
            return found["tpot_s"].to_numpy(np.float64), found["ttft_s"].to_numpy(np.float64)

        return look_up
