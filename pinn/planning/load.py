"""What a server is sent at any rate: the load's own requests, fewer or more of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from pinn.simulator.workloads.rate import at_rate, mean_rate_per_s, repeated, thinned
from pinn.simulator.workloads.workload import Workload

#: Fewer requests than this say little about a percentile: a server that gets a smaller share of
#: the load is sent so many, at its own rate; a load that has fewer is sent again.
LEAST_REQUESTS = 2000
#: A load is sent again, too, at rates above the one asked for, so that it lasts as long; but where
#: it has more requests itself, up to so many.
MOST_REPEATED = 10_000


@dataclass(frozen=True)
class ReplicaLoad:
    """A load for one replica at any rate: common random numbers.

    Requests are left out one by one in a fixed random order, so that a lower rate has a part of
    the requests of a higher one, at the same times; where no more may be left out, or none is
    left to be sent, all times between requests change alike.

    Attributes:
        workload: The whole load.
        rate_per_s: Its mean rate.
        order: Place of each request in which it is kept: the first ones stay longest.
        least: Requests that are sent at least.
        most: And at most.
    """

    workload: Workload
    rate_per_s: float
    order: Int[np.ndarray, " n"]
    least: int
    most: int

    def at(self, rate_per_s: float) -> Workload:
        """What a server is sent at a mean rate, for as long as the load lasts."""
        count = round(len(self.workload) * rate_per_s / self.rate_per_s)
        return at_rate(self._some(min(max(count, self.least), self.most)), rate_per_s)

    def _some(self, count: int) -> Workload:
        if count == len(self.workload):
            return self.workload
        if count > len(self.workload):
            return repeated(self.workload, count)
        return thinned(self.workload, self.order < count)


def replica_load(
    workload: Workload, seed: int, most: int | None = None, *, keep_all: bool = False
) -> ReplicaLoad:
    """The load of one server.

    Args:
        workload: The whole load, at the rate asked for or at its own.
        seed: Of the order in which requests are left out.
        most: Requests to send at most, for a quick look.
        keep_all: Whether none is left out at lower rates, where that many may be sent.
    """
    count = len(workload)
    order = np.random.default_rng(seed).permutation(count)
    most = max(count, MOST_REPEATED) if most is None else most
    least = min(max(LEAST_REQUESTS, count if keep_all else 0), most)
    return ReplicaLoad(workload, mean_rate_per_s(workload), order, least, most)
