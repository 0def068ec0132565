"""Distillation of composed steps into the network: step times have to agree, not coefficients."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import lightning
import torch
from jaxtyping import Float
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from pinn.surrogate.network import CoefficientNetwork, log_huber
from pinn.training.distillation_data import DistillationRows
from pinn.training.teacher import FEATURE_GROUPS


@dataclass(frozen=True)
class DistillationSettings:
    """How composed steps teach the network; the defaults are assumptions.

    Attributes:
        epochs: Passes over the deployments.
        batch: Deployments per optimizer step.
        learning_rate: Peak of the one-cycle schedule of Adam.
        delta: Log error beyond which the loss grows linearly.
        parts_weight: Of the error of a step's parts beside that of the whole.
    """

    epochs: int = 24
    batch: int = 64
    learning_rate: float = 0.01
    delta: float = 0.05
    parts_weight: float = 1.0


class Distillation(lightning.LightningModule):
    """The network, fitted to composed steps.

    Step features -> network -> beta; beta x feature summed over a step -> seconds. The loss is the
    Huber loss of the log ratio to composed seconds, of whole steps and of their parts.
    """

    groups: Float[Tensor, "features groups"]

    def __init__(
        self, network: CoefficientNetwork, settings: DistillationSettings, deployments: int
    ) -> None:
        """Make everything but alpha learn.

        Args:
            network: Trained in place.
            settings: Loss and optimizer, kept in ``hparams`` and in every saved state.
            deployments: Number of deployments to train on, which sets the length of the schedule.
        """
        super().__init__()
        self.save_hyperparameters({**asdict(settings), "network": asdict(network.settings)})
        self.network, self.settings = network, settings
        self.steps = settings.epochs * -(-deployments // settings.batch)
        self.register_buffer("groups", torch.tensor(FEATURE_GROUPS, dtype=torch.float32), False)
        # Before a strategy wraps the module: DDP waits for the gradient of all that learns.
        network.requires_grad_(True)
        network.alpha_base.requires_grad_(False)

    def training_step(self, batch: DistillationRows) -> Float[Tensor, ""]:
        """Huber loss of the log step times, and of steps of which one group alone is predicted."""
        predicted = self._group_seconds(batch)
        whole = batch.seconds.sum(-1, keepdim=True)
        in_place = predicted + (whole - batch.seconds).clamp(min=0)
        loss = self._error(predicted.sum(-1, keepdim=True), whole)
        loss = loss + self.settings.parts_weight * self._error(in_place, whole)
        self.log("loss", loss, prog_bar=True, batch_size=len(batch.free))
        return loss

    def validation_step(self, batch: DistillationRows) -> Float[Tensor, ""]:
        """Median absolute percentage error of held-out steps."""
        predicted, composed = (s.sum(-1) for s in (self._group_seconds(batch), batch.seconds))
        median = 100 * (predicted / composed - 1).abs().median()
        self.log("val_median_ape_percent", median, prog_bar=True, batch_size=len(batch.free))
        return median

    def _group_seconds(self, batch: DistillationRows) -> Float[Tensor, "m n groups"]:
        """Predicted seconds of each of ``PART_GROUPS``."""
        beta, _ = self.network(batch.free, batch.rates)
        return torch.einsum("mnf,mf,fg->mng", batch.features, beta.float(), self.groups)

    def _error(
        self, predicted: Float[Tensor, "m n k"], seconds: Float[Tensor, "m n 1"]
    ) -> Float[Tensor, ""]:
        measured, delta = seconds.expand_as(predicted), self.settings.delta
        return log_huber(predicted, measured, torch.ones(()), delta) / seconds.numel()

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Adam on everything that makes betas, in one cycle."""
        learned = [p for p in self.network.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(learned, lr=self.settings.learning_rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.settings.learning_rate, total_steps=self.steps, pct_start=0.1
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
