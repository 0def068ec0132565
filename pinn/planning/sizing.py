"""One replica simulated at a rate, the highest rate that it holds, and how many a load needs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError, TooLargeError
from pinn.planning import plan
from pinn.planning.candidates import Brief, Candidate, ReplicaLoad
from pinn.planning.plan import Fleet, HighestRate, Latencies, Limits, Point
from pinn.simulator import engine_spec, linear_latency, statistics
from pinn.simulator.run import Run
from pinn.simulator.simulate import HopelessError, scaled
from pinn.simulator.state import FINISHED, REJECTED, TIMED_OUT
from pinn.simulator.workloads.workload import Workload
from pinn.surrogate.uncertainty.distance import gpu_is_known
from pinn.surrogate.uncertainty.error_law import ErrorLaw
from pinn.surrogate.uncertainty.intervals import read_calibration

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
    found = {name: statistics.statistic(values, counts, name) for name in plan.STATISTICS}
    return {name: value if np.isfinite(value) else None for name, value in found.items()}


def _least_latencies_s(requests: np.ndarray, tokens: np.ndarray, now_s: float) -> Latencies:
    """Lower bounds of every request's latencies in a run that goes on.

    Args:
        requests: The engine's records (``pinn.simulator.state.REQUEST``) of shape ``[requests]``.
        tokens: Of each request's output, ``[requests]``.
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
            latency_s={name: tables[name] for name in plan.METRICS},
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
            return scaled(latency, self.misjudged.step, self.misjudged.request)

        def hopeless(requests: np.ndarray, now_s: float) -> bool:
            least = _least_latencies_s(requests, workload.output_tokens, now_s)
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


# The highest rate that holds: bisection, aimed where the excess over the limits says.

#: Ratio of a rate that fails to one that holds, less 1, at which a search ends.
WIDTH = 0.01
#: A rate this much below the first guess is as good as none.
_LEAST_SHARE = 1e-3
_MOST_STRIDE = 4.0
_MOST_STEPS = 60
#: How far beside a crossing rates are tried to see whether it is the only one; ratios less 1.
_BESIDE = (0.01, 0.02, 0.03)
#: Ratio of neighbours on the ladder of rates that settles a jagged crossing, less 1.
_RUNG = 0.002
#: The ladder ends where so many rungs in a row hold below, and fail above: 3 %; or here.
_CLEAR_RUNGS, _MOST_RUNGS = 15, 500


def highest_rate(
    excess: Callable[[float], float],
    guess: float,
    *,
    stride: float = 1.25,
    width: float = WIDTH,
    enough: float = 0.0,
) -> tuple[float, float | None]:
    """Find where the excess crosses 1.

    Args:
        excess: Worst latency at a rate as a share of its limit; infinite where unknown.
        guess: Rate to begin with.
        stride: Ratio of the first rates tried beside it; strides grow until the crossing lies
            between two rates.
        width: Stop at this ratio of the two, less 1.
        enough: Stop, too, where this rate or a lower one fails.

    Returns:
        The highest rate tried that holds, 0 where none does, and the lowest above it that fails;
        None where none was found to.
    """
    low, high = 0.0, math.inf
    at_low, at_high = math.nan, math.inf
    rate = guess
    for step in range(_MOST_STEPS):
        found = excess(rate)
        if found <= 1:
            low, at_low = rate, found
        else:
            high, at_high = rate, found
        if low == 0 and rate < _LEAST_SHARE * guess:
            return 0.0, high
        if high <= enough or (low > 0 and high <= low * (1 + width)):
            break
        if low == 0:
            rate = high / stride
            stride = min(stride * stride, _MOST_STRIDE)
        elif math.isinf(high):
            if low > guess / _LEAST_SHARE:
                return low, None
            rate = low * stride
            stride = min(stride * stride, _MOST_STRIDE)
        else:
            rate = _between(low, high, at_low, at_high, width, halve=step % 3 == 2)
    return low, high


def is_clear(excess: Callable[[float], float], low: float, high: float | None) -> bool:
    """Whether a few rates below one that holds do so too, and a few above one that fails.

    Args:
        excess: As of :func:`highest_rate`.
        low: As that function returns it.
        high: Likewise.
    """
    if low == 0 or high is None:
        return True
    return all(excess(high * (1 + beside)) > 1 for beside in _BESIDE) and all(
        excess(low / (1 + beside)) <= 1 for beside in _BESIDE
    )


