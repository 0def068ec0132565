"""Good intervals of a run as rows that are linear in beta."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from pinn.data.traces.batches import WeightedBatches
from pinn.data.traces.interval_batches import IntervalBatches
from pinn.data.traces.temporal_split import temporal_split
from pinn.data.traces.trace_tables import TraceTables
from pinn.errors import PinnError
from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import step_costs
from pinn.physics.step import step_features
from pinn.specs.deployment import Deployment

#: Steps of the windows that are calibrated on and judged: shorter ones are mostly noise of a few
#: steps, of longer ones the ends say little. Assumptions, around the ten steps between samples of
#: the public run.
WINDOW_STEPS = (5, 15)

PARTS = CALIBRATION, VALIDATION, TEST = "first 60 %", "next 20 %", "last 20 %"


@dataclass(frozen=True)
class Intervals:
    """``n`` intervals between starts of steps, each as its mean step.

    Attributes:
        features: Mean step features.
        seconds: Mean seconds per step.
        steps: Steps of each; 1 for a single cycle.
        row: Row of the cycle table.
        part: Index into ``PARTS``: where in the run's time it lies.
        sums: Mean batch sums.
        queue_share: Requests running and waiting at its start / max_num_seqs.
        kv_usage: Share of the KV cache in use at its start; 0 where unknown.
    """

    features: Float[np.ndarray, "n step_features"]
    seconds: Float[np.ndarray, " n"]
    steps: Float[np.ndarray, " n"]
    row: Int[np.ndarray, " n"]
    part: Int[np.ndarray, " n"]
    sums: BatchSums
    queue_share: Float[np.ndarray, " n"]
    kv_usage: Float[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, index: Shaped[np.ndarray, " index"]) -> Intervals:
        """The intervals at ``index``, a mask or row numbers."""
        sums = BatchSums(*(getattr(self.sums, f.name)[index] for f in fields(BatchSums)))
        return Intervals(
            self.features[index],
            self.seconds[index],
            self.steps[index],
            self.row[index],
            self.part[index],
            sums,
            self.queue_share[index],
            self.kv_usage[index],
        )

    def of_part(self, name: str) -> Intervals:
        """The intervals of one part of the run's time."""
        return self.take(self.part == PARTS.index(name))

    @property
    def is_single(self) -> Bool[np.ndarray, " n"]:
        """Whether each is a single cycle."""
        return self.steps == 1

    @property
    def is_window(self) -> Bool[np.ndarray, " n"]:
        """Whether each is a window of :data:`WINDOW_STEPS` steps."""
        return (self.steps >= WINDOW_STEPS[0]) & (self.steps <= WINDOW_STEPS[1])


def read_intervals(traces: TraceTables, deployment: Deployment) -> Intervals:
    """The single cycles and windows of a run, split by time (60/20/20).

    Args:
        traces: Canonical tables.
        deployment: What they were measured on.

    Raises:
        PinnError: If the tables hold no steps, their step time was refused as a target, or no
            interval is left.
    """
    _check_target(traces)
    split = temporal_split(traces.cycles)
    rows = np.concatenate([split.train, split.validation, split.test])
    if not len(rows):
        raise PinnError(
            f"{traces.folder} has no good interval between steps: see its cleaning report for "
            "what was set aside, and trace for longer"
        )
    sizes = [len(split.train), len(split.validation), len(split.test)]
    cycles = traces.cycles.iloc[rows]
    steps = cycles["steps"].to_numpy(float)
    batches = IntervalBatches(traces, deployment).of(rows)
    features = step_features(step_costs([deployment]), batches.sums)
    start = traces.steps.iloc[rows]
    running = start[["prefill_requests", "decode_requests"]].sum(axis=1).to_numpy(float)
    waiting = np.nan_to_num(start["waiting_depth"].to_numpy(float))
    return Intervals(
        np.stack([_mean(column, batches, steps) for column in features.T], axis=1),
        cycles["step_s"].to_numpy(float),
        steps,
        rows,
        np.repeat(np.arange(len(PARTS)), sizes),
        BatchSums(
            *(_mean(getattr(batches.sums, f.name), batches, steps) for f in fields(BatchSums))
        ),
        (running + waiting) / deployment.recipe.max_requests,
        np.nan_to_num(start["kv_usage"].to_numpy(float)),
    )


def _mean(values: np.ndarray, batches: WeightedBatches, steps: np.ndarray) -> np.ndarray:
    """Mean over an interval's steps of what its batches have."""
    return np.bincount(batches.owner, batches.weight * values, minlength=len(steps)) / steps


def _check_target(traces: TraceTables) -> None:
    if not traces.manifest["tables"].get("cycles", {}).get("rows"):
        held = ", ".join(
            f"{entry['rows']} {name}"
            for name, entry in traces.manifest["tables"].items()
            if entry["rows"]
        )
        raise PinnError(
            f"{traces.folder} holds no intervals between engine steps ({held or 'nothing'}): "
            "ingest traces with step summaries ('pinn ingest vllm' or 'pinn ingest steps'), or "
            "calibrate on the files themselves with 'pinn calibrate --benchmarks'"
        )
    check = traces.manifest.get("targets", {}).get("step_s")
    if check and not check["is_target"]:
        raise PinnError(f"beta cannot be fitted to {check['column']}: {check['explanation']}")
