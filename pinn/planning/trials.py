"""Trials of a candidate: simulations of its replicas at request rates, checked against the SLO."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped

from pinn.engines.engine_spec import EngineSpec
from pinn.engines.routers import PREFIX_AWARE, ROUTERS
from pinn.errors import TooLargeError
from pinn.planning.candidate import Candidate
from pinn.planning.plan import STATISTICS, Point
from pinn.planning.problem import ReplicaLoad
from pinn.planning.time_budget import UNLIMITED, TimeBudget
from pinn.simulator.goodput import latencies_s
from pinn.simulator.intervals import scaled
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run
from pinn.simulator.simulate import StoppedEarlyError
from pinn.simulator.slo import METRICS, Latencies, Slo
from pinn.simulator.state import FINISHED, REJECTED, RUNNING, TIMED_OUT
from pinn.simulator.statistics import statistic
from pinn.simulator.steady_state import output_tokens_between
from pinn.simulator.workloads.workload import Workload

#: Share of the load's duration after which batches are assumed to be full, so that throughput can
#: be measured.
_WARM_SHARE = 0.2
#: Maximum lateness of the last responses for a server to count as keeping up with its load, as a
#: share of the load's duration. Responses are late if they arrive after the last request by more
#: than the longest E2E latency of the first requests.
_DRAIN_SHARE = 0.05


def backlog(run: Run) -> float:
    """Return the backlog of servers as a ratio; servers keep up with their load if it is at most 1.

    The backlog is the time from the last request to the last response, divided by a reference: the
    longest E2E latency in the first fifth of the load plus a twentieth of the load's duration.
    """
    r = run.requests
    arrival, served = r.arrival_s, r.finished
    if not served.any():
        return np.inf
    span = float(arrival.max() - arrival.min())
    early = served & (np.arange(len(r)) < max(len(r) * _WARM_SHARE, 1))
    usual = float(r.e2e_s[early].max()) if early.any() else 0.0
    drain = float(r.finish_s[served].max() - arrival.max())
    return drain / (usual + _DRAIN_SHARE * span)


def output_tokens_per_s(run: Run) -> float:
    """Return output tokens per second while requests are sent, excluding the load's first fifth."""
    r = run.requests
    begin, end = r.arrival_s.min(), r.arrival_s.max()
    begin += _WARM_SHARE * (end - begin)
    if not end > begin:
        return 0.0
    return float(output_tokens_between(run, begin, end) / (end - begin))


def percentiles(
    values: Float[np.ndarray, " n"], counts: Shaped[np.ndarray, " n"], asked: Sequence[str] = ()
) -> dict[str, float | None]:
    """Return statistics of latencies in seconds, by name; None for an infinite value.

    Args:
        values: Latencies in seconds.
        counts: Number of occurrences of each value.
        asked: Statistics in addition to the default ones.
    """
    exist = ~np.isnan(values)
    values, counts = values[exist], counts[exist].astype(np.int64)
    found = {name: statistic(values, counts, name) for name in (*STATISTICS, *asked)}
    return {name: value if np.isfinite(value) else None for name, value in found.items()}


def latencies_so_far_s(
    requests: Shaped[np.ndarray, " requests"], tokens: Int[np.ndarray, " requests"], now_s: float
) -> Latencies:
    """Return lower bounds of each request's final latencies in seconds, at some time during a run.

    Args:
        requests: Request records of the engine (``pinn.simulator.state.REQUEST``).
        tokens: Number of output tokens of each request.
        now_s: Simulated time in seconds.
    """
    status, sent = requests["status"], requests["sent_s"]
    finished, lost = status == FINISHED, (status == TIMED_OUT) | (status == REJECTED)
    waits = (status > 0) & ~finished & ~lost
    age = np.where(waits, np.maximum(now_s - sent, 0.0), 0.0)
    begun = requests["generated"] > 0
    ttft = np.where(begun, requests["first_sent_s"] - sent, age)
    e2e = np.where(finished, requests["last_sent_s"] - sent, age)
    gaps = np.where(tokens > 1, tokens - 1.0, np.nan)
    last = np.where(finished, requests["last_sent_s"], now_s)
    tpot = np.where(begun, np.maximum(last - requests["first_sent_s"], 0.0), 0.0) / gaps
    return {
        "ttft": np.where(lost, np.inf, ttft),
        "tpot": np.where(lost, np.where(np.isnan(gaps), np.nan, np.inf), tpot),
        "e2e": np.where(lost, np.inf, e2e),
    }


@dataclass(frozen=True)
class ErrorScenario:
    """Assumed prediction errors, log(actual / predicted time); 0 by default.

    Attributes:
        step: Error of all step times.
        request: Error of a request's times outside engine steps, and of TTFT excluding queue time.
        encoder: Error of the vision encoder's time, which adds to ``step`` with the sign of
            ``step``.
    """

    step: float = 0.0
    request: float = 0.0
    encoder: float = 0.0


def _behind(router: str, own: EngineSpec) -> dict[str, Any]:
    """Return the engine settings for a routing policy, by name.

    Only prefix-aware routing has weights. Return no settings if ``router`` is a replica's own load
    balancer.
    """
    if router not in ROUTERS:  # the policy is that of a single replica's own load balancer
        return {}
    weights = own.router_weights if router == PREFIX_AWARE else ""
    return {"router": router, "router_weights": weights}


