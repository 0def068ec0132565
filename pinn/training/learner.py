"""Learners: what turns training rows into something that predicts rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import lightning
import torch

from pinn.coefficients.coefficient_network import CoefficientNetwork, NetworkSettings
from pinn.coefficients.scaling import fit_scale
from pinn.coefficients.surrogate import predict_coefficients
from pinn.training.serving_fit import (
    STEPS_PER_EPOCH,
    ServingFit,
    ServingFitSettings,
    serving_loader,
)
from pinn.training.serving_rows import ServingRows
from pinn.training.simulated_rows import SimulatedRows, simulate_rows

#: Makes a Lightning trainer for (epochs, folder of its logs).
TrainerFactory = Callable[..., lightning.Trainer]


@dataclass(frozen=True)
class ServingLearner:
    """Learns the network from measured deployments alone.

    Attributes:
        network: Size and bounds; ``corrected=False`` gives one global vector.
        fit: How to fit.
        trainer: Makes the Lightning trainer, given ``max_epochs`` and ``folder``.
        seed: Of the initial weights.
    """

    network: NetworkSettings
    fit: ServingFitSettings
    trainer: TrainerFactory
    seed: int = 0

    def learn(self, rows: ServingRows, folder: Path) -> CoefficientNetwork:
        """Train a network; logs and the state to resume from go to ``folder``."""
        torch.manual_seed(self.seed)
        network = CoefficientNetwork(self.network, fit_scale(*rows.embedding())).double()
        epochs = -(-self.fit.steps // STEPS_PER_EPOCH)
        trainer = self.trainer(max_epochs=epochs, folder=folder)
        last = folder / "last.ckpt"
        trainer.fit(
            ServingFit(network, self.fit),
            serving_loader(rows),
            ckpt_path=str(last) if last.is_file() else None,
            weights_only=True,
        )
        return network.requires_grad_(False).eval()

    def without_correction(self) -> ServingLearner:
        """A copy of the learner, restricted to one global vector."""
        return replace(self, network=replace(self.network, corrected=False))


def predict(network: CoefficientNetwork, rows: ServingRows) -> SimulatedRows:
    """What a network says of rows: their benchmarks, simulated with its coefficients."""
    found = predict_coefficients(network, rows.deployments)
    return simulate_rows(rows, found.beta, found.alpha)
