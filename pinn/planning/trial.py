"""One replica simulated at a rate, and how far it is from its limits there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from pinn.errors import TooLargeError
from pinn.planning.candidates import Candidate
from pinn.planning.figures import backlog, latencies_s, least_latencies_s, point
from pinn.planning.limits import Latencies, Limits
from pinn.planning.load import ReplicaLoad
from pinn.planning.plan import Point
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run
from pinn.simulator.workloads.workload import Workload
from pinn.trust.simulated import scaled


@dataclass(frozen=True)
class Misjudged:
    """By how much a prediction may be wrong, as log factors; none by default.

    Attributes:
        step: Of all step times.
        request: Of a request's times outside the steps, and of TTFT where nothing queues.
    """

    step: float = 0.0
    request: float = 0.0

    @property
    def ttft_factor(self) -> float:
        """TTFT's own error beyond that of the steps in it."""
        beyond = max(abs(self.request) - abs(self.step), 0.0)
        return float(np.exp(np.copysign(beyond, self.request)))


@dataclass
class Trials:
    """Simulations of a candidate's replica.

    Attributes:
        candidate: What runs.
        load: What it is sent at each rate.
        limits: What is to be held.
        misjudged: Times differ from the prediction by this.
        count: Simulations so far.
        most_running: Most requests that ran at once in any of them.
    """

    candidate: Candidate
    load: ReplicaLoad
    limits: Limits
    misjudged: Misjudged = field(default_factory=Misjudged)
    count: int = 0
    most_running: int = 0

    def run(self, rate_per_s: float) -> Run:
        """The whole run at a rate."""
        return self.run_of(self.load.at(rate_per_s))

    def run_of(self, workload: Workload) -> Run:
        """The whole run of a load of its own."""
        run = self._simulate(workload, self.candidate.engine)
        assert run is not None, "a run that nothing may stop came to no end"
        return run

    def fleet(self, workload: Workload, replicas: int, routing: str) -> Run | None:
        """Replicas behind a load balancer, under a load of their own.

        None if it was given up, or where so many are too large to be simulated together.
        """
        try:
            return self._simulate(workload, self._engine(replicas, routing), may_end=True)
        except TooLargeError:
            return None

    def excess(self, rate_per_s: float) -> float:
        """The worst latency as a share of its limit; infinite where the run was given up.

        A server that falls behind exceeds them, too: it would only hold them as the load ends.
        """
        return self._excess_at(self.load.at(rate_per_s), self.candidate.engine)

    def fleet_excess_at(self, rate_per_s: float, replicas: int, routing: str) -> float:
        """Worst latency / its limit of balanced replicas; infinite if they are too many."""
        try:
            return self._excess_at(self.load.at(rate_per_s), self._engine(replicas, routing))
        except TooLargeError:
            return np.inf

    def _excess_at(self, workload: Workload, engine: EngineSpec) -> float:
        run = self._simulate(workload, engine, may_end=True)
        return np.inf if run is None else max(self.excess_of(run), backlog(run))

    def point(self, run: Run, rate_per_s: float, gpus: int) -> Point:
        """Figures of a run at a rate on so many GPUs."""
        holds = self.excess_of(run) <= 1
        return point(run, self.limits, holds, rate_per_s, gpus)

    def fleet_excess(self, workload: Workload, replicas: int, routing: str) -> float:
        """The worst latency of replicas under a load of their own, as a share of its limit."""
        run = self.fleet(workload, replicas, routing)
        return np.inf if run is None else self.excess_of(run)

    def _engine(self, replicas: int, routing: str) -> EngineSpec:
        return replace(self.candidate.engine, replicas=replicas, data_parallel_routing=routing)

    def excess_of(self, run: Run) -> float:
        """A run's worst latency / its limit; falling behind counts where none bounds waiting."""
        limits = self.limits
        if limits.on_gaps and not run.requests.finished.all():
            return np.inf
        gaps = (run.gaps.seconds, run.gaps.count)
        found = limits.excess(self._stretched(latencies_s(run)), gaps)
        return found if limits.bound_waits else max(found, backlog(run))

    def _simulate(
        self, workload: Workload, engine: EngineSpec, *, may_end: bool = False
    ) -> Run | None:

        def misjudge(latency: LinearLatency) -> LinearLatency:
            return scaled(latency, self.misjudged.step, self.misjudged.request)

        def hopeless(requests: np.ndarray, now_s: float) -> bool:
            least = least_latencies_s(requests, workload.output_tokens, now_s)
            return self.limits.are_missed(self._stretched(least), len(workload))

        self.count += 1
        run = self.candidate.serve(workload, engine, misjudge, hopeless if may_end else None)
        if run is not None:
            self.most_running = max(self.most_running, int(run.steps["running"].max(initial=0)))
        return run

    def _stretched(self, latencies: Latencies) -> Latencies:
        factor = self.misjudged.ttft_factor
        if factor == 1:
            return latencies
        longer = latencies["ttft"] * (factor - 1)
        return {
            **latencies,
            "ttft": latencies["ttft"] * factor,
            "e2e": np.maximum(latencies["e2e"] + longer, 0.0),
        }
