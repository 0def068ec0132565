"""A finished plan and the limits that it keeps."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Bool, Float, Int

from pinn.common.files import write_whole
from pinn.errors import PinnError
from pinn.simulator.statistics import statistic

# A finished plan: what was asked, the choices in order, and what was left out; as JSON.
#
# Times are in seconds and rates in requests per second; None is what does not exist, such as a
# cost without prices, or an upper end that nothing bounds.

SCHEMA = "pinn plan 1"

#: What limits are on: time to first token, time per output token of each request, gaps between
#: tokens, end to end.
METRICS = ("ttft", "tpot", "itl", "e2e")
#: Under which each metric is reported.
STATISTICS = ("mean", "p50", "p90", "p95", "p99")

#: A load that lasts fewer times its mean E2E never fills a server as one that goes on does.
LEAST_ANSWERS = 10

#: Why replicas may hold more together than one by one.
FLEET_HOLDS_MORE = (
    "more than one by one, because a load balancer's turns even out what each is sent"
)

#: What is not known of a choice of two pools.
POOLS_UNSURE = (
    "its chance counts how far off each kind of server may be; nothing measured says how far off "
    "two pools together are"
)


@dataclass(frozen=True)
class Ask:
    """What was asked for.

    Attributes:
        model: Name.
        workload: Path of the load.
        requests: In the load.
        prompt_tokens: Mean.
        output_tokens: Mean.
        longest_tokens: Prompt and output of the longest request.
        rate_per_s: Mean rate to serve; None where only the frontier is wanted.
        slo: The limits as written; empty for none.
        limits: One sentence for each.
        gpus: Names of the GPUs that may be rented.
        max_gpus: Most of them; None for any number.
        prices_per_gpu_hour: GPU -> price, in the user's money; empty where GPUs are counted.
        notices: What has to be said of the engine's releases.
    """

    model: str
    workload: str
    requests: int
    prompt_tokens: float
    output_tokens: float
    longest_tokens: int
    rate_per_s: float | None
    slo: str
    limits: Sequence[str]
    gpus: Sequence[str]
    max_gpus: int | None
    prices_per_gpu_hour: Mapping[str, float] = field(default_factory=dict)
    notices: Sequence[str] = ()


@dataclass(frozen=True)
class Point:
    """Figures of one simulated run.

    Attributes:
        rate_per_s: Mean rate of what was sent.
        requests: Sent.
        holds: Whether every limit is held.
        met_share: Share of the requests that meet the limits on each request (goodput); of those
            served where there are none.
        latency_s: Metric -> statistic -> seconds; None where nothing was served.
        output_tokens_per_s: Served per second.
        output_tokens_per_gpu_s: The same for each GPU.
        user_tokens_per_s: Tokens per second that a user sees, 1 / mean TPOT; None without any.
    """

    rate_per_s: float
    requests: int
    holds: bool
    met_share: float
    latency_s: Mapping[str, Mapping[str, float | None]]
    output_tokens_per_s: float
    output_tokens_per_gpu_s: float
    user_tokens_per_s: float | None

    @property
    def lasts_s(self) -> float:
        """How long it takes to send all of it."""
        return self.requests / self.rate_per_s

    @property
    def is_burst(self) -> bool:
        """Whether it is over before a server is as full as a load that goes on would make it."""
        return self.lasts_s < LEAST_ANSWERS * (self.latency_s["e2e"]["mean"] or 0.0)

    @property
    def burst_warning(self) -> str:
        """What to say of a load that is a burst at its rate; nothing of others."""
        if not self.is_burst:
            return ""
        return (
            f"At this rate the load lasts {self.lasts_s:.3g} s, less than {LEAST_ANSWERS} mean "
            "answers, so there is no verdict: a server that runs on holds less; plan with a longer "
            "load."
        )


@dataclass(frozen=True)
class HighestRate:
    """The highest rate that servers hold within the limits, and how sure that is.

    Attributes:
        per_s: The highest rate simulated that holds; 0 where none does.
        fails_per_s: The lowest rate above it that does not; with ``per_s`` the width of the
            bisection. None where nothing above was found to fail.
        seeds_per_s: The same of other draws of the load, the first one's among them.
        interval_per_s: At the bad and the good end of the prediction's interval; None where the
            prediction has none.
        level: What the interval is to cover, such as 0.9; None without one.
    """

    per_s: float
    fails_per_s: float | None
    seeds_per_s: Sequence[float] = ()
    interval_per_s: tuple[float, float] | None = None
    level: float | None = None


@dataclass(frozen=True)
class Fleet:
    """The replicas simulated together under the asked rate, behind a load balancer.

    Attributes:
        routing: ``round_robin`` or ``least_loaded``.
        point: What clients see.
    """

    routing: str
    point: Point


@dataclass(frozen=True)
class Choice:
    """A way to serve the model, with everything that is known of it.

    Attributes:
        label: What people call it: ``4 x H100 TP 4 PP 1, fp8, ...``.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        gpu: Name.
        gpus_per_replica: Tensor x pipeline x data-parallel ranks.
        replicas: The fewest that hold the limits as predicted; 1 where no rate is asked.
        gpus: In all.
        formats: Part of the model -> number format, and ``kv_cache``.
        flags: Every engine flag that was chosen -> value.
        coefficients: ``network``, or the path of a calibrated file.
        highest_rate: Of one replica.
        fleet_rate: Of all replicas together, requests going round in turn; with the interval.
        utilization: Asked rate over that; None without a rate.
        at_rate: One replica at its share of the asked rate, or at its highest without one.
        cost_per_hour: Of all GPUs; None without prices.
        cost_per_million_output_tokens: At the asked rate, else at the highest.
        limited_by: What stops a higher rate, such as ``KV memory`` or ``decode bandwidth``.
        chance: That the fleet holds the limits at the asked rate given the prediction's interval;
            None where it has none, no rate is asked, or the load is a burst.
        safe: Whether the fleet holds them at the bad end of the interval too.
        ladder: Runs of one replica on the whole load at rising rates.
        step_time: Part of a step -> share of the engine's time at ``at_rate``; they sum to 1. The
            parts are those of a step's breakdown (``pinn.training.breakdown.PARTS``).
        fleets: The replicas simulated together.
        serve_command: Starts one replica.
        simulate_command: Gives the figures of ``seen``.
        pools: Prefill and decode servers of all replicas, as ``--prefill`` and ``--decode`` take
            them; None where every server does both. ``flags`` are then the decode servers'.
        pool_sizes: Of both, the number of servers and the GPUs of each.
    """

    label: str
    engine: str
    gpu: str
    gpus_per_replica: int
    replicas: int
    gpus: int
    formats: Mapping[str, str]
    flags: Mapping[str, Any]
    coefficients: str
    highest_rate: HighestRate
    fleet_rate: HighestRate
    utilization: float | None
    at_rate: Point
    cost_per_hour: float | None
    cost_per_million_output_tokens: float | None
    limited_by: str
    chance: float | None
    safe: bool | None
    ladder: Sequence[Point]
    step_time: Mapping[str, float]
    fleets: Sequence[Fleet]
    serve_command: str
    simulate_command: str
    pools: tuple[str, str] | None = None
    pool_sizes: tuple[tuple[int, int], tuple[int, int]] | None = None

    @property
    def fleet_holds_more(self) -> bool:
        """Whether all replicas hold more together than one by one, beyond the search's width."""
        return self.fleet_rate.per_s > 1.02 * self.replicas * self.highest_rate.per_s

    @property
    def seen(self) -> Point:
        """What clients see: of all replicas, in turn, under the asked rate; else of one."""
        return self.fleets[-1].point if self.fleets else self.at_rate