@dataclass
class Tally:
    """Counters over a candidate's simulations so far.

    Attributes:
        simulations: Number of simulations.
        most_running: Maximum number of requests that ran concurrently in a simulation, including
            simulations that were stopped early.
    """

    simulations: int = 0
    most_running: int = 0

    def add_running(self, requests: int) -> None:
        """Record a number of requests that ran concurrently."""
        self.most_running = max(self.most_running, requests)


@dataclass(frozen=True)
class Trials:
    """Simulations of replicas of a candidate, at different request rates.

    Attributes:
        candidate: Candidate whose replica is simulated.
        load: Requests that the replica receives at each rate.
        slo: Limits to meet.
        scenario: Assumed prediction errors.
        tally: Counts of simulations; trials derived with other errors or seeds share them.
        budget: Time budget; simulations raise ``OutOfTimeError`` once it is exhausted.
    """

    candidate: Candidate
    load: ReplicaLoad
    slo: Slo
    scenario: ErrorScenario = ErrorScenario()
    tally: Tally = field(default_factory=Tally)
    budget: TimeBudget = UNLIMITED

    def run(self, rate_per_s: float) -> Run:
        """Return the run of one replica at a rate, without an early stop."""
        return self.run_of(self.load.at(rate_per_s))

    def run_of(self, workload: Workload) -> Run:
        """Return the run of one replica under a given load, without an early stop."""
        run = self._simulate(workload, self.candidate.engine)
        assert run is not None, "a simulation without early stop did not complete"
        return run

    def fleet(
        self, workload: Workload, replicas: int, router: str, *, may_end: bool = True
    ) -> Run | None:
        """Return the run of replicas behind a router, under a given load.

        None is returned if the run was stopped early because it misses the SLO, which ``may_end``
        allows, or if there are too many replicas to simulate.
        """
        own = self.candidate.engine
        try:
            engine = replace(own, replicas=replicas, **_behind(router, own))
            return self._simulate(workload, engine, may_end=may_end)
        except TooLargeError:
            return None

    def excess(self, rate_per_s: float, replicas: int = 1, router: str = "") -> float:
        """Return the largest ratio of a latency to its limit, at a request rate.

        The ratio is infinite if the run was stopped early because it misses the SLO, or if there
        are too many replicas to simulate. The :func:`backlog` is treated as one more ratio, because
        a server that falls behind would meet limits only because the load ends.
        """
        load = self.load.at(rate_per_s)
        if replicas > 1:
            run = self.fleet(load, replicas, router)
        else:
            run = self._simulate(load, self.candidate.engine, may_end=True)
        return np.inf if run is None else max(self.excess_of(run), backlog(run))

    def point(self, run: Run, rate_per_s: float, replicas: int = 1) -> Point:
        """Return the metrics of a run of ``replicas`` replicas at a rate."""
        found = latencies_s(run)
        asked, gaps = self.slo.asked_statistics, run.gaps.per_token
        tables = {name: percentiles(v, np.ones(len(v)), asked) for name, v in found.items()}
        tables["itl"] = percentiles(*gaps, asked)
        tokens_per_s = output_tokens_per_s(run)
        speed = tables["tpot"]["mean"]
        return Point(
            rate_per_s=rate_per_s,
            requests=len(run.requests),
            holds=self.excess_of(run) <= 1,
            met_share=float(self.slo.met(found).mean()),
            latency_s={name: tables[name] for name in METRICS},
            output_tokens_per_s=tokens_per_s,
            output_tokens_per_gpu_s=tokens_per_s / (replicas * self.candidate.gpus),
            user_tokens_per_s=1 / speed if speed else None,
            limits=self.slo.outcomes(found, gaps),
            preemptions=int(run.requests.preemptions.sum()),
        )

    def fleet_excess(self, workload: Workload, replicas: int, router: str) -> float:
        """Return the maximum ratio of a latency to its limit, for replicas under a given load."""
        run = self.fleet(workload, replicas, router)
        return np.inf if run is None else self.excess_of(run)

    def excess_of(self, run: Run) -> float:
        """Return the maximum ratio of a latency to its limit in a run.

        The :func:`backlog` is treated as one more ratio if no limit applies to queue time.
        """
        found = self.slo.excess(self._stretched(latencies_s(run)), run.gaps.per_token)
        return found if self.slo.bound_waits else max(found, backlog(run))

    def _simulate(
        self, workload: Workload, engine: EngineSpec, *, may_end: bool = False
    ) -> Run | None:

        def rescale(latency: LinearLatency) -> LinearLatency:
            return scaled(latency, *astuple(self.scenario))

        def early_stop(requests: np.ndarray, now_s: float) -> bool:
            self.budget.check()
            self.tally.add_running(int(np.count_nonzero(requests["status"] == RUNNING)))
            least = latencies_so_far_s(requests, workload.output_tokens, now_s)
            return self.slo.is_missed(self._stretched(least), len(workload))

        self.budget.check()
        self.tally.simulations += 1
        try:
            run = self.candidate.serve(workload, engine, rescale, early_stop if may_end else None)
        except StoppedEarlyError:
            return None
        self.tally.add_running(int(run.steps["running"].max(initial=0)))
        return run

    def _stretched(self, latencies: Latencies) -> Latencies:
        """Scale TTFT by the part of its assumed error that exceeds the step times' error.

        The simulation already scales the step times by their error.
        """
        step, request = self.scenario.step, self.scenario.request
        factor = np.exp(np.copysign(max(abs(request) - abs(step), 0.0), request))
        if factor == 1:
            return latencies
        longer = latencies["ttft"] * (factor - 1)
        return {
            **latencies,
            "ttft": latencies["ttft"] * factor,
            "e2e": np.maximum(latencies["e2e"] + longer, 0.0),
        }
