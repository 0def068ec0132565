"""What every task of a plan has to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pinn.planning.limits import Limits
from pinn.planning.load import ReplicaLoad, replica_load
from pinn.simulator.workloads.load_flags import Load
from pinn.simulator.workloads.workload import Workload


@dataclass(frozen=True)
class Brief:
    """What is asked, with the data that answering takes.

    Attributes:
        draws: The load at the asked rate, drawn with one seed after another; the first is the load.
        rate_per_s: To be served in all; None for the frontier alone.
        limits: To be held.
        checkpoint: Whose intervals say how wrong a prediction may be.
        prices_per_gpu_hour: GPU -> price; empty where GPUs are counted.
        max_gpus: At most; None for any number.
        load: Where its requests come from.
    """

    draws: Sequence[Workload]
    rate_per_s: float | None
    limits: Limits
    checkpoint: Path
    prices_per_gpu_hour: Mapping[str, float]
    max_gpus: int | None
    load: Load

    @property
    def workload(self) -> Workload:
        """The load."""
        return self.draws[0]

    def replica_load(self, seed: int = 0, most: int | None = None) -> ReplicaLoad:
        """What one replica is sent, of one draw."""
        return replica_load(self.draws[seed], seed, most, keep_all=self.rate_per_s is None)

    def price_per_hour(self, gpu: str, gpus: int) -> float | None:
        """Of GPUs of a kind; None without prices."""
        return self.prices_per_gpu_hour[gpu] * gpus if self.prices_per_gpu_hour else None