@dataclass(frozen=True)
class LeftOut:
    """A candidate that is no choice.

    Attributes:
        label: As of a choice.
        gpu: Name.
        reason: Why, with the number that decides it.
        simulated: Whether it was simulated at all.
    """

    label: str
    gpu: str
    reason: str
    simulated: bool


@dataclass(frozen=True)
class FrontierPoint:
    """One candidate at one rate: what its GPUs give against what its users see.

    Attributes:
        label: Of the candidate.
        gpu: Name.
        gpus_per_replica: Of the candidate.
        rate_per_s: Of one replica.
        output_tokens_per_gpu_s: Throughput per GPU.
        user_tokens_per_s: Speed that a user sees.
        best: Whether no other point is better in both.
    """

    label: str
    gpu: str
    gpus_per_replica: int
    rate_per_s: float
    output_tokens_per_gpu_s: float
    user_tokens_per_s: float
    best: bool


@dataclass(frozen=True)
class Plan:
    """The answer.

    Attributes:
        ask: What was asked.
        choices: Best first.
        left_out: Candidates that are no choice.
        frontier: Points of all candidates that were simulated, by falling user speed.
        candidates: How many there were.
        simulations: Runs that it took.
        seconds: Wall clock.
        schema: Layout of the file.
    """

    ask: Ask
    choices: Sequence[Choice]
    left_out: Sequence[LeftOut]
    frontier: Sequence[FrontierPoint]
    candidates: int
    simulations: int
    seconds: float
    schema: str = SCHEMA


