"""Methods that predict TPOT and TTFT of deployments they have not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd

from pinn.kernels.exclusion import Exclusion
from pinn.training.kernel_learner import KernelLearner, Learned
from pinn.training.learner import ServingLearner, predict, predict_with_betas
from pinn.training.serving_rows import ServingRows

#: (TPOT, TTFT) in seconds of every row; NaN where the method cannot predict one.
Prediction = tuple[np.ndarray, np.ndarray]
Predictor = Callable[[ServingRows], Prediction]

#: ``logs`` of methods that keep none, and so share no fit.
NO_LOGS = "none"


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
        return lambda rows: predict(network, rows)


class KernelFits:
    """Fits of a kernel learner; teacher and network of a fold come from the same one."""

    def __init__(self, learner: KernelLearner) -> None:
        self.learner = learner
        self._last: tuple[Path, Learned] | None = None

    def learn(self, train: ServingRows, exclude: Exclusion, folder: Path) -> Learned:
        """Fit, or return the last fit if it was for the same folder."""
        if self._last is None or self._last[0] != folder:
            self._last = folder, self.learner.learn(train, exclude, folder)
        return self._last[1]


@dataclass(frozen=True)
class KernelNetwork:
    """The network that kernels taught."""

    fits: KernelFits
    name: str = "network"
    logs: str = "kernels"

    def learn(self, train: ServingRows, exclude: Exclusion, folder: Path) -> Predictor:
        """Train surrogates, scalars and network."""
        learned = self.fits.learn(train, exclude, folder)
        return lambda rows: predict(learned.network, rows)


@dataclass(frozen=True)
class KernelTeacher:
    """The teacher itself: composed kernels, projected for each deployment; alpha as the network."""

    fits: KernelFits
    name: str = "teacher"
    logs: str = "kernels"

    def learn(self, train: ServingRows, exclude: Exclusion, folder: Path) -> Predictor:
        """Train surrogates and scalars."""
        learned = self.fits.learn(train, exclude, folder)

        def from_kernels(rows: ServingRows) -> Prediction:
            betas = learned.teacher.betas(rows.deployments)
            return predict_with_betas(learned.network, betas, rows)

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
