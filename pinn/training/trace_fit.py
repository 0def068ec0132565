"""Learning from traces together with measured deployments, from a network that is there already."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader

from pinn.coefficients.coefficient_network import CoefficientNetwork
from pinn.coefficients.loss import log_huber
from pinn.training.learner import TrainerFactory
from pinn.training.serving_fit import (
    STEPS_PER_EPOCH,
    Repeat,
    ServingFit,
    ServingFitSettings,
    TensorBatch,
    serving_batch,
)
from pinn.training.serving_rows import ServingRows
from pinn.training.trace_rows import TraceRows


@dataclass(frozen=True)
class TraceFitSettings:
    """How traces count beside measured deployments; the defaults are assumptions.

    Attributes:
        trace_weight: Of the loss of traces beside that of TPOT.
        trace_delta: Log error beyond which it grows linearly.
        rows_per_run: Most intervals of each run.
    """

    trace_weight: float = 1.0
    trace_delta: float = 0.02
    rows_per_run: int = 500


class TraceFit(ServingFit):
    """Fits the network to both by maximum a posteriori; the prior's mean is where it starts."""

    def __init__(
        self, network: CoefficientNetwork, settings: ServingFitSettings, traces: TraceFitSettings
    ) -> None:
        super().__init__(network, settings)
        self.traces = traces
        start = copy.deepcopy(network).requires_grad_(False)
        self._start = (start,)  # in a tuple, so that it is no part of what learns or is saved

    def training_step(self, batch: TensorBatch) -> Float[Tensor, ""]:
        """The loss of measured deployments plus that of traced steps."""
        beta, _ = self.network(batch["trace_free"], batch["trace_rates"])
        predicted = (beta[batch["trace_run"]] * batch["trace_features"]).sum(-1)
        loss = log_huber(
            predicted, batch["trace_seconds"], batch["trace_weight"], self.traces.trace_delta
        )
        self.log("trace_loss", loss, batch_size=len(predicted))
        return super().training_step(batch) + self.traces.trace_weight * loss

    def _penalty(self, batch: TensorBatch) -> Tensor:
        """Half the squared log deviations from the start, in units of their spreads."""
        s, network, start = self.settings, self.network, self._start[0]
        penalty = sum(
            ((getattr(network, part) - getattr(start, part)) ** 2).sum()
            for part in ("beta_base", "alpha_base")
        )
        total = torch.as_tensor(penalty) / s.base_spread**2 / 2
        if network.settings.corrected:
            free = torch.cat([batch["free"], batch["trace_free"]])
            rates = torch.cat([batch["rates"], batch["trace_rates"]])
            pairs = zip(
                network.corrections(free, rates), start.corrections(free, rates), strict=True
            )
            moved = [((now - then) ** 2).mean(0).sum() for now, then in pairs]
            total = total + torch.stack(moved).sum() / s.correction_spread**2 / 2
        return total


@dataclass(frozen=True)
class TraceLearner:
    """Goes on learning from traces and measured deployments.

    Attributes:
        fit: How measured deployments teach, and the priors around the start.
        traces: How traces count.
        trainer: Makes the Lightning trainer, given ``max_epochs`` and ``folder``.
    """

    fit: ServingFitSettings
    traces: TraceFitSettings
    trainer: TrainerFactory

    def learn(
        self, start: CoefficientNetwork, rows: ServingRows, traced: TraceRows, folder: Path
    ) -> CoefficientNetwork:
        """A network that learned from both; ``start`` stays as it is.

        Args:
            start: Where to begin.
            rows: Measured deployments.
            traced: Intervals of traced servers.
            folder: Of logs and of the state to resume from.
        """
        network = copy.deepcopy(start).double().train()
        trainer = self.trainer(max_epochs=-(-self.fit.steps // STEPS_PER_EPOCH), folder=folder)
        last = folder / "last.ckpt"
        batch = serving_batch(rows) | traced.batch()
        trainer.fit(
            TraceFit(network, self.fit, self.traces),
            DataLoader(Repeat(batch, STEPS_PER_EPOCH), batch_size=None),
            ckpt_path=str(last) if last.is_file() else None,
            weights_only=True,
        )
        return network.requires_grad_(False).eval()
