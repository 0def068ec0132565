"""Composed steps as training and validation data of the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import lightning
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from pinn.surrogate.featurizer import featurize
from pinn.training.composed import ComposedSteps
from pinn.training.teacher import Scalars, features_of_batches, group_seconds


class DistillationRows(NamedTuple):
    """Steps of ``m`` deployments, ``n`` each, as the network learns them (float32).

    Attributes:
        free: Descriptors.
        rates: Log datasheet rates.
        features: Step features.
        seconds: Composed times of each of ``PART_GROUPS``; their sum is the step's.
    """

    free: Float[Tensor, "m descriptors"]
    rates: Float[Tensor, "m rates"]
    features: Float[Tensor, "m n features"]
    seconds: Float[Tensor, "m n groups"]

    def take(self, index: Int[Tensor, " index"] | slice) -> DistillationRows:
        """Return the deployments at ``index``."""
        return DistillationRows(*(each[index] for each in self))


def distillation_rows(steps: ComposedSteps, scalars: Scalars) -> DistillationRows:
    """Features and times of composed steps, overheads included."""
    free, rates = featurize(steps.deployments)
    features = features_of_batches(steps.deployments, steps.batches)
    seconds = group_seconds(scalars, steps.parts, features)
    taught = (torch.tensor(each, dtype=torch.float32) for each in (features, seconds))
    return DistillationRows(torch.tensor(free), torch.tensor(rates), *taught)


class _Shuffled(IterableDataset[DistillationRows]):
    """Minibatches in an order that depends on the seed and the epoch alone.

    The epoch follows from the optimizer's steps: after a resume Lightning fetches the first
    minibatch before any hook of the epoch runs and before ``current_epoch`` is right.
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
    """Composed steps in shuffled minibatches, and held-out ones as one validation batch."""

    def __init__(
        self, train: DistillationRows, held_out: DistillationRows | None, batch: int, seed: int
    ) -> None:
        """Keep the data.

        Args:
            train: Steps to train on.
            held_out: Steps of other deployments to validate on; None for no validation.
            batch: Deployments per minibatch.
            seed: Seed of the order of deployments.
        """
        super().__init__()
        self.train, self.held_out, self.batch, self.seed = train, held_out, batch, seed

    def train_dataloader(self) -> DataLoader[DistillationRows]:
        """Return minibatches in the order of the current epoch."""
        rows = _Shuffled(self.train, self.batch, self.seed, self._steps_done)
        return DataLoader(rows, batch_size=None)

    def val_dataloader(self) -> Iterable[DistillationRows]:
        """Return all held-out steps as one batch, so that a median over them is exact."""
        if self.held_out is None:
            return []
        rows = _Shuffled(self.held_out, len(self.held_out.free), self.seed, lambda: 0)
        return DataLoader(rows, batch_size=None)

    def _steps_done(self) -> int:
        return 0 if self.trainer is None else self.trainer.global_step
