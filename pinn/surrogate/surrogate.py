"""The surrogate: a checkpoint that turns deployments into coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from pinn.engines.deployment import Deployment
from pinn.physics.batch_sums import BatchSums, sum_batches
from pinn.physics.costs import StepCosts, step_costs
from pinn.specs.batch import Batch
from pinn.surrogate.coefficients import Coefficients
from pinn.surrogate.deployment_features import deployment_features, deployment_floor_seconds
from pinn.surrogate.featurizer import DESCRIPTORS, RATES, embed
from pinn.surrogate.inference import MIN_SCALE, Checkpoint, load_checkpoint
from pinn.surrogate.step_features import step_features

# The surrogate: a checkpoint that turns deployments into coefficients and steps into seconds.


@runtime_checkable
class Network(Protocol):
    """A trained network, or one in training."""

    def coefficients(
        self, free: Float[np.ndarray, "n descriptors"], rates: Float[np.ndarray, "n rates"]
    ) -> tuple[Float[np.ndarray, "n beta"], Float[np.ndarray, "n alpha"]]:
        """Beta and alpha of ``n`` embedded deployments."""


def predict_coefficients(network: Network, deployments: Sequence[Deployment]) -> Coefficients:
    """Coefficients of deployments, in float64."""
    return Coefficients(*network.coefficients(*embed(deployments)))


def step_seconds(
    beta: Float[np.ndarray, "... features"], costs: StepCosts, sums: BatchSums
) -> Float[np.ndarray, "..."]:
    """Step time: beta . features."""
    return (step_features(costs, sums) * beta).sum(-1)


class Surrogate:
    """A trained network ready to predict.

    Attributes:
        checkpoint: What it was loaded from.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    @classmethod
    def load(cls, path: str | Path) -> Surrogate:
        """Load from a checkpoint file.

        Raises:
            PinnError: If the file cannot be used.
        """
        return cls(load_checkpoint(path))

    def coefficients(self, deployments: Sequence[Deployment]) -> Coefficients:
        """Coefficients of ``n`` deployments."""
        return predict_coefficients(self.checkpoint.network, deployments)

    def taught_alphas(self) -> Bool[np.ndarray, " alpha"]:
        """Whether data taught each alpha; the others are their priors.

        A base at exactly 0 never had a gradient.
        """
        return self.checkpoint.network.alpha_base != 0


def batch_work(deployment: Deployment, batches: Sequence[Batch]) -> tuple[StepCosts, BatchSums]:
    """Costs of shape ``[1]`` and sums of shape ``[batches]`` of one deployment's batches."""
    return step_costs([deployment]), sum_batches(batches, deployment.model.window_tokens)


def batch_seconds(
    beta: Float[np.ndarray, " features"], deployment: Deployment, batches: Sequence[Batch]
) -> Float[np.ndarray, " batches"]:
    """Step time of each batch on one deployment, drafting and verifying included."""
    sums = sum_batches(batches, deployment.model.window_tokens)
    return (deployment_features(deployment, sums) * beta).sum(-1)


def batch_floor_seconds(
    deployment: Deployment, batches: Sequence[Batch]
) -> Float[np.ndarray, " batches"]:
    """Physical floor of each batch on one deployment."""
    sums = sum_batches(batches, deployment.model.window_tokens)
    return deployment_floor_seconds(deployment, sums)


# How far deployments lie from those a checkpoint was measured on.


@dataclass(frozen=True)
class Distances:
    """Where ``n`` deployments lie, in standard deviations of the training descriptors.

    Attributes:
        nearest: Index of the nearest measured deployment; -1 where the checkpoint has none.
        distance: Euclidean distance to it over all descriptors and log rates; NaN without one.
        outside: By how much each descriptor, then each rate, leaves the training range: negative
            below it, positive above, 0 inside.
    """

    nearest: Int[np.ndarray, " n"]
    distance: Float[np.ndarray, " n"]
    outside: Float[np.ndarray, "n inputs"]

    def outside_names(self, row: int) -> dict[str, float]:
        """The inputs of one deployment that leave the training range, farthest first."""
        found = zip((*DESCRIPTORS, *RATES), self.outside[row].tolist(), strict=True)
        away = [(name, value) for name, value in found if abs(value) > _ROUNDING]
        return dict(sorted(away, key=lambda item: -abs(item[1])))


_ROUNDING = 1e-9


@dataclass(frozen=True)
class TrainingSpace:
    """The checkpoint's measured deployments in standardized coordinates.

    Attributes:
        anchors: One row per measured deployment.
        names: What each is called.
        centre: Subtracted from raw inputs.
        scale: Divides them.
        low: Smallest standardized value in training.
        high: Largest.
    """

    anchors: Float[np.ndarray, "m inputs"]
    names: tuple[str, ...]
    centre: Float[np.ndarray, " inputs"]
    scale: Float[np.ndarray, " inputs"]
    low: Float[np.ndarray, " inputs"]
    high: Float[np.ndarray, " inputs"]

    def locate(self, deployments: Sequence[Deployment]) -> Distances:
        """Find the nearest measured deployment of each."""
        at = (np.concatenate(embed(deployments), axis=1) - self.centre) / self.scale
        outside = np.minimum(at - self.low, 0.0) + np.maximum(at - self.high, 0.0)
        if not len(self.anchors):
            nobody = np.full(len(at), -1)
            return Distances(nobody, np.full(len(at), np.nan), outside)
        distance = _pairwise(at, self.anchors)
        nearest = distance.argmin(axis=1)
        return Distances(nearest, distance[np.arange(len(at)), nearest], outside)

    def held_out_distances(self) -> Float[np.ndarray, " m"]:
        """From each measured deployment to the nearest of another model.

        So far from the data lay the models that were left out when errors were measured. Empty
        where all are of one model.
        """
        models = np.array([name.rpartition(" on ")[0] for name in self.names])
        if len(set(models.tolist())) < 2:
            return np.zeros(0)
        distance = _pairwise(self.anchors, self.anchors)
        distance[models[:, None] == models] = np.inf
        return distance.min(axis=1)


def training_space(checkpoint: Checkpoint) -> TrainingSpace:
    """The training data of a checkpoint, standardized as its network does; rates likewise."""
    of, raw, d = checkpoint.network.embedding, checkpoint.anchors, len(DESCRIPTORS)
    rates = raw[:, d:] if len(raw) else np.zeros((1, len(RATES)))
    rate_scale = np.maximum(rates.std(0), MIN_SCALE)
    centre = np.concatenate([of.mean, rates.mean(0)])
    scale = np.concatenate([of.scale, rate_scale])
    low = np.concatenate([of.low, (of.rate_low - rates.mean(0)) / rate_scale])
    high = np.concatenate([of.high, (of.rate_high - rates.mean(0)) / rate_scale])
    anchors = (raw - centre) / scale
    return TrainingSpace(anchors, checkpoint.anchor_names, centre, scale, low, high)


def _pairwise(
    a: Float[np.ndarray, "n inputs"], b: Float[np.ndarray, "m inputs"]
) -> Float[np.ndarray, "n m"]:
    """Euclidean distances, by the expanded square: no array over both and the inputs."""
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return np.sqrt(np.maximum(squares, 0.0))
