"""A request for a plan; and a finished plan: ranked choices, and rejected candidates.

Times are in seconds and rates in requests per second. None stands for a value that does not exist,
such as a cost without prices, or an upper end that nothing bounds. The fields of :class:`Plan` are
the keys of ``plan.json``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from pinn.common.numbers import number
from pinn.engines.routers import LEAST_REQUESTS, PREFIX_AWARE, RANDOM, ROUND_ROBIN
from pinn.simulator.slo import LimitOutcome
from pinn.specs.flags import Flag, FlagValue


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A load to serve within limits, and what may be rented for it.

    Attributes:
        slo: SLO. 'ttft<=1s, tpot<=40ms for 95 %' asks that 95 % of the requests meet both limits;
            'p99 ttft<=2s', 'mean e2e<=20s' and 'p95 itl<=80ms' are limits on all requests.
            Separate the two kinds with a semicolon.
        workload: File of the load, as of 'pinn simulate --workload', but no closed loop. Or
            describe the load with --input-len, --output-len and the options beside them.
        gpu: GPUs: names of 'pinn gpus' or paths of datasheets, separated by commas.
        rate: Mean request rate to serve, in requests/s. Without it, candidates are ranked by the
            GPUs or cost per request/s.
        headroom: Share by which the load may exceed --rate: 0.2 sizes a fleet for 1.2 x --rate.
        max_gpus: Maximum number of GPUs.
        configs: File of the candidates, as of 'pinn coefficients --configs', instead of
            --candidates.
        candidates: YAML file of the flags to combine into candidates. [default:
            conf/plan/candidates.yaml]
        disaggregate: Also try disaggregated prefill/decode, with the pools of workers that the
            file of --candidates lists.
        coefficients: Coefficient file of 'pinn calibrate' or 'pinn coefficients --json', used
            instead of the network for its own configuration. Repeatable.
        top: Number of rows of the table.
        time_budget: Time limit of the search, in seconds; inf for none. At the limit the best rows
            so far are printed, and the same command continues from there.
        cache: Folder that keeps results for a command that continues. [default: the environment
            variable PINN_CACHE, else the user's cache folder]
        seed: Seed of random arrival times and lengths. [default: the file's, else 0]
    """

    #: Flags for which several values are tried, with their defaults.
    SEVERAL: ClassVar = {
        "engine": "vllm",
        "quantization": "the checkpoint's",
        "tensor_parallel_size": "those of --candidates",
    }

    slo: str
    workload: Path | None = None
    model: str | None = None
    gpu: str | None = None
    rate: float | None = None
    headroom: Annotated[float, Flag(least=0)] = 0.0
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

#: Statistics that are reported for each metric.
STATISTICS = ("mean", "p50", "p90", "p95", "p99")

#: Duration of a load, in mean E2E latencies, below which it does not fill a server.
LEAST_ANSWERS = 10

#: Reasons why a search ended early.
TIME_BUDGET, INTERRUPT = "time budget", "interrupt"
#: Prefixes of the reason of a candidate for which time ran out: before screening, or before a row
#: for its fleet.
NOT_TRIED, NOT_EVALUATED = "not tried", "not evaluated"

#: Relative difference between a fleet's rate and the sum of its replicas' rates above which it is
#: explained: twice the width of the searches.
_LIKE_ONE_BY_ONE = 0.02
#: Router -> reason why replicas behind it may sustain more together than separately.
_MORE = {
    LEAST_REQUESTS: "the router balances the load",
    ROUND_ROBIN: "round-robin routing balances the load",
    PREFIX_AWARE: "requests with the same prefix go to the same replica, and queues are short",
    RANDOM: "each replica gets another part of the load",
}
#: Router -> reason why replicas behind it may sustain less together than separately.
_LESS = {
    LEAST_REQUESTS: "the number of requests in flight does not tell how long each will take",
    ROUND_ROBIN: "round-robin routing ignores how long each request takes",
    PREFIX_AWARE: "some replicas get more than their share because of prefixes",
    RANDOM: "some replicas get more than their share by chance",
}

#: Uncertainty of disaggregated P/D in addition to the interval.
POOLS_UNSURE = (
    "the probability accounts for the prediction error of each kind of worker; "
    "the error of both together was never measured"
)


