"""Traced servers as rows that are linear in beta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from pinn.data.traces.trace_tables import read_trace_tables
from pinn.errors import PinnError
from pinn.physics.descriptors import embed
from pinn.specs.deployment import Deployment
from pinn.training.calibration.calibrate import candidates
from pinn.training.calibration.intervals import Intervals, read_intervals
from pinn.training.calibration.selection import select


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
