"""The network fitted to traces."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.utils.data import DataLoader

from pinn.coefficients.coefficient_network import CoefficientNetwork, log_huber
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.physics.descriptors import embed
from pinn.server.calibration.calibrate import Intervals, candidates, read_intervals, select
from pinn.server.traces.trace_tables import read_trace_tables
from pinn.training.learner import (
    STEPS_PER_EPOCH,
    Repeat,
    ServingFit,
    ServingFitSettings,
    TensorBatch,
    TrainerFactory,
    serving_batch,
)
from pinn.training.serving_rows import ServingRows

# Traced servers as rows that are linear in beta.


@dataclass(frozen=True)
class TracedRun:
    """A server's run.

    Attributes:
        name: Of its folder: the workload's name in every table.
        deployment: What was traced.
        intervals: Its good intervals, by part of its time.
    """

    name: str
    deployment: Deployment
    intervals: Intervals


@dataclass(frozen=True)
class TraceRows:
    """``n`` intervals of ``m`` runs.

    Attributes:
        deployments: Of each run.
        run: Index of each row's run.
        features: Mean step features.
        seconds: Mean seconds per step.
        weight: Of each row in a loss; every run has the same in all.
    """

    deployments: tuple[Deployment, ...]
    run: Int[np.ndarray, " n"]
    features: Float[np.ndarray, "n step_features"]
    seconds: Float[np.ndarray, " n"]
    weight: Float[np.ndarray, " n"]

    def batch(self) -> dict[str, Shaped[Tensor, "..."]]:
        """The rows as tensors, with the embedding of their deployments."""
        free, rates = embed(self.deployments)
        arrays = {
            "trace_free": free,
            "trace_rates": rates,
            "trace_run": self.run,
            "trace_features": self.features,
            "trace_seconds": self.seconds,
            "trace_weight": self.weight,
        }
        return {name: torch.tensor(a) for name, a in arrays.items()}


def read_runs(folders: Sequence[str]) -> list[TracedRun]:
    """Open folders that ``pinn ingest`` wrote.

    Raises:
        PinnError: If none is given, two have the same name, or one holds nothing to learn from.
    """
    if not folders:
        raise PinnError(
            "no traces to train on: give the folders that 'pinn ingest' wrote, as "
            "data.traces=run1 or 'data.traces=[run1,run2]'"
        )
    runs = []
    for folder in map(Path, folders):
        traces = read_trace_tables(folder)
        deployment = traces.deployment()
        runs.append(TracedRun(folder.name, deployment, read_intervals(traces, deployment)))
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        raise PinnError(f"two folders of traces have the same name: {', '.join(names)}")
    return runs


def trace_rows(
    runs: Sequence[TracedRun], rows_per_run: int, seed: int, kind: str = "both"
) -> TraceRows:
    """Intervals to train on: random ones of the first 60 % of each run's time.

    Args:
        runs: Traced servers.
        rows_per_run: Most intervals of each.
        seed: Of the draw.
        kind: ``windows``, ``singles`` or ``both``.
    """
    chosen = []
    for run in runs:
        pool = candidates(run.intervals, kind)
        every = np.ones(pool.features.shape[1])
        chosen.append(pool.take(select("random", pool, every, rows_per_run, seed)))
    sizes = [len(part) for part in chosen]
    weight = np.concatenate([np.full(n, 1 / n) for n in sizes])
    return TraceRows(
        tuple(run.deployment for run in runs),
        np.repeat(np.arange(len(runs)), sizes),
        np.concatenate([part.features for part in chosen]),
        np.concatenate([part.seconds for part in chosen]),
        weight / weight.mean(),
    )


# Learning from traces together with measured deployments, from a network that is there already.


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
