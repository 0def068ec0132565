"""Distance of a deployment's inputs from the network's training inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from pinn.engines.deployment import Deployment
from pinn.surrogate.checkpoint import Checkpoint
from pinn.surrogate.featurizer import DESCRIPTORS, MIN_SCALE, RATES, featurize

# Distances of deployments from the measured deployments in a checkpoint's training data.


@dataclass(frozen=True)
class Distances:
    """Distances of ``n`` deployments from the training inputs, in standard deviations.

    Attributes:
        nearest: Index of the nearest measured deployment; -1 if the checkpoint has none.
        distance: Euclidean distance to the nearest measured deployment, over all features and log
            rates; NaN if there is none.
        outside: Distance of each feature, then each rate, from the training range: negative below
            the range, positive above, 0 inside.
    """

    nearest: Int[np.ndarray, " n"]
    distance: Float[np.ndarray, " n"]
    outside: Float[np.ndarray, "n inputs"]

    def outside_names(self, row: int) -> dict[str, float]:
        """Return the inputs of deployment ``row`` that lie outside the training range.

        Returns:
            Distance in standard deviations by name of the input, farthest first.
        """
        found = zip((*DESCRIPTORS, *RATES), self.outside[row].tolist(), strict=True)
        away = [(name, value) for name, value in found if abs(value) > _ROUNDING]
        return dict(sorted(away, key=lambda item: -abs(item[1])))


_ROUNDING = 1e-9


@dataclass(frozen=True)
class TrainingSpace:
    """Measured deployments of a checkpoint's training data, as standardized network inputs.

    Attributes:
        anchors: Standardized inputs, one row per measured deployment.
        names: Name of each measured deployment.
        centre: Means that are subtracted from the inputs.
        scale: Standard deviations by which centered inputs are divided.
        low: Minimum of each standardized input in the training data.
        high: Maximum of each standardized input in the training data.
    """

    anchors: Float[np.ndarray, "m inputs"]
    names: tuple[str, ...]
    centre: Float[np.ndarray, " inputs"]
    scale: Float[np.ndarray, " inputs"]
    low: Float[np.ndarray, " inputs"]
    high: Float[np.ndarray, " inputs"]

    def locate(self, deployments: Sequence[Deployment]) -> Distances:
        """Return the distance of each deployment from its nearest measured deployment.

        Distances are in standard deviations of the network's inputs.
        """
        at = (np.concatenate(featurize(deployments), axis=1) - self.centre) / self.scale
        outside = np.minimum(at - self.low, 0.0) + np.maximum(at - self.high, 0.0)
        if not len(self.anchors):
            nobody = np.full(len(at), -1)
            return Distances(nobody, np.full(len(at), np.nan), outside)
        distance = _pairwise(at, self.anchors)
        nearest = distance.argmin(axis=1)
        return Distances(nearest, distance[np.arange(len(at)), nearest], outside)

    def held_out_distances(self) -> Float[np.ndarray, " m"]:
        """Return the distance of each measured deployment from the nearest one of another model.

        Distances are in standard deviations, with shape ``[m]``. In an evaluation that holds out
        models, these are the distances of the held-out models. The result is empty if all
        deployments have the same model.
        """
        models = np.array([name.rpartition(" on ")[0] for name in self.names])
        if len(set(models.tolist())) < 2:
            return np.zeros(0)
        distance = _pairwise(self.anchors, self.anchors)
        distance[models[:, None] == models] = np.inf
        return distance.min(axis=1)


def training_space(checkpoint: Checkpoint) -> TrainingSpace:
    """Return the training inputs of a checkpoint, standardized as in its network."""
    of, raw, d = checkpoint.network.input_scale, checkpoint.anchors, len(DESCRIPTORS)
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
    """Return the Euclidean distance of each row of ``a`` from each row of ``b``.

    It is computed as a^2 + b^2 - 2 a b, which avoids an array of all differences.
    """
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return np.sqrt(np.maximum(squares, 0.0))
