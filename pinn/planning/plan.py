"""Request for a plan, and the finished plan with ranked rows and rejected candidates.

Times are in seconds and rates in requests per second. None means that a value does not exist, such
as a cost without prices, or the upper bound of an unbounded interval. The fields of :class:`Plan`
are the keys of ``plan.json``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pinn.common.numbers import number
from pinn.engines.routers import LEAST_REQUESTS, PREFIX_AWARE, RANDOM, ROUND_ROBIN
from pinn.errors import PinnError
from pinn.simulator.pools_error import POOLS_BIAS
from pinn.simulator.slo import LimitOutcome
from pinn.specs.flags import Flag, FlagValue


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Load to serve within an SLO, and the GPUs and candidates for it.

    Attributes:
        slo: SLO. 'ttft<=1s, tpot<=40ms for 95 %' requires that 95 % of the requests meet both
            limits. 'p99 ttft<=2s', 'mean e2e<=20s' and 'p95 itl<=80ms' limit a statistic over all
            requests. Separate the two types of limits by a semicolon.
        workload: File that describes the load, as for 'pinn simulate --workload', except closed
            loops. The load can also be described by --input-len, --output-len and the options next
            to them.
        gpu: GPU types: names listed by 'pinn gpus' or paths of datasheets, separated by commas.
        rate: Mean request rate to serve, in requests/s. Without --rate, candidates are ranked by
            cost (or number of GPUs) per request/s.
        spare_replicas: Number of replicas of every plan beyond those that meet the SLO, such as 1
            to meet it with one replica lost (N+1).
        headroom: Fraction by which the load may exceed --rate; 0.2 sizes each fleet for 1.2 x
            --rate.
        min_probability: Minimum P(SLO met) of every plan at --rate, such as 0.9. Replicas are added
            until the fleet without its spare replicas reaches this probability; hardware that
            cannot reach it is rejected. Plans without a probability, such as those with
            uncalibrated coefficients from a file, are kept.
        max_gpus: Maximum number of GPUs of a fleet.
        configs: Candidate configurations, instead of --candidates: a file, as for 'pinn
            coefficients --configs', or a grid, such as 'gpu=H100,B200 tensor_parallel_size=1,2'.
        candidates: YAML file of the flag values to combine into candidates. [default:
            conf/plan/candidates.yaml]
        disaggregate: Also evaluate disaggregated prefill/decode, with the pools of workers listed
            in the file of --candidates.
        coefficients: Coefficient file written by 'pinn calibrate' or 'pinn coefficients --json',
            used instead of the network for its own configuration. Repeatable.
        top: Minimum number of hardware configurations to evaluate. Each is a row of plan.html and
            plan.csv. The terminal shows three rows, or with several GPU types the best row for
            each.
        time_budget: Maximum time of the search in seconds; inf for no limit. The best plans found
            so far are then printed, at least one per GPU type if any meets the SLO. Repeat the
            command to continue the search.
        cache: Folder for cached results, from which a repeated command continues. [default: the
            environment variable PINN_CACHE, else the user's cache folder]
        seed: Random seed for arrival times and lengths. [default: the file's, else 0]
    """

    #: Text for the default of each flag with several values, which the plan tries.
    SEVERAL: ClassVar = {
        "engine": "vllm",
        "quantization": "the checkpoint's",
        "tensor_parallel_size": "those of --candidates",
    }
    #: Changes to the declaration of flags that have another meaning, or none, in a plan.
    RESTATED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "replicas": {"help": "Minimum number of replicas in every plan, without spare replicas."},
        "router": {"help": "Routing policy for requests to replicas. Each engine then distributes "
                           "its requests over its data-parallel ranks.",
                   "shown": LEAST_REQUESTS},
        "num_prompts": {"shown": "rate x duration"},
        "duration": {"shown": "600, without --num-prompts"},
        "concurrency": {"hidden": True},
        "disaggregation_mode": {"hidden": True},
    }  # fmt: skip

    slo: str
    workload: Path | None = None
    model: str | None = None
    gpu: str | None = None
    rate: float | None = None
    headroom: Annotated[float, Flag(least=0)] = 0.0
    spare_replicas: Annotated[int, Flag(least=0)] = 0
    min_probability: Annotated[float | None, Flag(least=0)] = None
    max_gpus: Annotated[int | None, Flag(least=1)] = None
    configs: Path | None = None
    candidates: Path | None = None
    disaggregate: bool = False
    coefficients: list[Path] | None = None
    checkpoint: Path | None = None
    top: Annotated[int, Flag(least=1)] = 5
    time_budget: float = 60.0
    cache: Path | None = None
    seed: int | None = None


