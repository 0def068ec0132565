"""One replica simulated at a rate, and how far it is from its limits there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from pinn.planning.candidates import Candidate
from pinn.planning.figures import latencies_s, least_latencies_s
from pinn.planning.limits import Latencies, Limits
from pinn.planning.load import ReplicaLoad
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.run import Run
from pinn.simulator.simulate import simulate_unless
from pinn.uncertainty.simulated import scaled
from pinn.workloads.workload import Workload


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
        limits: What is to be held; None to look at every run to its end.
        misjudged: Times differ from the prediction by this.
        count: Simulations so far.
        most_running: Most requests that ran at once in any of them.
    """

    candidate: Candidate
    load: ReplicaLoad
    limits: Limits | None
    misjudged: Misjudged = field(default_factory=Misjudged)
    count: int = 0
    most_running: int = 0

    def run(self, rate_per_s: float) -> Run:
        """The whole run at a rate."""
        run = self._simulate(self.load.at(rate_per_s), None)
        assert run is not None, "a run that nothing may stop came to no end"
        return run

    def fleet(self, workload: Workload, replicas: int, routing: str) -> Run:
        """Replicas behind a load balancer, under a load of their own."""
        run = self._simulate(workload, None, self._engine(replicas, routing))
        assert run is not None, "a run that nothing may stop came to no end"
        return run

    def excess(self, rate_per_s: float) -> float:
        """The worst latency as a share of its limit; infinite where the run was given up."""
        return self._excess(self.load.at(rate_per_s), self.candidate.engine)

    def fleet_excess(self, workload: Workload, replicas: int, routing: str) -> float:
        """The same of replicas behind a load balancer."""
        return self._excess(workload, self._engine(replicas, routing))

    def _excess(self, workload: Workload, engine: EngineSpec) -> float:
        assert self.limits is not None, "without limits nothing is in excess"
        run = self._simulate(workload, self.limits, engine)
        return np.inf if run is None else self.excess_of(run, self.limits)

    def _engine(self, replicas: int, routing: str) -> EngineSpec:
        return replace(self.candidate.engine, replicas=replicas, data_parallel_routing=routing)

    def excess_of(self, run: Run, limits: Limits) -> float:
        """The same of a run."""
        if limits.on_gaps and not run.requests.finished.all():
            return np.inf
        gaps = (run.gaps.seconds, run.gaps.count)
        return limits.excess(self._stretched(latencies_s(run)), gaps)

    def _simulate(
        self, workload: Workload, limits: Limits | None, engine: EngineSpec | None = None
    ) -> Run | None:
        candidate = self.candidate
        latency = scaled(candidate.latency, self.misjudged.step, self.misjudged.request)

        def hopeless(requests: np.ndarray, now_s: float) -> bool:
            assert limits is not None, "nothing to hold"
            least = least_latencies_s(requests, workload.output_tokens, now_s)
            return limits.are_missed(self._stretched(least), len(workload))

        self.count += 1
        run = simulate_unless(
            hopeless if limits is not None else None,
            candidate.deployment,
            workload,
            latency,
            engine or candidate.engine,
        )
        if run is not None:
            self.most_running = max(self.most_running, int(run.steps["running"].max(initial=0)))
        return run

    def _stretched(self, latencies: Latencies) -> Latencies:
        factor = self.misjudged.ttft_factor
        longer = latencies["ttft"] * (factor - 1) if factor != 1 else 0.0
        return {
            **latencies,
            "ttft": latencies["ttft"] * factor,
            "e2e": np.maximum(latencies["e2e"] + longer, 0.0),
        }
