"""One replica simulated at a rate, what clients see, and how far that is from the limits."""

from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Int, Shaped

from pinn.errors import TooLargeError
from pinn.planning.candidates import Candidate, ReplicaLoad
from pinn.planning.plan import METRICS, STATISTICS, Latencies, Limits, Point
from pinn.simulator import engine_spec, linear_latency, many, statistics
from pinn.simulator.run import Run
from pinn.simulator.simulate import HopelessError
from pinn.simulator.state import FINISHED, REJECTED, TIMED_OUT
from pinn.simulator.workloads.workload import Workload

# What clients see of a run, as a point of a plan.

#: Throughput is measured from this share of the load on, when batches have filled.
_WARM_SHARE = 0.2
#: Of the load's time that a server may take longer for its last answers than for its first ones.
_DRAIN_SHARE = 0.05


def latencies_s(run: Run) -> Latencies:
    """Metric -> seconds per request: infinite where not served, NaN where there is no such time.

    TPOT is the mean gap between a request's tokens, (last - first) / (tokens - 1).
    """
    r = run.requests
    gaps = np.where(run.workload.output_tokens > 1, 1.0, np.nan)
    return {
        "ttft": np.where(r.finished, r.ttft_s, np.inf),
        "tpot": np.where(r.finished, r.mean_itl_s, np.inf) * gaps,
        "e2e": np.where(r.finished, r.e2e_s, np.inf),
    }


def backlog(run: Run) -> float:
    """How far a server falls behind; it keeps up at 1 or less.

    The time from the last request to the last answer, as a share of the longest answer in the first
    fifth of the load and a twentieth of the load's time.
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
    """Output tokens per second while the load is sent, without its first fifth.

    Each request's tokens are spread evenly from its first to its last.
    """
    r = run.requests
    begin, end = r.arrival_s.min(), r.arrival_s.max()
    begin += _WARM_SHARE * (end - begin)
    if not end > begin:
        return 0.0
    first, last = r.first_token_s, r.last_token_s
    known = ~np.isnan(first)
    first, last, tokens = first[known], last[known], r.output_tokens[known]
    length = np.maximum(last - first, 1e-9)
    done = [tokens * np.clip((moment - first) / length, 0, 1) for moment in (begin, end)]
    return float((done[1] - done[0]).sum() / (end - begin))


def _table(values: np.ndarray, counts: np.ndarray) -> dict[str, float | None]:
    exist = ~np.isnan(values)
    values, counts = values[exist], counts[exist].astype(np.int64)
    found = {name: statistics.statistic(values, counts, name) for name in STATISTICS}
    return {name: value if np.isfinite(value) else None for name, value in found.items()}


def least_latencies_s(
    requests: Shaped[np.ndarray, " requests"], tokens: Int[np.ndarray, " requests"], now_s: float
) -> Latencies:
    """Lower bounds of every request's latencies in a run that goes on.

    Args:
        requests: The engine's records (``pinn.simulator.state.REQUEST``).
        tokens: Of each request's output.
        now_s: The engine's time.
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


# One replica simulated at a rate, and how far it is from its limits there.


@dataclass(frozen=True)
class Misjudged:
    """By how much a prediction may be wrong, as log factors; none by default.

    Attributes:
        step: Of all step times.
        request: Of a request's times outside the steps, and of TTFT where nothing queues.
    """

    step: float = 0.0
    request: float = 0.0


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
        own = self.candidate.engine
        try:
            engine = replace(own, replicas=replicas, data_parallel_routing=routing)
            return self._simulate(workload, engine, may_end=True)
        except TooLargeError:
            return None

    def excess(self, rate_per_s: float, replicas: int = 1, routing: str = "") -> float:
        """The worst latency as a share of its limit; infinite if given up or too many to simulate.

        A server that falls behind exceeds them, too: it would only hold them as the load ends.
        """
        load = self.load.at(rate_per_s)
        if replicas > 1:
            run = self.fleet(load, replicas, routing)
        else:
            run = self._simulate(load, self.candidate.engine, may_end=True)
        return np.inf if run is None else max(self.excess_of(run), backlog(run))

    def point(self, run: Run, rate_per_s: float, replicas: int = 1) -> Point:
        """Figures of a run of so many replicas at a rate."""
        found = latencies_s(run)
        tables = {name: _table(values, np.ones(len(values))) for name, values in found.items()}
        tables["itl"] = _table(run.gaps.seconds, run.gaps.count)
        tokens_per_s = output_tokens_per_s(run)
        speed = tables["tpot"]["mean"]
        return Point(
            rate_per_s=rate_per_s,
            requests=len(run.requests),
            holds=self.excess_of(run) <= 1,
            met_share=float(self.limits.met(found).mean()),
            latency_s={name: tables[name] for name in METRICS},
            output_tokens_per_s=tokens_per_s,
            output_tokens_per_gpu_s=tokens_per_s / (replicas * self.candidate.gpus),
            user_tokens_per_s=1 / speed if speed else None,
        )

    def fleet_excess(self, workload: Workload, replicas: int, routing: str) -> float:
        """The worst latency of replicas under a load of their own, as a share of its limit."""
        run = self.fleet(workload, replicas, routing)
        return np.inf if run is None else self.excess_of(run)

    def excess_of(self, run: Run) -> float:
        """A run's worst latency / its limit; falling behind counts where none bounds waiting."""
        limits = self.limits
        if limits.on_gaps and not run.requests.finished.all():
            return np.inf
        gaps = (run.gaps.seconds, run.gaps.count)
        found = limits.excess(self._stretched(latencies_s(run)), gaps)
        return found if limits.bound_waits else max(found, backlog(run))

    def _simulate(
        self, workload: Workload, engine: engine_spec.EngineSpec, *, may_end: bool = False
    ) -> Run | None:

        def misjudge(latency: linear_latency.LinearLatency) -> linear_latency.LinearLatency:
            return many.scaled(latency, self.misjudged.step, self.misjudged.request)

        def hopeless(requests: np.ndarray, now_s: float) -> bool:
            least = least_latencies_s(requests, workload.output_tokens, now_s)
            return self.limits.are_missed(self._stretched(least), len(workload))

        self.count += 1
        try:
            run = self.candidate.serve(workload, engine, misjudge, hopeless if may_end else None)
        except HopelessError:
            return None
        self.most_running = max(self.most_running, int(run.steps["running"].max(initial=0)))
        return run

    def _stretched(self, latencies: Latencies) -> Latencies:
        """With TTFT's own error beyond that of the steps in it."""
        step, request = self.misjudged.step, self.misjudged.request
        factor = np.exp(np.copysign(max(abs(request) - abs(step), 0.0), request))
        if factor == 1:
            return latencies
        longer = latencies["ttft"] * (factor - 1)
        return {
            **latencies,
            "ttft": latencies["ttft"] * factor,
            "e2e": np.maximum(latencies["e2e"] + longer, 0.0),
        }