SCHEMA = "pinn plan 1"

#: Names of the statistics reported for each metric.
STATISTICS = ("mean", "p50", "p90", "p95", "p99")

#: Minimum duration of a load to fill a server, as a multiple of its mean E2E latency.
LEAST_ANSWERS = 10

#: Reasons why a plan's search ended before all candidates were tried.
TIME_BUDGET, INTERRUPT = "time budget", "interrupt"
#: First words of the reason why a candidate is not in the plan: time ran out before its screening,
#: or before the evaluation of its fleet.
NOT_TRIED, NOT_EVALUATED = "not tried", "not evaluated"
#: Reason that follows ``NOT_TRIED`` or ``NOT_EVALUATED`` if the time budget ended the search.
TIME_OVER = "time was over"
#: Step of a search that is not part of its time budget, in ``spent_s``.
COMPILING = "compiling"

#: The plan explains the difference between a fleet's rate and the sum of its replicas' rates above
#: this relative difference, which is twice the relative width of a bisection.
_LIKE_ONE_BY_ONE = 0.02
#: Reasons why replicas may sustain a higher rate together than separately, by routing policy.
_MORE = {
    LEAST_REQUESTS: "the router balances the load",
    ROUND_ROBIN: "round-robin routing balances the load",
    PREFIX_AWARE: "requests with the same prefix go to the same replica, and queues are short",
    RANDOM: "each replica serves a different part of the load",
}
#: Reasons why replicas may sustain a lower rate together than separately, by routing policy.
_LESS = {
    LEAST_REQUESTS: "the number of requests in flight does not indicate how long each will take",
    ROUND_ROBIN: "round-robin routing ignores how long each request takes",
    PREFIX_AWARE: "some replicas get more than their share because of prefixes",
    RANDOM: "some replicas get more than their share by chance",
}

#: Clause about errors that the probability of meeting the SLO with disaggregated P/D excludes.
POOLS_UNSURE = (
    "the probability accounts for the prediction errors of prefill and of decode workers, not for "
    f"those of both together; {POOLS_BIAS}"
)


class AskedRate:
    """Requested rate and headroom, which determine the rate that a fleet must sustain."""

    rate_per_s: float | None
    headroom: float

    @property
    def sized_rate_per_s(self) -> float | None:
        """Return the rate that a fleet must sustain: the requested rate plus the headroom."""
        return None if self.rate_per_s is None else self.rate_per_s * (1 + self.headroom)


