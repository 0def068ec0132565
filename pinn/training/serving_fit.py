"""Training of the network on measured deployments alone, without kernels."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import TypeVar

import lightning
import numpy as np
import torch
from jaxtyping import Float, Shaped
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from pinn.surrogate.architecture import NetworkSettings
from pinn.surrogate.featurizer import featurize, fit_scale
from pinn.surrogate.network import CoefficientNetwork, log_huber
from pinn.surrogate.surrogate import predict_coefficients
from pinn.training.serving_rows import ServingRows, SimulatedRows, simulate_rows
from pinn.training.trainer import TrainerFactory, last_state


@dataclass(frozen=True)
class ServingFitSettings:
    """Settings for training the network on measured deployments.

    Attributes:
        steps: Number of optimizer steps, each on all rows.
        learning_rate: Initial learning rate of Adam, annealed to 0 along a cosine.
        base_spread: Prior (Gaussian) standard deviation of the logs of shared coefficients.
        correction_spread: Prior standard deviation of configuration corrections, in log units;
            small, because a handful of models cannot determine them.
        ttft_weight: Weight of the TTFT loss relative to that of TPOT.
        tpot_delta: Log error beyond which the TPOT loss grows linearly.
        ttft_delta: Log error beyond which the TTFT loss grows linearly.
    """

    steps: int = 600
    learning_rate: float = 0.03
    base_spread: float = 0.7
    correction_spread: float = 0.05
    ttft_weight: float = 0.3
    tpot_delta: float = 0.1
    ttft_delta: float = 0.2


#: Minimum ratio of TTFT to the time of the steps up to the first token. The API server's work
#: overlaps with these steps and hides at most the remaining share.
LEAST_STEPS_SHARE = 0.5

Seconds = TypeVar("Seconds", Tensor, np.ndarray)


def is_least_ttft(steps: Seconds, beside: Seconds) -> Seconds:
    """Return whether TTFT, ``steps`` + ``beside``, is below ``LEAST_STEPS_SHARE`` x ``steps``.

    API server work that overlaps with the steps can hide only part of their time.

    Args:
        steps: Time in seconds of the steps from the request's handover to the engine until its
            first token.
        beside: Time in seconds of work outside the steps; negative if the steps hide work.
    """
    return steps + beside < LEAST_STEPS_SHARE * steps


#: Tensors of a training batch by name; the first axis of a tensor is rows or deployments.
TensorBatch = dict[str, Shaped[Tensor, "..."]]


class Repeat(IterableDataset[TensorBatch]):
    """Dataset that yields one batch of all rows, repeated for each optimizer step."""

    def __init__(self, batch: TensorBatch, times: int) -> None:
        self.batch, self.times = batch, times

    def __iter__(self) -> Iterator[TensorBatch]:
        return repeat(self.batch, self.times)


def serving_batch(rows: ServingRows) -> TensorBatch:
    """Return tensors of measured TPOT and TTFT, and of the features of rows and deployments."""
    free, rates = featurize(rows.deployments)
    arrays = {
        "free": free,
        "rates": rates,
        "deployment": rows.deployment,
        "tpot_features": rows.tpot_features,
        "ttft_features": rows.ttft_features,
        "request_features": rows.request_features,
        "ttft_offset": rows.ttft_offset_s,
        "tpot": rows.tpot_s,
        "ttft": rows.ttft_s,
        "weight": rows.weight,
    }
    return {name: torch.tensor(a) for name, a in arrays.items()}


def predict_rows(
    network: CoefficientNetwork, batch: TensorBatch
) -> tuple[Float[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Return predicted TPOT and TTFT of every row, in seconds, from features of simulated steps."""
    beta, alpha = network(batch["free"], batch["rates"])
    beta, alpha = beta[batch["deployment"]], alpha[batch["deployment"]]
    tpot = (beta * batch["tpot_features"]).sum(-1)
    steps = (beta * batch["ttft_features"]).sum(-1)
    beside = (alpha * batch["request_features"]).sum(-1) + batch["ttft_offset"]
    is_least = is_least_ttft(steps, beside)
    return tpot, torch.where(is_least, LEAST_STEPS_SHARE * steps, steps + beside)