@dataclass(frozen=True)
class PlanSummary:
    """Question that a plan answers.

    Attributes:
        model: Name of the model.
        workload: Path of the load.
        requests: Number of requests in the load.
        prompt_tokens: Mean prompt tokens of a request.
        output_tokens: Mean output tokens of a request.
        longest_tokens: Prompt and output of the longest request.
        rate_per_s: Mean rate to serve; None where only the frontier is wanted.
        slo: Limits as written; empty for none.
        limits: One sentence for each limit.
        gpus: Names of the GPUs that may be rented.
        max_gpus: Most GPUs; None for any number.
        headroom: Share by which the load may exceed that rate.
        prices_per_gpu_hour: GPU -> price, in the user's currency; empty where GPUs are counted.
        purchases: GPU that is owned -> how its price per hour follows from its purchase.
        notices: Notices on the engine's releases.
        gpus_per_machine: GPUs of a machine.
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


@dataclass(frozen=True)
class Point:
    """Metrics of one simulated run.

    Attributes:
        rate_per_s: Mean rate of the requests sent.
        requests: Number of requests sent.
        holds: Whether every limit is met.
        met_share: Share of the requests that meet the limits on each request (goodput); without
            such limits, share of the requests that were served.
        latency_s: Metric -> statistic -> seconds; None where nothing was served.
        output_tokens_per_s: Output tokens per second.
        output_tokens_per_gpu_s: Output tokens per second and GPU.
        user_tokens_per_s: Tokens per second that a user sees, 1 / mean TPOT; None without any.
        limits: Value of each limit that was asked, and whether it is met.
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

    @property
    def lasts_s(self) -> float:
        """Return the seconds in which all requests are sent."""
        return self.requests / self.rate_per_s

    @property
    def is_burst(self) -> bool:
        """Return whether the load ends before a server is as full as under a lasting load."""
        return self.lasts_s < LEAST_ANSWERS * (self.latency_s["e2e"]["mean"] or 0.0)

    @property
    def burst_warning(self) -> str:
        """Return the warning about a load that is a burst at its rate; empty for other loads."""
        if not self.is_burst:
            return ""
        return (
            f"At this rate the load lasts {number(self.lasts_s)} s, less than "
            f"{LEAST_ANSWERS} times its mean E2E latency, so no probability is "
            "given: under a lasting load the maximum rate is lower. Plan with a "
            "longer load."
        )


@dataclass(frozen=True)
class HighestRate:
    """Highest rate that servers sustain within the SLO, and its certainty.

    Attributes:
        per_s: Highest simulated rate that meets the SLO; 0 where none does.
        fails_per_s: Lowest higher rate that misses it; with ``per_s`` the width of the bisection.
            None where no failing rate was found.
        seeds_per_s: Highest rates with several seeds of the load, the first seed included.
        interval_per_s: Rates at the bad and the good end of the prediction's interval; None where
            the prediction has none.
        level: Nominal coverage of the interval, such as 0.9; None without one.
    """

    per_s: float
    fails_per_s: float | None
    seeds_per_s: Sequence[float] = ()
    interval_per_s: tuple[float, float] | None = None
    level: float | None = None


@dataclass(frozen=True)
class Fleet:
    """Replicas simulated together at the asked rate, behind a load balancer.

    Attributes:
        routing: Rule of the router (``pinn.engines.routers``); of a single replica that of its own
            load balancer.
        point: Metrics as clients see them.
    """

    routing: str
    point: Point


