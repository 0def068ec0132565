"""What one replica of a fleet is sent: the load's arrivals thinned, the same ones at every rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from pinn.simulator.workloads.rate import at_rate, thinned
from pinn.simulator.workloads.workload import Workload

#: Fewer requests than this say little about a percentile: a replica that gets a smaller share of
#: the load is sent so many, at its own rate.
LEAST_REQUESTS = 2000


@dataclass(frozen=True)
class ReplicaLoad:
    """A load for one replica at any rate: common random numbers.

    Requests are left out one by one in a fixed random order, so that a lower rate has a part of
    the requests of a higher one, at the same times; where none is to be left out, or no more may
    be, all times between requests change alike.

    Attributes:
        workload: The whole load, at the rate asked for or at its own.
        rate_per_s: That rate; None to keep every request at every rate.
        order: Place of each request in which it is kept: the first ones stay longest.
        least: Requests that are kept at least.
        most: And at most.
    """

    workload: Workload
    rate_per_s: float | None
    order: Int[np.ndarray, " n"]
    least: int
    most: int

    @property
    def is_few(self) -> bool:
        """Whether the whole load has too few requests for smooth percentiles."""
        return len(self.workload) < LEAST_REQUESTS

    def at(self, rate_per_s: float) -> Workload:
        """What a replica is sent at a mean rate."""
        count = len(self.workload)
        if self.rate_per_s is not None:
            count = min(count, max(round(count * rate_per_s / self.rate_per_s), self.least))
        return at_rate(self._some(min(count, self.most)), rate_per_s)

    def _some(self, count: int) -> Workload:
        if count == len(self.workload):
            return self.workload
        return thinned(self.workload, self.order < count)


def replica_load(
    workload: Workload, rate_per_s: float | None, seed: int, most: int | None = None
) -> ReplicaLoad:
    """The load of one replica.

    Args:
        workload: The file's.
        rate_per_s: Of the whole load, which is brought to it; None for its own, all of it sent to
            the one replica.
        seed: Of the order in which requests are left out.
        most: Requests to keep at most, for a quick look; all by default.
    """
    whole = workload if rate_per_s is None else at_rate(workload, rate_per_s)
    order = np.random.default_rng(seed).permutation(len(workload))
    most = len(workload) if most is None else min(most, len(workload))
    return ReplicaLoad(whole, rate_per_s, order, min(LEAST_REQUESTS, most), most)