class ServingFit(lightning.LightningModule):
    """Maximum a posteriori fit of the network to measured TPOT and TTFT, as a Lightning module."""

    def __init__(self, network: CoefficientNetwork, settings: ServingFitSettings) -> None:
        super().__init__()
        self.save_hyperparameters({**asdict(settings), "network": asdict(network.settings)})
        self.network, self.settings = network, settings
        # Select the trained parameters here, before a Lightning strategy wraps the module: DDP
        # waits for the gradient of every parameter that requires one.
        network.requires_grad_(True)

    def training_step(self, batch: TensorBatch) -> Float[Tensor, ""]:
        """Return the loss of all rows' log TPOT and TTFT, plus the negative log priors."""
        s = self.settings
        tpot, ttft = predict_rows(self.network, batch)
        loss = s.ttft_weight * log_huber(ttft, batch["ttft"], batch["weight"], s.ttft_delta)
        loss = loss + log_huber(tpot, batch["tpot"], batch["weight"], s.tpot_delta)
        rows = len(batch["tpot"])
        loss = loss + self._penalty(batch) / rows
        self.log("loss", loss, prog_bar=True, batch_size=rows)
        return loss

    def _penalty(self, batch: TensorBatch) -> Tensor:
        """Return the negative log prior of the shared coefficients and of corrections.

        This is half the sum of squared log deviations from the priors, each in units of its prior
        standard deviation. Corrections are averaged over deployments.
        """
        s, network = self.settings, self.network
        bases = (network.beta_base**2).sum() + (network.alpha_base**2).sum()
        penalty = bases / s.base_spread**2 / 2
        if network.settings.corrected:
            corrections = network.corrections(batch["free"], batch["rates"])
            size = (corrections**2).mean(0).sum() + (network.alpha_head**2).sum()
            penalty = penalty + size / s.correction_spread**2 / 2
        return penalty

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return the Adam optimizer for all parameters, with a cosine-annealed learning rate."""
        s = self.settings
        optimizer = torch.optim.Adam(self.network.parameters(), lr=s.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, s.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


#: Number of optimizer steps per epoch, each on all rows. It is large enough that Lightning's
#: overhead per epoch hardly matters.
STEPS_PER_EPOCH = 100


def serving_loader(rows: ServingRows) -> DataLoader[TensorBatch]:
    """Return a loader that yields the full batch ``STEPS_PER_EPOCH`` times per epoch."""
    return DataLoader(Repeat(serving_batch(rows), STEPS_PER_EPOCH), batch_size=None)


@dataclass(frozen=True)
class ServingLearner:
    """Learner that trains the network on measured deployments alone.

    Attributes:
        network: Size and bounds of the network; ``corrected=False`` gives all deployments the same
            coefficients.
        fit: Settings of the fit.
        trainer: Function that takes ``max_epochs`` and ``folder`` and returns the Lightning
            trainer.
        seed: Random seed for the initial weights.
    """

    network: NetworkSettings
    fit: ServingFitSettings
    trainer: TrainerFactory
    seed: int = 0

    def learn(self, rows: ServingRows, folder: Path) -> CoefficientNetwork:
        """Train a network; ``folder`` receives logs and the state from which to resume."""
        torch.manual_seed(self.seed)
        network = CoefficientNetwork(self.network, fit_scale(*featurize(rows.deployments))).double()
        epochs = -(-self.fit.steps // STEPS_PER_EPOCH)
        trainer = self.trainer(max_epochs=epochs, folder=folder)
        module, loader = ServingFit(network, self.fit), serving_loader(rows)
        trainer.fit(module, loader, ckpt_path=last_state(folder), weights_only=True)
        return network.requires_grad_(False).eval()


def predict(network: CoefficientNetwork, rows: ServingRows) -> SimulatedRows:
    """Predict TPOT and TTFT of rows by simulating them with a network's coefficients."""
    found = predict_coefficients(network, rows.deployments)
    return simulate_rows(rows, found.beta, found.alpha)
