"""Studies of robustness: the same methods on rows that something is wrong with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from pinn.data.deployments import observed_deployments
from pinn.evaluation.methods import Method, Predictor
from pinn.kernels.exclusion import Exclusion
from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import step_costs
from pinn.physics.floor import floor_seconds
from pinn.physics.step import step_features
from pinn.research.load_bases import row_bases
from pinn.specs.deployment import Deployment
from pinn.specs.files.read_report import file_sha256
from pinn.training.serving_rows import ServingRows, model_weights

Change = Callable[[ServingRows], ServingRows]


def _same(rows: ServingRows) -> ServingRows:
    return rows


@dataclass(frozen=True)
class Perturbed:
    """A method whose training rows, or whose rows to predict, are changed first.

    Attributes:
        name: In tables.
        method: What learns and predicts.
        train: Of the training rows.
        test: Of the rows to predict; what was measured stays.
    """

    name: str
    method: Method
    train: Change = _same
    test: Change = _same

    @property
    def logs(self) -> str:
        """The method's own where it learns from the same rows."""
        return self.method.logs if self.train is _same else self.name.replace(" ", "-")

    @property
    def recipe(self) -> str:
        """Beside the name: what a kept prediction depends on."""
        return file_sha256(Path(__file__)) + str(getattr(self.method, "recipe", ""))

    def learn(self, train: ServingRows, exclude: Exclusion, folder: Path) -> Predictor:
        """Learn from the changed rows."""
        predictor = self.method.learn(self.train(train), exclude, folder)
        return lambda rows: predictor(self.test(rows))


@dataclass(frozen=True)
class Noise:
    """Measured times times a factor drawn from a log-normal distribution.

    Attributes:
        spread: Standard deviation of its logarithm.
        seed: Of the draw.
    """

    spread: float
    seed: int = 0

    def __call__(self, rows: ServingRows) -> ServingRows:
        """The noisy rows."""
        draw = np.random.default_rng(self.seed)
        tpot, ttft = np.exp(self.spread * draw.standard_normal((2, len(rows))))
        noisy = tuple(
            replace(m, tpot_s=m.tpot_s * of_tpot, ttft_s=m.ttft_s * of_ttft)
            for m, of_tpot, of_ttft in zip(rows.measured, tpot, ttft, strict=True)
        )
        return replace(rows, measured=noisy)


@dataclass(frozen=True)
class Duplicates:
    """The rows of one deployment in four, drawn at random, several times over.

    Attributes:
        times: How often such a row is there.
        seed: Of the draw.
    """

    times: int = 5
    seed: int = 0

    def __call__(self, rows: ServingRows) -> ServingRows:
        """The longer rows; weights are those of the new counts."""
        chosen = np.random.default_rng(self.seed).permutation(len(rows.deployments))
        twice = np.isin(rows.deployment, chosen[: -(-len(chosen) // 4)])
        return repeated(rows, np.repeat(np.arange(len(rows)), np.where(twice, self.times, 1)))


@dataclass(frozen=True)
class HalfMissing:
    """Every other deployment's rows, drawn at random, are missing.

    Attributes:
        seed: Of the draw.
    """

    seed: int = 0

    def __call__(self, rows: ServingRows) -> ServingRows:
        """The rows that are left."""
        chosen = np.random.default_rng(self.seed).permutation(len(rows.deployments))
        return rows.take(np.isin(rows.deployment, chosen[: -(-len(chosen) // 2)]))


@dataclass(frozen=True)
class OneModelOnly:
    """All measurements but those of the model with the most rows are missing."""

    def __call__(self, rows: ServingRows) -> ServingRows:
        """The rows that are left."""
        models = np.array([rows.deployments[i].model.name for i in rows.deployment])
        names, counts = np.unique(models, return_counts=True)
        return rows.take(models == names[counts.argmax()])


def repeated(rows: ServingRows, index: Int[np.ndarray, " index"]) -> ServingRows:
    """Rows by number, each as often as it is named."""
    per_row = {
        name: getattr(rows, name)[index]
        for name, value in vars(rows).items()
        if isinstance(value, np.ndarray)
    }
    models = [rows.deployments[i].model.name for i in per_row["deployment"]]
    changed = per_row | {"weight": model_weights(models)}
    return replace(rows, measured=tuple(rows.measured[i] for i in index), **changed)


@dataclass(frozen=True)
class WrongBandwidth:
    """A datasheet whose memory bandwidth is off, in every feature and descriptor.

    Attributes:
        factor: Wrong figure over right one.
        deployments: Row id -> deployment on the wrong datasheet.
        features: Row id -> step features and floors of TPOT and TTFT there.
    """

    factor: float
    deployments: Mapping[str, Deployment]
    features: Mapping[
        str,
        tuple[
            Float[np.ndarray, " step_features"], Float[np.ndarray, " step_features"], float, float
        ],
    ]

    def __call__(self, rows: ServingRows) -> ServingRows:
        """The rows as that datasheet describes them."""
        of_row = [self.deployments[row_id] for row_id in rows.row_id]
        distinct = tuple(dict.fromkeys(of_row))
        place = {deployment: i for i, deployment in enumerate(distinct)}
        tpot, ttft, tpot_floor, ttft_floor = (
            np.array(column)
            for column in zip(*(self.features[row_id] for row_id in rows.row_id), strict=True)
        )
        measured = tuple(
            replace(m, deployment=wrong, served=replace(wrong, serving=m.served.serving))
            for m, wrong in zip(rows.measured, of_row, strict=True)
        )
        return replace(
            rows,
            measured=measured,
            deployments=distinct,
            deployment=np.array([place[deployment] for deployment in of_row]),
            tpot_features=tpot,
            ttft_features=ttft,
            tpot_floor_s=tpot_floor,
            ttft_floor_s=ttft_floor,
        )


def wrong_bandwidth(observations: pd.DataFrame, factor: float) -> WrongBandwidth:
    """Work out all rows on datasheets whose bandwidth is multiplied by a factor."""
    wrong = {
        row_id: _with_bandwidth(deployment, factor)
        for row_id, deployment in observed_deployments(observations).items()
    }
    bases = row_bases(observations, _features_and_floor, wrong)
    features = {
        row_id: (bases.tpot[i, :-1], bases.ttft[i, :-1], bases.tpot[i, -1], bases.ttft[i, -1])
        for row_id, i in bases.index.items()
    }
    return WrongBandwidth(factor, wrong, features)


def _with_bandwidth(deployment: Deployment, factor: float) -> Deployment:
    gpu = deployment.gpu
    bandwidth = gpu.memory_bandwidth_bytes_per_s * factor
    return replace(deployment, gpu=replace(gpu, memory_bandwidth_bytes_per_s=bandwidth))


def _features_and_floor(deployment: Deployment, sums: BatchSums, _: float) -> np.ndarray:
    costs = step_costs([deployment])
    floor = floor_seconds(costs, sums)
    return np.concatenate([step_features(costs, sums), floor[:, None]], axis=1)
