"""The fit of the network to measured deployments, as an experiment calls it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import lightning
import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from pinn.surrogate.architecture import NetworkSettings
from pinn.surrogate.featurizer import featurize, fit_scale
from pinn.surrogate.loss import log_huber
from pinn.surrogate.network import CoefficientNetwork
from pinn.surrogate.surrogate import predict_coefficients
from pinn.training.serving_rows import ServingRows, SimulatedRows, simulate_rows

# Learning from measured deployments: the shared base, alpha and, if asked, the correction.


@dataclass(frozen=True)
class ServingFitSettings:
    """How measured deployments teach the network.

    Attributes:
        steps: Optimizer steps, each on all rows.
        learning_rate: Of Adam, annealed to 0 along a cosine.
        base_spread: Standard deviation of the shared base's Gaussian prior, in log units.
        correction_spread: The same for the configuration corrections; small, because a handful
            of models cannot identify them.
        learn_beta: Whether betas learn here; off where kernels taught them.
        ttft_weight: Weight of the TTFT loss beside that of TPOT.
        tpot_delta: Log error beyond which the TPOT loss grows linearly.
        ttft_delta: The same for TTFT.
    """

    steps: int = 1500
    learning_rate: float = 0.02
    base_spread: float = 0.7
    correction_spread: float = 0.05
    learn_beta: bool = True
    ttft_weight: float = 0.3
    tpot_delta: float = 0.1
    ttft_delta: float = 0.2


#: A TTFT is at least this share of its steps, however much of the API server's work they hide.
LEAST_STEPS_SHARE = 0.5


#: Name -> values; the first axis counts rows, runs or deployments.
TensorBatch = dict[str, Shaped[Tensor, "..."]]


class Repeat(IterableDataset):
    """The full batch, over and over: 825 rows fit one step."""

    def __init__(self, batch: TensorBatch, times: int) -> None:
        self.batch, self.times = batch, times

    def __iter__(self) -> Iterator[TensorBatch]:
        for _ in range(self.times):
            yield self.batch


def serving_batch(rows: ServingRows) -> TensorBatch:
    """The rows as tensors, with the embedding of their deployments."""
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
    """TPOT and TTFT in seconds of every row, for the batches that it was simulated with."""
    beta, alpha = network(batch["free"], batch["rates"])
    beta, alpha = beta[batch["deployment"]], alpha[batch["deployment"]]
    tpot = (beta * batch["tpot_features"]).sum(-1)
    steps = (beta * batch["ttft_features"]).sum(-1)
    beside = (alpha * batch["request_features"]).sum(-1) + batch["ttft_offset"]
    # What the API server does while the engine works is no more than the steps' own time.
    return tpot, torch.maximum(steps + beside, LEAST_STEPS_SHARE * steps)


class ServingFit(lightning.LightningModule):
    """Fits the network to measured deployments by maximum a posteriori."""

    def __init__(self, network: CoefficientNetwork, settings: ServingFitSettings) -> None:
        super().__init__()
        self.network, self.settings = network, settings
        # Before a strategy wraps the module: DDP waits for the gradient of all that learns.
        network.requires_grad_(settings.learn_beta)
        network.alpha_base.requires_grad_(True)

    def training_step(self, batch: TensorBatch) -> Float[Tensor, ""]:
        """Loss of all rows plus the negative log priors."""
        s, network = self.settings, self.network
        tpot, ttft = predict_rows(network, batch)
        loss = s.ttft_weight * log_huber(ttft, batch["ttft"], batch["weight"], s.ttft_delta)
        if s.learn_beta:
            loss = loss + log_huber(tpot, batch["tpot"], batch["weight"], s.tpot_delta)
        rows = len(batch["tpot"])
        loss = loss + self._penalty(batch) / rows
        self.log("loss", loss, prog_bar=True, batch_size=rows)
        return loss

    def _penalty(self, batch: TensorBatch) -> Tensor:
        """Half the squared log deviations from the prior, in units of their spreads."""
        s, network = self.settings, self.network
        bases = (network.beta_base**2).sum() + (network.alpha_base**2).sum()
        penalty = bases / s.base_spread**2 / 2
        if network.settings.corrected and s.learn_beta:
            corrections = network.corrections(batch["free"], batch["rates"])
            size = (corrections**2).mean(0).sum()
            penalty = penalty + size / s.correction_spread**2 / 2
        return penalty

    def configure_optimizers(self):
        """Adam on what learns here, annealed along a cosine."""
        s = self.settings
        learned = [p for p in self.network.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(learned, lr=s.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, s.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


#: Lightning counts epochs; an epoch of this many full-batch steps keeps its overhead small.
STEPS_PER_EPOCH = 100


def serving_loader(rows: ServingRows) -> DataLoader:
    """One epoch of full-batch steps."""
    return DataLoader(Repeat(serving_batch(rows), STEPS_PER_EPOCH), batch_size=None)


# Learners: what turns training rows into something that predicts rows.

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
        network = CoefficientNetwork(self.network, fit_scale(*featurize(rows.deployments))).double()
        epochs = -(-self.fit.steps // STEPS_PER_EPOCH)
        trainer = self.trainer(max_epochs=epochs, folder=folder)
        last = folder / "last.ckpt"
        module, loader = ServingFit(network, self.fit), serving_loader(rows)
        resumed = str(last) if last.is_file() else None
        trainer.fit(module, loader, ckpt_path=resumed, weights_only=True)
        return network.requires_grad_(False).eval()


def predict(network: CoefficientNetwork, rows: ServingRows) -> SimulatedRows:
    """What a network says of rows: their benchmarks, simulated with its coefficients."""
    found = predict_coefficients(network, rows.deployments)
    return simulate_rows(rows, found.beta, found.alpha)