@dataclass(frozen=True)
class PlanSummary(AskedRate):
    """Summary of the request for a plan.

    Attributes:
        model: Name of the model.
        workload: Path or description of the load.
        requests: Number of requests in the load.
        prompt_tokens: Mean prompt tokens of a request.
        output_tokens: Mean output tokens of a request.
        longest_tokens: Prompt and output tokens of the longest request.
        rate_per_s: Mean rate to serve; None if only the frontier is requested.
        slo: Limits as the user wrote them; empty if there are no limits.
        limits: One sentence for each limit.
        gpus: Names of the GPUs that may be rented.
        max_gpus: Maximum number of GPUs; None for no limit.
        headroom: Share by which the load may exceed ``rate_per_s``.
        prices_per_gpu_hour: Price by GPU, in the user's currency; empty if there are no prices.
        purchases: Formula for the hourly price from the purchase price, by owned GPU.
        notices: Notices about the engine's releases.
        gpus_per_machine: Number of GPUs per machine.
        least_replicas: Minimum number of replicas that the user requested.
        spare_replicas: Number of spare replicas that the user requested.
        min_probability: Minimum probability of meeting the SLO that the user requested, from 0 to
            1; None for any.
        derives_length: Whether the maximum request length of the candidates was derived from the
            load, because the user gave none.
        unmeasured_gpus: GPUs on which no server in the network's training data ran.
        suggests_fp8: Whether all candidates have 16-bit weights by default, and fp8 weights may be
            faster on a requested GPU.
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
    purchases: Mapping[str, str] = field(default_factory=dict)
    notices: Sequence[str] = ()
    headroom: float = 0.0
    gpus_per_machine: int = 8
    least_replicas: int = 1
    spare_replicas: int = 0
    min_probability: float | None = None
    derives_length: bool = False
    unmeasured_gpus: Sequence[str] = ()
    suggests_fp8: bool = False

    @property
    def lengths(self) -> str:
        """Mean lengths of a request."""
        return f"{self.prompt_tokens:,.0f} prompt and {self.output_tokens:,.0f} output tokens"

    @property
    def named_load(self) -> str:
        """Name of the load; empty if it would only repeat the mean lengths."""
        repeated = f"{self.prompt_tokens:.0f} tokens in, {self.output_tokens:.0f} out"
        return "" if self.workload == repeated else self.workload

    @property
    def unmeasured_warning(self) -> str:
        """Warning about GPUs without serving data in the training data; empty if there are none."""
        if not self.unmeasured_gpus:
            return ""
        gpus = ", ".join(self.unmeasured_gpus)
        return f"No serving data of {gpus}: no server was measured there; expect larger errors."

    @property
    def fp8_hint(self) -> str:
        """Hint to try fp8 weights, where they may be faster than 16-bit weights; else empty."""
        if not self.suggests_fp8:
            return ""
        return "All candidates have 16-bit weights; --quantization bf16,fp8 also tries fp8."


@dataclass(frozen=True)
class Point:
    """Latencies, throughput and limits of one simulated run.

    Attributes:
        rate_per_s: Mean rate of the sent requests.
        requests: Number of requests sent.
        holds: Whether every limit is met.
        met_share: Share of requests that meet the limits on each request (goodput); without such
            limits, share of requests that were served.
        latency_s: Latency in seconds, by metric and then by statistic; None if no request was
            served.
        output_tokens_per_s: Output tokens per second.
        output_tokens_per_gpu_s: Output tokens per second per GPU.
        user_tokens_per_s: Tokens per second that a user sees, 1 / mean TPOT; None without TPOT.
        limits: Value of each requested limit, and whether the limit is met.
        preemptions: Number of times that a request was preempted because the KV cache was full.
    """

    rate_per_s: float
    requests: int
    holds: bool
    met_share: float
    latency_s: Mapping[str, Mapping[str, float | None]]
    output_tokens_per_s: float
    output_tokens_per_gpu_s: float
    user_tokens_per_s: float | None
    limits: Sequence[LimitOutcome] = ()
    preemptions: int = 0

    @property
    def lasts_s(self) -> float:
        """Duration in seconds over which requests are sent."""
        return self.requests / self.rate_per_s

    @property
    def is_burst(self) -> bool:
        """Whether the load ends before a server is as heavily loaded as under a sustained load."""
        return self.lasts_s < LEAST_ANSWERS * (self.latency_s["e2e"]["mean"] or 0.0)

    @property
    def burst_warning(self) -> str:
        """Warning if the load ends before servers are fully loaded (a burst); else empty."""
        if not self.is_burst:
            return ""
        return (
            f"At this rate the load lasts {number(self.lasts_s)} s, less than "
            f"{LEAST_ANSWERS} times its mean E2E latency, so no probability is given: under a "
            f"sustained load, the maximum rate is lower. Plan with a longer load."
        )


@dataclass(frozen=True)
class HighestRate:
    """Maximum rate that servers sustain within the SLO, and its uncertainty.

    Attributes:
        per_s: Maximum simulated rate that meets the SLO; 0 if no rate does.
        fails_per_s: Lowest simulated rate above ``per_s`` that misses the SLO; the true maximum
            lies between the two. None if no failing rate was found.
        seeds_per_s: Maximum rates for several seeds of the load, including the first seed.
        interval_per_s: Maximum rates with all times at the upper bound and at the lower bound of
            their intervals; None if there are no intervals.
        level: Nominal coverage of the interval, such as 0.9; None if there is no interval.
    """

    per_s: float
    fails_per_s: float | None
    seeds_per_s: Sequence[float] = ()
    interval_per_s: tuple[float, float] | None = None
    level: float | None = None


@dataclass(frozen=True)
class Fleet:
    """Replicas simulated together at the requested rate, behind a router.

    Attributes:
        routing: Routing policy (``pinn.engines.routers``); for a single replica, the policy of its
            own load balancer.
        point: Metrics as clients see them.
    """

    routing: str
    point: Point


def stated_chance(chance: float | None) -> str:
    """Return a probability of meeting the SLO as a string; ``-`` for None.

    The probability is a share of 20 equally likely errors, of which the largest represents the
    worst 5 %. Even if all 20 meet the SLO, 100 % would be an overstatement.
    """
    if chance is None:
        return "-"
    return ">97 %" if chance > 0.97 else f"{100 * chance:.0f} %"


@dataclass(frozen=True)
class Choice:
    """Configuration and fleet that serve the model, with all predicted metrics.

    Attributes:
        label: Readable label: ``4 x H100 TP 4 PP 1, fp8, ...``.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        gpu: Name of the GPU.
        gpus_per_replica: Tensor x pipeline x data-parallel ranks.
        replicas: Minimum number of replicas predicted to meet the SLO; 1 if no rate is requested.
        gpus: Number of GPUs of all replicas.
        formats: Number format by part of the model, including ``kv_cache``.
        flags: Value of each engine flag of the configuration.
        coefficients: ``network``, or the path of a calibrated file.
        highest_rate: Maximum rate of one replica.
        fleet_rate: Maximum rate of all replicas together behind the router, with its interval.
        utilization: Requested rate / ``fleet_rate``; None if no rate is requested.
        at_rate: Metrics of one replica at its share of the requested rate, or at its maximum rate
            without a requested rate.
        cost_per_hour: Price of all GPUs; None if there are no prices.
        cost_per_million_prompt_tokens: Cost of all GPUs per million prompt tokens, at the requested
            rate or else at the maximum rate; None if no price is known.
        cost_per_million_output_tokens: Cost of all GPUs per million output tokens, at the same rate
            as ``cost_per_million_prompt_tokens``; None if no price is known.
        limited_by: Bottleneck above the maximum rate, such as ``KV memory`` or ``decode
            bandwidth``.
        chance: Probability of meeting the SLO at the requested rate, given the prediction's
            interval. None if there is no interval or no requested rate, or if the load is a burst.
        safe: Whether the fleet meets the SLO even if all times are at the upper bound of their
            intervals.
        ladder: Metrics of one replica under the full load at increasing rates.
        step_time: Share of the engine's time by part of a step, in the run ``at_rate``; the shares
            add up to 1. The parts are listed in ``pinn.training.breakdown.PARTS``.
        fleets: Replicas simulated together at the requested rate: behind a random router for
            comparison, then behind the plan's router.
        serve_command: Command that starts one replica.
        simulate_command: Command that reproduces the metrics of ``seen``.
        pools: Prefill and decode workers of all replicas, in the notation of ``--prefill`` and
            ``--decode``; None if every server does both. With pools, ``flags`` are the decode
            workers' flags.
        pool_sizes: Number of servers and GPUs per server, for prefill workers and for decode
            workers.
        memory: If KV memory limits the rate, GiB by use of one GPU's memory, including
            ``kv_cache_low`` and ``kv_cache_high``.
        fails_first: Limit that is missed first at a higher rate, as a sentence.
        assumptions: Engine releases whose measurements step times are based on, and the assumed
            acceptance of draft tokens.
        is_partial: Whether time ran out before the probability, the maximum rate of all replicas,
            its interval, or the rates of other seeds were computed, in that order.
        weights_gib: Size of the checkpoint's weights in GiB, before the engine quantizes them.
        with_headroom: Metrics of all replicas at the requested rate with headroom; None if there is
            none.
        chance_with_headroom: ``chance`` at the requested rate with headroom; None if there is none.
        with_one_lost: Metrics at the requested rate if one replica is lost; None for one replica,
            without a requested rate, and if time ran out.
        chance_with_one_lost: ``chance`` with one replica lost; None without spare replicas.
        at_interval_ends: Metrics of all replicas at the requested rate with all times at the upper
            and at the lower bound of their intervals; None if there is no interval or no requested
            rate.
    """

    label: str
    engine: str
    gpu: str
    gpus_per_replica: int
    replicas: int
    gpus: int
    formats: Mapping[str, str]
    flags: Mapping[str, FlagValue]
    coefficients: str
    highest_rate: HighestRate
    fleet_rate: HighestRate
    utilization: float | None
    at_rate: Point
    cost_per_hour: float | None
    cost_per_million_prompt_tokens: float | None
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
    memory: Mapping[str, float] | None = None
    fails_first: str = ""
    assumptions: Sequence[str] = ()
    is_partial: bool = False
    weights_gib: float = 0.0
    with_headroom: Point | None = None
    chance_with_headroom: float | None = None
    with_one_lost: Point | None = None
    chance_with_one_lost: float | None = None
    at_interval_ends: tuple[Point, Point] | None = None

    @property
    def stated_chance(self) -> str:
        """Probability of meeting the SLO as a string; ``-`` if there is none."""
        return stated_chance(self.chance)

    @property
    def is_lower_bound(self) -> bool:
        """Return whether time ran out before rates above ``fleet_rate`` were simulated."""
        return self.is_partial and self.replicas > 1 and self.fleet_rate.fails_per_s is None

    @property
    def router(self) -> str:
        """Policy for routing requests to the replicas; empty for one replica."""
        return self.fleets[-1].routing if self.fleets and self.replicas > 1 else ""

    @property
    def beside_one_by_one(self) -> str:
        """Sentence that compares the fleet's rate with the sum of its replicas' individual rates.

        The string is empty for one replica, and if time ran out before the fleet's maximum rate was
        determined.
        """
        if not self.router or self.is_lower_bound:
            return ""
        alone = self.replicas * self.highest_rate.per_s
        gain = self.fleet_rate.per_s / alone - 1
        beside = (
            f"compared with {self.replicas} x {number(self.highest_rate.per_s)} = {number(alone)} "
            "requests/s"
        )
        if abs(gain) <= _LIKE_ONE_BY_ONE:
            return f"{beside} separately"
        reason = (_MORE if gain > 0 else _LESS)[self.router]
        return f"{beside} separately: {'more' if gain > 0 else 'less'}, because {reason}"

    @property
    def missed_first(self) -> str:
        """Return text about the limit missed first at higher rates, and the bottleneck."""
        if not self.fails_first:
            return ""
        limit = self.fails_first.replace(": ", " with ")
        return f"First limit missed at higher rates: {limit} (bottleneck: {self.limited_by})"

    @property
    def seen(self) -> Point:
        """Client metrics at the requested rate.

        Without a requested rate, they are the metrics of one replica at its own maximum rate.
        """
        return self.fleets[-1].point if self.fleets else self.at_rate


def has_gaps(choices: Sequence[Choice]) -> bool:
    """Return whether requests have several output tokens, so that ITL and TPOT are defined."""
    return any(choice.seen.latency_s["tpot"]["p99"] is not None for choice in choices)


@dataclass(frozen=True)
class RejectedCandidate:
    """Candidate that was rejected from the plan.

    Attributes:
        label: Label of the candidate.
        gpu: Name of the GPU.
        reason: Reason for the rejection, with the decisive number.
        simulated: Whether the candidate was simulated.
    """

    label: str
    gpu: str
    reason: str
    simulated: bool


@dataclass(frozen=True)
class FrontierPoint:
    """One candidate at one rate: throughput per GPU, and token rate per user.

    Attributes:
        label: Label of the candidate.
        gpu: Name of the GPU.
        gpus_per_replica: Number of GPUs per replica.
        rate_per_s: Rate of one replica in requests/s.
        output_tokens_per_gpu_s: Output tokens per second per GPU.
        user_tokens_per_s: Tokens per second that a user sees, 1 / mean TPOT.
        best: Whether no other point has both a higher throughput and a higher token rate.
    """

    label: str
    gpu: str
    gpus_per_replica: int
    rate_per_s: float
    output_tokens_per_gpu_s: float
    user_tokens_per_s: float
    best: bool


@dataclass(frozen=True)
class GpuOutcome:
    """Best row on a requested GPU, or the reason why there is no row.

    Attributes:
        gpu: Name of the GPU.
        rank: Rank of the GPU's best row in the plan, from 1; None if there is no row.
        reason: Reason why the GPU has no row; empty if it has a row.
    """

    gpu: str
    rank: int | None
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """Plan of servers for a load: ranked rows, rejected candidates and the frontier.

    Attributes:
        ask: Summary of the request for the plan.
        choices: Rows of the plan, best first.
        by_gpu: Every requested GPU with its best row, in the order of the rows.
        left_out: Candidates that are not in the plan.
        frontier: Points of all simulated candidates, sorted by ``user_tokens_per_s``, highest
            first.
        candidates: Number of candidates.
        simulations: Number of simulations, including cached ones.
        seconds: Wall-clock time of the search in seconds.
        untried: Number of candidates in ``left_out`` that were not tried before time ran out.
        stopped: Reason why candidates were not tried: ``time budget`` or ``interrupt``; empty if
            all were tried.
        left_s: Estimated time to try the remaining candidates, in seconds; None if none remain or
            there is no estimate.
        time_budget_s: Time budget of the search in seconds; None for no limit.
        spent_s: Wall-clock seconds by step of the search: ``start-up`` (predictions),
            ``screening``, ``fleets`` and ``rows``; in a first run also ``compiling``, which is not
            part of ``seconds`` and of the time budget.
        schema: Version of the layout of plan.json.
    """

    ask: PlanSummary
    choices: Sequence[Choice]
    by_gpu: Sequence[GpuOutcome]
    left_out: Sequence[RejectedCandidate]
    frontier: Sequence[FrontierPoint]
    candidates: int
    simulations: int
    seconds: float
    untried: int = 0
    stopped: str = ""
    left_s: float | None = None
    time_budget_s: float | None = None
    spent_s: Mapping[str, float] = field(default_factory=dict)
    schema: str = SCHEMA


class NoPlanError(PinnError):
    """Error for a load and an SLO that no candidate meets.

    Attributes:
        plan: Plan without choices, with the reason of each GPU and candidate.
    """

    def __init__(self, message: str, plan: Plan | None = None) -> None:
        super().__init__(message)
        self.plan = plan
