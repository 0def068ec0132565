"""A request for a plan; and a finished plan: choices in order, and candidates that are none.

Times are in seconds and rates in requests per second; None is what does not exist, such as a cost
without prices, or an upper end that nothing bounds. The fields of :class:`Plan` are the keys of
``plan.json``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pinn.common.numbers import number
from pinn.simulator.slo import LimitOutcome
from pinn.specs.flags import FlagValue


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A load to serve within limits, and what may be rented for it.

    Attributes:
        slo: Limits: 'ttft<=1s, tpot<=40ms for 95 %' asks that so many requests meet all of them;
            'p99 ttft<=2s', 'mean e2e<=20s', 'p95 itl<=80ms' are on all requests. Separate the two
            kinds with a semicolon.
        workload: The load, as of 'pinn simulate'; no closed loop. Or give --input-len and the flags
            beside it.
        gpu: Names, or paths of datasheets, separated by commas.
        rate: Mean requests per second to serve, for as long as the load lasts. Without it, how much
            each candidate serves, by what a request per second takes.
        max_gpus: GPUs to rent at most.
        configs: Only these candidates: a file as of 'pinn coefficients --configs'.
        candidates: Flags to combine. [default: conf/plan/candidates.yaml]
        disaggregate: Also try prefill and decode on servers of their own: pairs of the pools that
            the file of --candidates lists.
        coefficients: JSON file of 'pinn calibrate' or 'pinn coefficients', in place of the network
            for the configuration that it belongs to. Repeatable.
        top: Rows to examine in full.
        seed: Of random draws. [default: the file's, else 0]
    """

    slo: str
    workload: Path | None = None
    model: str | None = None
    gpu: str | None = None
    rate: float | None = None
    max_gpus: int | None = None
    configs: Path | None = None
    candidates: Path | None = None
    disaggregate: bool = False
    coefficients: list[Path] | None = None
    checkpoint: Path | None = None
    top: int = 5
    seed: int | None = None


SCHEMA = "pinn plan 1"

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
class PlanSummary:
    """The question that a plan answers.

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
        limits: Each limit that was asked with its value, and whether it is met.
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
            f"At this rate the load lasts {number(self.lasts_s)} s, less than {LEAST_ANSWERS} mean "
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
        cost_per_million_output_tokens: At the asked rate, else at the highest; None without prices
            or output.
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
        memory: Where KV memory limits the rate: entry of one GPU's memory -> GiB, with
            ``kv_cache_low`` and ``kv_cache_high``.
        fails_first: Limit that fails first at a higher rate, as a sentence.
        assumptions: Releases whose measurements step times rest on, and the acceptance of drafts.
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

    @property
    def fleet_holds_more(self) -> bool:
        """Whether all replicas hold more together than one by one, beyond the search's width."""
        return self.fleet_rate.per_s > 1.02 * self.replicas * self.highest_rate.per_s

    @property
    def seen(self) -> Point:
        """What clients see: of all replicas, in turn, under the asked rate; else of one."""
        return self.fleets[-1].point if self.fleets else self.at_rate


def has_gaps(choices: Sequence[Choice]) -> bool:
    """Whether requests have gaps between tokens, and with them a TPOT."""
    return any(choice.seen.latency_s["tpot"]["p99"] is not None for choice in choices)


@dataclass(frozen=True)
class RejectedCandidate:
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

    ask: PlanSummary
    choices: Sequence[Choice]
    left_out: Sequence[RejectedCandidate]
    frontier: Sequence[FrontierPoint]
    candidates: int
    simulations: int
    seconds: float
    schema: str = SCHEMA