def write_plan(plan: Plan, path: Path) -> None:
    """Write the plan; the file appears whole or not at all."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")


# Limits that clients are promised, as people write them: ``ttft<=1s, tpot<=40ms for 95 %``.
#
# A limit is on a statistic over all requests (``p99 ttft<=2s``, ``mean e2e<=10s``; of ITL over
# all gaps between tokens), or on each request: ``... for 95 %`` asks that so many requests meet
# all of those at once. The share that does is the goodput of DistServe (Zhong et al. 2024,
# arXiv:2401.09670, "SLO attainment") and of vLLM's ``benchmark_serving --goodput``. Requests
# that are not served meet nothing.

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_EXAMPLE = "write 'ttft<=1s, tpot<=40ms for 95 %', 'p99 ttft<=2s' or 'mean e2e<=20s'"
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_CLAUSE = re.compile(
    r"^(?:(?P<before>mean|p\d+(?:\.\d+)?)\s+)?(?P<metric>[a-z0-9]+)"
    r"(?:\s+(?P<after>mean|p\d+(?:\.\d+)?))?"
    rf"\s*(?:<=|<|≤)\s*(?P<value>{_NUMBER}(?:e-?\d+)?)\s*(?P<unit>[a-zµ]*)$"
)
_SHARE = re.compile(rf"\s+for\s+(?P<share>{_NUMBER})\s*%\s*$")

#: Seconds by metric, one entry per request; NaN where a request has no such time.
Latencies = Mapping[str, Float[np.ndarray, " requests"]]


@dataclass(frozen=True)
class Statistic:
    """A limit on a statistic over all requests.

    Attributes:
        metric: ``ttft``, ``tpot``, ``itl`` or ``e2e``.
        name: ``mean`` or a percentile, such as ``p99``.
        seconds: At most.
    """

    metric: str
    name: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name} {self.metric.upper()} <= {written_s(self.seconds)}"


@dataclass(frozen=True)
class Goodput:
    """Limits on each request, which a share of them has to meet together.

    Attributes:
        share: Of the requests, at least.
        seconds: Metric -> at most.
    """

    share: float
    seconds: Mapping[str, float]

    def __str__(self) -> str:
        each = " and ".join(f"{k.upper()} <= {written_s(v)}" for k, v in self.seconds.items())
        return f"{100 * self.share:g} % of the requests: {each}"

    def needed(self, requests: int) -> int:
        """How many of the requests have to meet them."""
        return max(math.ceil(round(self.share * requests, 6)), 1)

    def excess(self, latencies: Latencies) -> Float[np.ndarray, " requests"]:
        """Each request's largest latency as a share of its limit; 0 where it has none."""
        ratios = [latencies[k] / limit for k, limit in self.seconds.items()]
        return np.max(np.where(np.isnan(ratios), 0.0, ratios), axis=0)


@dataclass(frozen=True)
class Limits:
    """All that was promised.

    Attributes:
        text: As written.
        statistics: Limits on statistics.
        goodput: Limits on each request; None without any.
    """

    text: str
    statistics: Sequence[Statistic]
    goodput: Goodput | None

    @property
    def sentences(self) -> list[str]:
        """One for each limit."""
        return [str(limit) for limit in (*self.statistics, *filter(None, [self.goodput]))]

    @property
    def on_gaps(self) -> list[Statistic]:
        """Limits on the gaps between tokens."""
        return [limit for limit in self.statistics if limit.metric == "itl"]

    @property
    def each(self) -> list[tuple[str, str, float]]:
        """Metric, name of what is limited, and seconds of every limit."""
        found = [(limit.metric, limit.name, limit.seconds) for limit in self.statistics]
        if self.goodput is not None:
            name = f"{100 * self.goodput.share:g} % of requests"
            found += [(metric, name, seconds) for metric, seconds in self.goodput.seconds.items()]
        return found

    @property
    def bound_waits(self) -> bool:
        """Whether any limit is on what waiting in a queue lengthens: TTFT or E2E."""
        return any(metric in ("ttft", "e2e") for metric, _, _ in self.each)

    def excess(
        self, seconds: Latencies, gaps: tuple[Float[np.ndarray, " gaps"], Int[np.ndarray, " gaps"]]
    ) -> float:
        """The worst latency as a share of its limit; every limit is held where it is at most 1.

        Args:
            seconds: Per request, infinite where it was not served.
            gaps: Lengths of gaps between tokens, and how many there are of each.
        """
        found = [0.0]
        for limit in self.statistics:
            values, counts = gaps if limit.metric == "itl" else _known(seconds[limit.metric])
            found.append(statistic(values, counts, limit.name) / limit.seconds)
        if self.goodput is not None:
            needed = self.goodput.needed(len(seconds["ttft"]))
            found.append(float(np.sort(self.goodput.excess(seconds))[needed - 1]))
        return max(found)

    def met(self, latencies: Latencies) -> Bool[np.ndarray, " requests"]:
        """Which requests are served and meet the limits on each; all served ones without any."""
        served = np.isfinite(latencies["e2e"])
        return served if self.goodput is None else served & (self.goodput.excess(latencies) <= 1)

    def are_missed(self, least: Latencies, requests: int) -> bool:
        """Whether limits are missed already, if nothing turns out shorter than this.

        Args:
            least: What is known so far of each request's latencies: lower bounds, 0 where nothing
                is known, NaN where there is no such time.
            requests: How many there will be.
        """
        for limit in self.statistics:
            if limit.metric == "itl":
                continue
            values, _ = _known(least[limit.metric])
            if limit.name == "mean":
                missed = bool(values.sum() > limit.seconds * len(values))
            else:
                beyond = int(np.count_nonzero(values > limit.seconds))
                missed = beyond > (1 - float(limit.name[1:]) / 100) * (len(values) - 1) + 1
            if missed:
                return True
        if self.goodput is None:
            return False
        beyond = int(np.count_nonzero(self.goodput.excess(least) > 1))
        return beyond > requests - self.goodput.needed(requests)