def settled_rate(excess: Callable[[float], float], guess: float) -> tuple[float, float | None]:
    """Find the rate that the fewest rates of a ladder contradict.

    Percentiles may jump from one rate to the next, so that rates hold beyond others that fail, and
    which crossing a bisection ends at is chance. Here every rate among them counts:
    one that fails below the answer contradicts it, and so does one that holds above. The ladder's
    rates are the same wherever the search begins, so that chance has no part in which are tried.

    Args:
        excess: As of :func:`highest_rate`.
        guess: A rate near the crossing, such as that function's.

    Returns:
        The rate of the ladder, which holds, and the next one, which fails; 0 where none holds,
        None where the ladder has no end.
    """
    nearest = round(math.log(guess) / math.log1p(_RUNG))

    def rate(rung: int) -> float:
        return (1 + _RUNG) ** (nearest + rung)

    below = _until_clear(lambda steps: excess(rate(-steps)) <= 1)
    above = _until_clear(lambda steps: excess(rate(1 + steps)) > 1)
    holds = np.array([*below[::-1], *(not fails for fails in above)])
    lead = np.cumsum(np.where(holds, 1, -1))
    best = int(np.argmax(lead))
    if lead[best] <= 0:
        return 0.0, rate(1 - len(below))
    rung = best + 1 - len(below)
    return rate(rung), rate(rung + 1) if best + 1 < len(holds) else None


def _until_clear(is_so: Callable[[int], bool]) -> list[bool]:
    """What each step says, up to enough in a row that say yes."""
    found: list[bool] = []
    while not all(found[-_CLEAR_RUNGS:]) or len(found) < _CLEAR_RUNGS:
        if len(found) == _MOST_RUNGS:
            break
        found.append(is_so(len(found)))
    return found


def _between(
    low: float, high: float, at_low: float, at_high: float, width: float, *, halve: bool
) -> float:
    """The next rate: just beyond the crossing of a power law, else the middle.

    Aimed half a width to the farther end's side, a good guess closes the bracket from there.
    """
    middle = math.sqrt(low * high)
    if halve or math.isinf(at_high) or at_low <= 0:
        return middle
    share = -math.log(at_low) / (math.log(at_high) - math.log(at_low))
    aim = low * (high / low) ** share
    half = math.sqrt(1 + width / 2)
    aim = aim * half if aim < middle else aim / half
    return min(max(aim, low * half), high / half)


# How sure an answer is, given the interval of the prediction under it.


@dataclass(frozen=True)
class Interval:
    """How wrong a prediction may be.

    Attributes:
        bad: All times at the long end of their interval.
        level: What the interval is to cover.
        law: How errors are spread, in half-widths of the interval.
    """

    bad: Misjudged
    level: float
    law: ErrorLaw

    def at(self, half_widths: float) -> Misjudged:
        """All times off by so many half-widths; 1 is the bad end, -1 the good one."""
        return Misjudged(half_widths * self.bad.step, half_widths * self.bad.request)


def prediction_interval(checkpoint: Path, *deployments: Deployment) -> Interval | None:
    """The interval of a prediction; None where the checkpoint has none.

    Args:
        checkpoint: Of the prediction.
        deployments: Predicted; several are all off by the most that any of them may be.
    """
    try:
        calibration = read_calibration(checkpoint)
        known = [gpu_is_known(checkpoint, deployment) for deployment in deployments]
    except PinnError:
        return None
    step, request = (
        max(calibration.half_width(metric, each) for each in known) for metric in ("tpot", "ttft")
    )
    return Interval(Misjudged(step, request), calibration.level, calibration.error_law("tpot"))


# How many replicas serve the asked rate, what they hold together, and how likely that is.

#: A load balancer sends each replica a more even load than thinning does; no replica of a fleet is
#: expected to hold more than this many times what a lone one does.
BALANCED_GAIN = 2.0
#: Replicas that a fleet may need beyond what thinning says, before it is given up: so many, or
#: this share.
_MORE_REPLICAS, _MORE_SHARE = 2, 0.25
#: Width and first stride of the bisections behind an error bar.
BAR_WIDTH, _BAR_STRIDE = 0.02, 1.05


@dataclass(frozen=True)
class Sized:
    """Replicas for a rate, and how they serve it together.

    Attributes:
        replicas: How many.
        fleets: Them under every routing; none without a rate.
    """

    replicas: int
    fleets: Sequence[Fleet] = ()

    @property
    def is_burst(self) -> bool:
        """Whether the load is over before a server is as full as one that goes on makes it."""
        return any(fleet.point.is_burst for fleet in self.fleets)


