"""Methods that predict TPOT and TTFT of deployments they have not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd

from pinn.observations.splits import Split
from pinn.training.learner import ServingLearner, predict
from pinn.training.serving_rows import ServingRows

#: (TPOT, TTFT) in seconds of every row; NaN where the method cannot predict one.
Prediction = tuple[np.ndarray, np.ndarray]
Predictor = Callable[[ServingRows], Prediction]


class Method(Protocol):
    """Something that learns from training rows and then predicts others."""

    @property
    def name(self) -> str:
        """Its name in every table."""

    def learn(self, train: ServingRows, split: Split, folder: Path) -> Predictor:
        """Learn from rows; what the split holds out may not be looked at in any other way."""


@dataclass(frozen=True)
class Roofline:
    """The physical floor itself: max(FLOPs / peak, bytes / bandwidth) of every step."""

    name: str = "roofline"

    def learn(self, train: ServingRows, split: Split, folder: Path) -> Predictor:  # noqa: ARG002
        """Nothing to learn."""
        return lambda rows: (rows.tpot_floor_s, rows.ttft_floor_s)


@dataclass(frozen=True)
class LearnedNetwork:
    """A network learned from the training rows."""

    name: str
    learner: ServingLearner

    def learn(self, train: ServingRows, split: Split, folder: Path) -> Predictor:
        """Train the network."""
        network = self.learner.learn(train, folder / self.name / _file_name(split))
        return lambda rows: predict(network, rows)


@dataclass(frozen=True)
class Peer:
    """Another estimator's predictions, made beforehand and looked up by row id."""

    name: str
    predictions: pd.DataFrame

    def learn(self, train: ServingRows, split: Split, folder: Path) -> Predictor:  # noqa: ARG002
        """Nothing to learn: it holds its own kernel measurements, those of the very models."""
        table = self.predictions.set_index("row_id")

        def look_up(rows: ServingRows) -> Prediction:
            found = table.reindex(list(rows.row_id))
            return found["tpot_s"].to_numpy(np.float64), found["ttft_s"].to_numpy(np.float64)

        return look_up


def _file_name(split: Split) -> str:
    return split.name.replace("/", "--")