def _known(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values that are no NaN, each once."""
    values = values[~np.isnan(values)]
    return values, np.ones(len(values), np.int64)


def parse_limits(text: str) -> Limits:
    """Read limits.

    Raises:
        PinnError: If one cannot be read, says neither its statistic nor a share of requests, or is
            on each request's ITL; with how to write it.

    >>> parse_limits("ttft<=1s, tpot<=40ms for 95 %; p99 e2e<=30s").sentences
    ['p99 E2E <= 30 s', '95 % of the requests: TTFT <= 1 s and TPOT <= 40 ms']
    """
    statistics: list[Statistic] = []
    each: dict[str, float] = {}
    share: float | None = None
    for group in filter(None, (part.strip() for part in text.split(";"))):
        ending = _SHARE.search(group)
        clauses = group[: ending.start()] if ending else group
        alone = [_clause(clause, text) for clause in clauses.split(",")]
        statistics += [limit for limit in alone if limit.name]
        on_each = {limit.metric: limit.seconds for limit in alone if not limit.name}
        if bool(on_each) != bool(ending):
            raise PinnError(
                f"--slo {text!r}: {', '.join(on_each) or clauses.strip()} "
                + ("needs a statistic or a share" if on_each else "has a statistic and a share")
                + f": {_EXAMPLE}"
            )
        if ending is not None:
            if each:
                raise PinnError(f"--slo {text!r} names two shares: put them together, {_EXAMPLE}")
            each, share = on_each, float(ending["share"]) / 100
    if not statistics and not each:
        raise PinnError(f"--slo {text!r} holds no limit: {_EXAMPLE}")
    if share is not None and not 0 < share <= 1:
        raise PinnError(f"--slo {text!r}: a share is above 0 and at most 100 %")
    if "itl" in each:
        raise PinnError(
            f"--slo {text!r}: a request has many gaps between tokens: limit their mean with tpot, "
            "or all requests' gaps with 'p99 itl<=100ms'"
        )
    return Limits(text, tuple(statistics), None if share is None else Goodput(share, each))


def _clause(clause: str, text: str) -> Statistic:
    """A limit, without a name where it is on each request."""
    found = _CLAUSE.match(clause.strip().lower())
    if found is None or (found["before"] and found["after"]):
        raise PinnError(f"--slo {text!r}: cannot read {clause.strip()!r}: {_EXAMPLE}")
    metric, unit = found["metric"], found["unit"].replace("µ", "u")
    if metric not in METRICS:
        raise PinnError(f"--slo {text!r}: unknown metric {metric!r}: use {', '.join(METRICS)}")
    if unit not in _UNITS_S:
        raise PinnError(
            f"--slo {text!r}: {clause.strip()!r} has no known unit: use {', '.join(_UNITS_S)}"
        )
    seconds = float(found["value"]) * _UNITS_S[unit]
    if not 0 < seconds < math.inf:
        raise PinnError(f"--slo {text!r}: {clause.strip()!r} must allow some time")
    name = found["before"] or found["after"] or ""
    if name.startswith("p"):
        percent = float(name[1:])
        if not 0 < percent <= 100:
            raise PinnError(f"--slo {text!r}: there is no percentile {percent:g}")
        name = f"p{percent:.10g}"
    return Statistic(metric, name, seconds)


def written_s(seconds: float) -> str:
    """A time for people.

    >>> [written_s(s) for s in (0.04, 1.0, 90.0, 1118.2)]
    ['40 ms', '1 s', '90 s', '1118 s']
    """
    if seconds >= 1000:
        return f"{seconds:.0f} s"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