@dataclass(frozen=True)
class Choice:
    """Configuration and fleet to serve the model, with all predicted metrics.

    Attributes:
        label: Readable label: ``4 x H100 TP 4 PP 1, fp8, ...``.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        gpu: Name of the GPU.
        gpus_per_replica: Tensor x pipeline x data-parallel ranks.
        replicas: Fewest replicas predicted to meet the SLO; 1 where no rate is asked.
        gpus: GPUs of all replicas.
        formats: Part of the model -> number format, and ``kv_cache``.
        flags: Every engine flag that was chosen -> value.
        coefficients: ``network``, or the path of a calibrated file.
        highest_rate: Highest rate of one replica.
        fleet_rate: Highest rate of all replicas together, behind the router; with the interval.
        utilization: Asked rate over ``fleet_rate``; None without a rate.
        at_rate: One replica at its share of the asked rate, or at its highest without one.
        cost_per_hour: Price of all GPUs; None without prices.
        cost_per_million_prompt_tokens: Whole cost over the prompt tokens at the asked rate, else at
            the highest; None without a price.
        cost_per_million_output_tokens: Whole cost over the output tokens, likewise.
        limited_by: Bottleneck beyond the highest rate, such as ``KV memory`` or ``decode
            bandwidth``.
        chance: Probability of meeting the SLO at the asked rate, given the prediction's interval;
            None where it has none, no rate is asked, or the load is a burst.
        safe: Whether the fleet meets the SLO at the bad end of the interval too.
        ladder: Runs of one replica on the whole load at rising rates.
        step_time: Part of a step -> share of the engine's time at ``at_rate``; they sum to 1. The
            parts are those of a step's breakdown (``pinn.training.breakdown.PARTS``).
        fleets: Replicas simulated together at the asked rate: behind a router that goes by chance,
            for comparison, and at last behind the router that the plan is for.
        serve_command: Command that starts one replica.
        simulate_command: Command that reproduces the metrics of ``seen``.
        pools: Prefill and decode workers of all replicas, as ``--prefill`` and ``--decode`` take
            them; None where every server does both. ``flags`` are then the decode workers'.
        pool_sizes: Number of servers, and GPUs of each, of the prefill and of the decode workers.
        memory: Where KV memory limits the rate: entry of one GPU's memory -> GiB, with
            ``kv_cache_low`` and ``kv_cache_high``.
        fails_first: Limit that fails first at a higher rate, as a sentence.
        assumptions: Releases whose measurements step times rest on, and the acceptance of drafts.
        is_partial: Whether time ran out before other seeds, the highest rate of all replicas, its
            interval and the probability were found.
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

    @property
    def router(self) -> str:
        """Return the rule by which requests are spread over the replicas; empty for one replica."""
        return self.fleets[-1].routing if self.fleets and self.replicas > 1 else ""

    @property
    def beside_one_by_one(self) -> str:
        """Return the fleet's rate beside that of its replicas one by one, with why they differ."""
        if not self.router:
            return ""
        alone = self.replicas * self.highest_rate.per_s
        gain = self.fleet_rate.per_s / alone - 1
        beside = (
            f"compared with {self.replicas} x {number(self.highest_rate.per_s)} = {number(alone)}"
        )
        if abs(gain) <= _LIKE_ONE_BY_ONE:
            return f"{beside} separately"
        reason = (_MORE if gain > 0 else _LESS)[self.router]
        return f"{beside} separately: {'more' if gain > 0 else 'less'}, because {reason}"

    @property
    def seen(self) -> Point:
        """Return the metrics that clients see: of all replicas at the asked rate, else of one."""
        return self.fleets[-1].point if self.fleets else self.at_rate


def has_gaps(choices: Sequence[Choice]) -> bool:
    """Return whether requests have more than one token, and with it ITL and TPOT."""
    return any(choice.seen.latency_s["tpot"]["p99"] is not None for choice in choices)


@dataclass(frozen=True)
class RejectedCandidate:
    """Candidate that is not a choice.

    Attributes:
        label: Label, as of a choice.
        gpu: Name of the GPU.
        reason: Reason, with the number that decides it.
        simulated: Whether it was simulated at all.
    """

    label: str
    gpu: str
    reason: str
    simulated: bool


@dataclass(frozen=True)
class FrontierPoint:
    """One candidate at one rate: throughput per GPU against the speed that users see.

    Attributes:
        label: Label of the candidate.
        gpu: Name of the GPU.
        gpus_per_replica: GPUs of one replica.
        rate_per_s: Rate of one replica.
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
class GpuOutcome:
    """Best choice on a GPU that was asked, or why there is none.

    Attributes:
        gpu: Name of the GPU.
        rank: Place of its best choice in the plan, from 1; None for no choice.
        reason: Reason why it has no choice; empty where it has one.
    """

    gpu: str
    rank: int | None
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """Answer to a request: ranked choices, rejected candidates and the frontier.

    Attributes:
        ask: Question that the plan answers.
        choices: Choices, best first.
        by_gpu: Every GPU that was asked, with its best choice, in the order of the choices.
        left_out: Candidates that are not a choice.
        frontier: Points of all simulated candidates, by falling user speed.
        candidates: Number of candidates.
        simulations: Number of runs, cached ones included.
        seconds: Wall-clock time, s.
        untried: Number of candidates among ``left_out`` that were not tried in time.
        stopped: Reason why candidates were not tried: ``time budget`` or ``interrupt``; empty where
            all were.
        schema: Layout of the file.
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
    schema: str = SCHEMA