def fewest_replicas(trials: Trials, rate_per_s: float, brief: Brief) -> Sized | None:
    """The fewest replicas that hold the asked rate under every routing, by bisection.

    None where not even a few more than the highest rate says hold it. Under a load that is over
    before servers fill, a fleet of fewer than that says shows nothing.
    """
    asked = brief.rate_per_s
    if asked is None:
        return Sized(1)
    enough = first = max(math.ceil(asked / rate_per_s - 1e-9), 1)
    while not (fleets := _holding_fleets(trials, brief, asked, enough)):
        enough += 1
        if enough > first + max(_MORE_REPLICAS, _MORE_SHARE * first):
            return None
    found = Sized(enough, fleets)
    too_few = max(math.ceil(asked / rate_per_s / BALANCED_GAIN), 1) - 1
    while found.replicas - too_few > 1 and not found.is_burst:
        middle = (found.replicas + too_few) // 2
        fleets = _holding_fleets(trials, brief, asked, middle)
        if fleets and not Sized(middle, fleets).is_burst:
            found = Sized(middle, fleets)
        else:
            too_few = middle
    return found


def may_do_with_fewer(replicas: int, trials: Trials, brief: Brief) -> bool:
    """Whether one replica less of another kind holds the asked rate under every routing."""
    if brief.rate_per_s is None or replicas == 1:
        return False
    return all(
        trials.fleet_excess(brief.workload, replicas - 1, how) <= 1
        for how in routings(trials.candidate, replicas - 1)
    )


def fleet_rate(
    sized: Sized, trials: Trials, one: HighestRate, interval: Interval | None, brief: Brief
) -> HighestRate:
    """The highest rate that all replicas hold together, requests going round in turn.

    A fleet may hold more than its replicas one by one: the load balancer's turns even out what each
    is sent, where a lone one is sent requests at random.

    Args:
        sized: The replicas.
        trials: Of one.
        one: What that one holds.
        interval: How wrong the prediction may be; None where it has no interval.
        brief: What is asked.
    """
    asked, replicas = brief.rate_per_s, sized.replicas
    together, guess = one, replicas * one.per_s
    if replicas > 1:
        together = _highest_of_all(sized, trials, guess, asked)
    if interval is None:
        return together
    ends = []
    for way in (1, -1):
        other = replace(trials, misjudged=interval.at(way), count=0)
        guess = together.per_s * math.exp(-way * interval.bad.step)
        ends.append(_highest_of_all(sized, other, guess, asked).per_s)
        trials.count += other.count
    return replace(together, interval_per_s=(ends[0], ends[1]), level=interval.level)


def _highest_of_all(sized: Sized, trials: Trials, guess: float, asked: float | None) -> HighestRate:
    """By bisection; the asked rate is tried where it lies between what holds and what fails."""
    routing = routings(trials.candidate, sized.replicas)[-1]
    excess = partial(trials.excess, replicas=sized.replicas, routing=routing)
    low, high = highest_rate(excess, guess, stride=_BAR_STRIDE, width=BAR_WIDTH)
    if asked is not None and low < asked < (high or math.inf) and excess(asked) <= 1:
        low = asked
    return HighestRate(low, high)


def chance_to_hold(
    sized: Sized, trials: Trials, interval: Interval, brief: Brief
) -> tuple[float, bool]:
    """How likely the fleet holds the limits, and whether it does at the interval's bad end.

    The share of the law's equally likely errors at which it does, by bisection over them.
    """
    workload, known = brief.workload, {}

    def holds(error: float) -> bool:
        if error <= 0:  # the fleet holds the limits as predicted
            return True
        if error not in known:
            other = replace(trials, misjudged=interval.at(error), count=0)
            routing = routings(trials.candidate, sized.replicas)[-1]
            known[error] = other.fleet_excess(workload, sized.replicas, routing) <= 1
            trials.count += other.count
        return known[error]

    return interval.law.held(holds), holds(1.0)


def routings(candidate: Candidate, replicas: int) -> tuple[str, ...]:
    """Routing rules to try; a replica by itself spreads requests as its engine does."""
    own = candidate.engine.data_parallel_routing or candidate.deployment.recipe.routing
    return engine_spec.ROUTINGS if replicas > 1 else (own,)


def _holding_fleets(trials: Trials, brief: Brief, asked_per_s: float, n: int) -> list[Fleet]:
    """Replicas under every routing; none where one of them misses a limit."""
    found = []
    for how in routings(trials.candidate, n):
        run = trials.fleet(brief.workload, n, how)
        if run is None or trials.excess_of(run) > 1:
            return []
        found.append(Fleet(how, trials.point(run, asked_per_s, n)))
    return found
