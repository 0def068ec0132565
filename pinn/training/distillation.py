"""Distillation: training of the network on step times that a teacher sums from kernel times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

import lightning
import numpy as np
import torch
from jaxtyping import Float, Int
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from pinn.surrogate.featurizer import featurize
from pinn.surrogate.network import CoefficientNetwork, log_huber
from pinn.surrogate.step_features import GPU, HOST, LAUNCHING
from pinn.training.composed import ComposedSteps
from pinn.training.teacher import FEATURE_GROUPS, Scalars, features_of_batches, group_seconds


@dataclass(frozen=True)
class DistillationSettings:
    """Settings for training on step times summed from kernels; the defaults are assumptions.

    Attributes:
        epochs: Number of passes over the deployments.
        batch: Number of deployments per optimizer step.
        learning_rate: Peak learning rate of Adam's one-cycle schedule.
        delta: Log error beyond which the Huber loss grows linearly.
        parts_weight: Weight of the error of a step's parts relative to that of the whole step.
    """

    epochs: int = 24
    batch: int = 64
    learning_rate: float = 0.01
    delta: float = 0.05
    parts_weight: float = 1.0


class DistillationRows(NamedTuple):
    """Training data of the network: ``n`` engine steps of each of ``m`` deployments (float32).

    Attributes:
        free: Features of the deployments, ``[m, descriptors]``.
        rates: Logarithms of memory bandwidth, peak FLOP/s and link bandwidth, ``[m, rates]``.
        features: Step features, ``[m, n, features]``.
        seconds: Times in seconds, summed from kernels and overheads, for each of ``PART_GROUPS``,
            ``[m, n, groups]``.
        whole: Times in seconds of whole steps, in which kernel launches overlap with GPU work,
            ``[m, n]``.
    """

    free: Float[Tensor, "m descriptors"]
    rates: Float[Tensor, "m rates"]
    features: Float[Tensor, "m n features"]
    seconds: Float[Tensor, "m n groups"]
    whole: Float[Tensor, "m n"]

    def take(self, index: Int[Tensor, " index"] | slice) -> DistillationRows:
        """Select the training data of the deployments at ``index``."""
        return DistillationRows(*(each[index] for each in self))


def distillation_rows(steps: ComposedSteps, scalars: Scalars) -> DistillationRows:
    """Return training data: step features, and step times summed from kernels and overheads."""
    free, rates = featurize(steps.deployments)
    features = features_of_batches(steps.deployments, steps.batches)
    seconds = group_seconds(scalars, steps.parts, features)
    whole = scalars.step_seconds(steps.parts, features)
    taught = (torch.tensor(each, dtype=torch.float32) for each in (features, seconds, whole))
    return DistillationRows(torch.tensor(free), torch.tensor(rates), *taught)


class Distillation(lightning.LightningModule):
    """Training of the network on step times summed from kernels.

    The network maps a deployment's features to step coefficients (betas). Beta x step feature gives
    the time of a step's parts and of the whole step, in which kernel launches overlap with GPU
    work. The loss is the Huber loss of the log ratio of predicted to target time, over whole steps
    and their parts.
    """

    groups: Float[Tensor, "features groups"]
    overlapping: Float[Tensor, "features 3"]

    def __init__(
        self, network: CoefficientNetwork, settings: DistillationSettings, deployments: int
    ) -> None:
        """Set up the training of all parameters except the request coefficients (alpha).

        Args:
            network: Network that is trained in place.
            settings: Loss and optimizer, kept in ``hparams`` and in every saved state.
            deployments: Number of training deployments, which sets the length of the schedule.
        """
        super().__init__()
        self.save_hyperparameters({**asdict(settings), "network": asdict(network.settings)})
        self.network, self.settings = network, settings
        self.steps = settings.epochs * -(-deployments // settings.batch)
        self.register_buffer("groups", torch.tensor(FEATURE_GROUPS, dtype=torch.float32), False)
        masks = torch.tensor(np.stack([HOST, LAUNCHING, GPU], axis=1), dtype=torch.float32)
        self.register_buffer("overlapping", masks, False)
        # Select the trained parameters here, before a Lightning strategy wraps the module: DDP
        # waits for the gradient of every parameter that requires one.
        network.requires_grad_(True)
        network.alpha_base.requires_grad_(False)
        network.alpha_head.requires_grad_(False)

    def training_step(self, batch: DistillationRows) -> Float[Tensor, ""]:
        """Return the Huber loss of log step times, plus a Huber loss for each group of parts.

        In the loss of a group, the predicted step time is the group's predicted time plus the
        target times of all other groups, without overlap of kernel launches.
        """
        seconds = self._seconds(batch)
        predicted = torch.einsum("mnf,fg->mng", seconds, self.groups)
        total = batch.seconds.sum(-1, keepdim=True)
        in_place = predicted + (total - batch.seconds).clamp(min=0)
        loss = self._error(self._whole(seconds).unsqueeze(-1), batch.whole.unsqueeze(-1))
        loss = loss + self.settings.parts_weight * self._error(in_place, total)
        self.log("loss", loss, prog_bar=True, batch_size=len(batch.free))
        return loss

    def validation_step(self, batch: DistillationRows) -> Float[Tensor, ""]:
        """Return the median absolute percentage error of held-out step times."""
        median = 100 * (self._whole(self._seconds(batch)) / batch.whole - 1).abs().median()
        self.log("val_median_ape_percent", median, prog_bar=True, batch_size=len(batch.free))
        return median

    def _seconds(self, batch: DistillationRows) -> Float[Tensor, "m n features"]:
        """Return each step feature's predicted time in each step (beta x feature), in seconds."""
        beta, _ = self.network(batch.free, batch.rates)
        return batch.features * beta.float().unsqueeze(1)

    def _whole(self, seconds: Float[Tensor, "m n features"]) -> Float[Tensor, "m n"]:
        """Return each step's predicted time from its features' seconds, as ``step_time`` does."""
        host, launching, gpu = (seconds @ self.overlapping).unbind(-1)
        return host + torch.maximum(launching, gpu)

    def _error(
        self, predicted: Float[Tensor, "m n k"], seconds: Float[Tensor, "m n 1"]
    ) -> Float[Tensor, ""]:
        measured, delta = seconds.expand_as(predicted), self.settings.delta
        return log_huber(predicted, measured, torch.ones(()), delta) / seconds.numel()

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return the Adam optimizer for all parameters except alpha, with a one-cycle schedule."""
        learned = [p for p in self.network.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(learned, lr=self.settings.learning_rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.settings.learning_rate, total_steps=self.steps, pct_start=0.1
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


# Data loaders of step times composed from kernel times, for training and validation.


class _Shuffled(IterableDataset[DistillationRows]):
    """Minibatches of deployments, in an order that depends only on the seed and the epoch.

    The epoch is derived from the number of optimizer steps because, after a resume, Lightning
    fetches the first minibatch before it runs the epoch's hooks or sets ``current_epoch``.
    """

    def __init__(
        self, rows: DistillationRows, batch: int, seed: int, steps_done: Callable[[], int]
    ) -> None:
        self.rows, self.batch, self.seed, self.steps_done = rows, batch, seed, steps_done

    def __iter__(self) -> Iterator[DistillationRows]:
        deployments = len(self.rows.free)
        epoch = self.steps_done() // -(-deployments // self.batch)
        generator = torch.Generator().manual_seed(self.seed * 100_003 + epoch)
        order = torch.randperm(deployments, generator=generator)
        for index in torch.split(order, self.batch):
            yield self.rows.take(index)


class DistillationData(lightning.LightningDataModule):
    """Minibatches of shuffled training steps, and all held-out steps as one validation batch."""

    def __init__(
        self, train: DistillationRows, held_out: DistillationRows | None, batch: int, seed: int
    ) -> None:
        """Store the steps from which the data loaders are made.

        Args:
            train: Steps to train on.
            held_out: Steps of other deployments to validate on; None for no validation.
            batch: Deployments per minibatch.
            seed: Random seed for the order of deployments.
        """
        super().__init__()
        self.train, self.held_out, self.batch, self.seed = train, held_out, batch, seed

    def train_dataloader(self) -> DataLoader[DistillationRows]:
        """Return the training minibatches in the order of the current epoch."""
        rows = _Shuffled(self.train, self.batch, self.seed, self._steps_done)
        return DataLoader(rows, batch_size=None)

    def val_dataloader(self) -> Iterable[DistillationRows]:
        """Return all held-out steps as one batch, so that the median error is over all of them."""
        if self.held_out is None:
            return []
        rows = _Shuffled(self.held_out, len(self.held_out.free), self.seed, lambda: 0)
        return DataLoader(rows, batch_size=None)

    def _steps_done(self) -> int:
        return 0 if self.trainer is None else self.trainer.global_step
