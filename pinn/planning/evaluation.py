"""Evaluation of candidates on the full load: number of replicas, metrics, uncertainty."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int

from pinn.common.numbers import amount, number
from pinn.engines.assumptions import assumption_lines
from pinn.engines.configurations import make_deployment
from pinn.memory.start_up import StartUp
from pinn.memory.weights import gpu_weight_bytes
from pinn.planning import commands, fleet, rate_search
from pinn.planning.bottleneck import KV_MEMORY, bottleneck, gpu_time_shares
from pinn.planning.candidate import NETWORK, Candidate
from pinn.planning.plan import (
    NOT_EVALUATED,
    TIME_OVER,
    Choice,
    HighestRate,
    Point,
    RejectedCandidate,
)
from pinn.planning.pools import PoolsCandidate
from pinn.planning.problem import PlanningProblem
from pinn.planning.time_budget import UNLIMITED, OutOfTimeError, TimeBudget
from pinn.planning.trials import Trials
from pinn.simulator.goodput import latencies_s
from pinn.simulator.run import Run
from pinn.surrogate.coefficient_set import read_coefficient_set
from pinn.units import GIB

#: Rates at which a plan's row is simulated, relative to its maximum rate within the SLO.
_LADDER = (0.25, 0.5, 0.7, 0.85, 1.0, 1.1)
#: Maximum number of steps by which :func:`_as_generated` decreases a rate.
_MOST_STEPS_DOWN = 30


@dataclass(frozen=True)
class SizedFleet:
    """Smallest fleet of a candidate's replicas that meets the SLO.

    Attributes:
        place: Index of the candidate among those that screening kept.
        rate: Maximum request rate of one replica within the SLO.
        size: Number of replicas, and their joint simulations.
    """

    place: int
    rate: HighestRate
    size: fleet.FleetSize


@dataclass(frozen=True)
class Infeasible:
    """Candidate for which no fleet meets both the SLO and the GPU limit.

    Attributes:
        label: Label of the candidate.
        reason: Reason why there is no such fleet.
        gpus: Number of GPUs of a fleet that meets the SLO; infinite if no fleet does.
    """

    label: str
    reason: str
    gpus: float = math.inf


@dataclass(frozen=True)
class SizingResult:
    """Result of sizing fleets of candidates of one hardware configuration.

    Attributes:
        best: Smallest fleet; None if no fleet meets the SLO within the GPU limit.
        nearest: Candidate that exceeds the GPU limit by the fewest GPUs, if no fleet meets the SLO.
        rejected: All candidates except the best.
        simulations: Number of simulations.
        is_partial: Whether time ran out before all candidates were compared.
    """

    best: SizedFleet | None
    nearest: Infeasible | None
    rejected: Sequence[RejectedCandidate]
    simulations: int
    is_partial: bool = False


def size_fleet(
    kept: Sequence[tuple[Candidate, float]],
    problem: PlanningProblem,
    budget: TimeBudget = UNLIMITED,
    *,
    in_any_case: bool = True,
) -> SizingResult:
    """Size a fleet of the candidate with the highest maximum rate per replica.

    Other candidates that may need fewer replicas are also sized, because the candidate with the
    highest rate per replica does not always need the fewest replicas for the requested rate.

    Args:
        kept: Candidates that differ only in scheduler limits, each with its screened maximum rate
            per replica in requests/s.
        problem: Load and SLO.
        budget: Time budget. When it is exhausted, the first fleet found is returned without a
            comparison to other candidates or seeds, and its maximum rate comes from a single
            bisection.
        in_any_case: Whether to size the first fleet even if time runs out.

    Raises:
        OutOfTimeError: If time runs out before a fleet is found, except with ``in_any_case``.
    """
    load, slo = problem.replica_load(), problem.slo
    timed = [Trials(candidate, load, slo, budget=budget) for candidate, _ in kept]
    needed = [replace(each, budget=UNLIMITED) for each in timed] if in_any_case else timed
    guesses = [guess for _, guess in kept]
    first, rate = _fastest(needed, timed, guesses)
    with suppress(OutOfTimeError):
        rate = _settled(timed[first], rate)
    best: SizedFleet | None = None
    reasons: dict[str, str] = {}
    found = _sized(needed[first], rate, problem, budget)
    infeasible = [found] if isinstance(found, Infeasible) else []
    if isinstance(found, fleet.FleetSize):
        best = SizedFleet(first, rate, found)
    with suppress(OutOfTimeError):
        for i, trials in enumerate(timed):
            if i == first or (
                best is not None
                and not fleet.may_do_with_fewer(
                    best.size.replicas - problem.spare_replicas, trials, problem
                )
            ):
                continue
            rate = _settled(trials, _highest(trials, guesses[i]))
            found = _sized(trials, rate, problem, budget)
            if isinstance(found, Infeasible):
                infeasible.append(found)
            elif best is None or found.replicas < best.size.replicas:
                best = SizedFleet(i, rate, found)
    reasons = {each.label: each.reason for each in infeasible}
    nearest = None if best else min(infeasible, key=lambda each: each.gpus)
    is_partial = budget.is_over
    no_fewer = "" if best is None else _no_fewer(kept[best.place][0].label, best, problem)
    no_fewer = f"{NOT_EVALUATED}: {TIME_OVER}" if is_partial else no_fewer
    rejected = [
        candidate.rejected(reasons.get(candidate.label, no_fewer))
        for i, (candidate, _) in enumerate(kept)
        if best is None or i != best.place
    ]
    simulations = sum(t.tally.simulations for t in timed)
    return SizingResult(best, nearest, rejected, simulations, is_partial)


def _fastest(
    needed: Sequence[Trials], timed: Sequence[Trials], guesses: Sequence[float]
) -> tuple[int, HighestRate]:
    """Return the index and maximum rate of the fastest candidate; index 0 if no rate passes.

    Args:
        needed: Simulations of each candidate, until the first one that meets the SLO.
        timed: Simulations of each candidate after that, within the time budget.
        guesses: Screened maximum rate of each candidate in requests/s.
    """
    best, rate = 0, HighestRate(0.0, None)
    for i, guess in enumerate(guesses):
        trials = timed[i] if rate.per_s > 0 else needed[i]
        try:
            if rate.per_s > 0 and trials.excess(rate.per_s * (1 + rate_search.WIDTH)) > 1:
                continue
            found = _highest(trials, max(guess, rate.per_s))
        except OutOfTimeError:
            if rate.per_s == 0:
                raise
            break
        if found.per_s > rate.per_s:
            best, rate = i, found
    return best, rate


def _highest(trials: Trials, guess: float) -> HighestRate:
    return HighestRate(*rate_search.highest_rate(trials.excess, guess, stride=1.03))


def _settled(trials: Trials, rate: HighestRate) -> HighestRate:
    """Return a replica's confirmed maximum rate, or else the rate most consistent with all runs.

    A rate is confirmed if all simulated rates below it meet the SLO and all above it miss it.
    Otherwise the result is the threshold most consistent with the results on a grid of rates.
    """
    if rate_search.is_clear(trials.excess, rate.per_s, rate.fails_per_s):
        return rate
    return HighestRate(*rate_search.settled_rate(trials.excess, rate.per_s))


def _sized(
    trials: Trials, rate: HighestRate, problem: PlanningProblem, budget: TimeBudget
) -> fleet.FleetSize | Infeasible:
    """Return the minimum number of replicas, or the reason why no number meets the SLO."""
    candidate = trials.candidate
    if rate.per_s == 0:
        return Infeasible(candidate.label, "does not meet the SLO at any rate over the whole load")
    if rate.fails_per_s is None:
        sent = len(trials.load.at(rate.per_s))
        why = (
            f"can run all {sent:,} requests at once: a longer load is needed to find its maximum "
            f"rate"
        )
        return Infeasible(candidate.label, why)
    size = fleet.fewest_replicas(trials, rate.per_s, problem, budget)
    if size is None:
        return _too_few(candidate, rate, problem)
    sized = fleet.with_probability(size, trials, problem)
    if sized is None:
        replicas = fleet.many(size.replicas, candidate)
        verb = "is" if size.replicas == 1 else "are"
        why = (
            f"{replicas} {verb} predicted to meet the SLO, but no fleet "
            f"within the GPU limits meets it with --min-probability {problem.min_probability:g}"
        )
        return Infeasible(candidate.label, why)
    sized = fleet.with_spares(sized, trials, problem)
    gpus = sized.replicas * candidate.gpus
    if problem.max_gpus is not None and gpus > problem.max_gpus:
        spare = f", {problem.spare_replicas} of them spare" if problem.spare_replicas else ""
        why = (
            f"needs {gpus} GPUs ({fleet.many(sized.replicas, candidate)}{spare}), more than "
            f"--max-gpus {problem.max_gpus}"
        )
        return Infeasible(candidate.label, why, gpus)
    return sized


def _too_few(candidate: Candidate, rate: HighestRate, problem: PlanningProblem) -> Infeasible:
    """Return the reason why no simulated number of replicas sustains the requested rate."""
    asked, each = problem.sized_rate_per_s or 0.0, rate.per_s
    most = fleet.most_replicas(candidate, each, problem)
    replicas = fleet.many(most, candidate)
    alone = f"one replica meets the SLO up to {number(each)} requests/s"
    needed = max(math.ceil(asked / each - 1e-9), problem.least_replicas)
    if problem.max_gpus is not None and (most + 1) * candidate.gpus > problem.max_gpus:
        gpus = max(needed, most + 1) * candidate.gpus
        verb = "misses" if most == 1 else "miss"
        why = (
            f"needs more GPUs than --max-gpus {problem.max_gpus}: {replicas} {verb} the SLO at "
            f"{number(asked)} requests/s; {alone}"
        )
        return Infeasible(candidate.label, why, gpus)
    verb = "does" if most == 1 else "do"
    why = f"{alone}, but {replicas} {verb} not meet it at {number(asked)} requests/s"
    return Infeasible(candidate.label, why)


def _no_fewer(label: str, best: SizedFleet, problem: PlanningProblem) -> str:
    if problem.rate_per_s is None:
        return (
            f"dominated by {label}: its maximum rate within the SLO is not above "
            f"{number(best.rate.per_s)} requests/s"
        )
    suffice = amount(best.size.replicas, "replica suffices", "replicas suffice")
    return f"dominated by {label}, of which {suffice}"


@dataclass(frozen=True)
class Row:
    """Row of a plan, with the number of simulations that it took.

    Attributes:
        choice: Configuration and fleet with their metrics.
        simulations: Number of simulations run to compute the row.
    """

    choice: Choice
    simulations: int

    @property
    def is_partial(self) -> bool:
        """Return whether time ran out before the row's uncertainty was estimated."""
        return self.choice.is_partial


def examine(
    candidate: Candidate,
    sized: SizedFleet,
    problem: PlanningProblem,
    budget: TimeBudget = UNLIMITED,
    *,
    in_any_case: bool = True,
) -> Row:
    """Return the row of a plan for a fleet, with all its metrics.

    Args:
        candidate: Candidate whose replicas form the fleet.
        sized: Fleet of the candidate's replicas.
        problem: Load and SLO.
        budget: Time budget. When it is exhausted, the remaining uncertainty estimates (intervals,
            probability, other seeds) are skipped and the row is partial. If it is exhausted from
            the start, one replica is simulated only at its share of the rate and above its maximum
            rate.
        in_any_case: Whether to return a row even if time runs out.

    Raises:
        OutOfTimeError: If time runs out before a row is complete except for its uncertainty, except
            with ``in_any_case``.
    """
    timed = Trials(candidate, problem.replica_load(), problem.slo, budget=budget)
    trials = replace(timed, budget=UNLIMITED) if in_any_case else timed
    if problem.rate_per_s is None:
        sized = replace(sized, rate=_as_generated(trials, sized.rate, problem))
    rate, size = sized.rate, sized.size
    deployment, asked = candidate.deployment, problem.rate_per_s
    apart = candidate if isinstance(candidate, PoolsCandidate) else None
    share = rate.per_s if asked is None else asked / size.replicas
    run = trials.run(share) if asked is not None else trials.run_of(problem.load.draw(share))
    late = budget.is_over
    ladder, beyond = _ladder(trials, rate.per_s, _LADDER[-1:] if late else _LADDER)
    by_chance = [] if late else fleet.by_chance(size, trials, problem)
    with_one_lost = None if late else fleet.with_one_lost(size, trials, problem)
    survives = with_one_lost is not None and with_one_lost.holds
    with_headroom = fleet.with_headroom(size, trials, problem)
    certainty = _certainty(sized, timed, problem, survives=survives)
    limited_by = bottleneck(trials, beyond, rate.per_s)
    together = certainty.together
    gpus = size.replicas * candidate.gpus
    per_s = size.replicas * share
    cost = problem.price_per_hour(deployment.gpu.name, gpus)
    formats = {part: form.name for part, form in vars(deployment.model.precisions).items()}
    router = size.fleets[-1].routing if size.fleets and size.replicas > 1 else None
    choice = Choice(
        label=candidate.label,
        engine=deployment.serving.engine,
        gpu=deployment.gpu.name,
        gpus_per_replica=candidate.gpus,
        replicas=size.replicas,
        gpus=gpus,
        formats=formats | {"kv_cache": deployment.kv_cache_precision.name},
        flags=asdict(deployment.serving),
        coefficients=candidate.source,
        highest_rate=replace(rate, seeds_per_s=certainty.seeds_per_s),
        fleet_rate=together,
        utilization=None if asked is None or certainty.is_unknown else asked / together.per_s,
        at_rate=trials.point(run, share),
        cost_per_hour=cost,
        cost_per_million_prompt_tokens=_per_million(cost, per_s, problem.workload.prompt_tokens),
        cost_per_million_output_tokens=_per_million(cost, per_s, problem.workload.output_tokens),
        limited_by=limited_by,
        chance=certainty.chance,
        safe=certainty.safe,
        ladder=ladder,
        step_time=gpu_time_shares(candidate, run),
        fleets=[*by_chance, *size.fleets],
        weights_gib=_checkpoint_bytes(candidate) / GIB,
        with_headroom=with_headroom,
        chance_with_headroom=certainty.chance_with_headroom,
        with_one_lost=with_one_lost,
        chance_with_one_lost=certainty.chance_with_one_lost,
        at_interval_ends=certainty.at_interval_ends,
        serve_command=commands.serve_command(candidate),
        simulate_command=commands.simulate_command(
            candidate, problem.load.words, share if asked is None else asked, size.replicas, router
        ),
        pools=None if apart is None else apart.pool_texts(size.replicas),
        pool_sizes=None if apart is None else apart.pool_sizes(size.replicas),
        memory=StartUp(deployment, candidate.engine).gib if limited_by == KV_MEMORY else None,
        fails_first=_fails_first(trials, beyond if late else _just_beyond(trials, rate) or beyond),
        assumptions=[
            *assumption_lines(deployment, _is_calibrated(candidate)),
            *([] if apart is None else apart.assumptions),
        ],
        is_partial=certainty.is_unknown,
    )
    return Row(choice, trials.tally.simulations)


def _checkpoint_bytes(candidate: Candidate) -> float:
    """Return the size of the checkpoint in bytes, before the engine quantizes it."""
    deployments = [candidate.deployment]
    row = {k: v for k, v in candidate.configuration.items() if k != "precision"}
    if candidate.configuration.get("precision") in commands.ON_THE_FLY:
        deployments.append(make_deployment({**row, "force": True}))
    return max(candidate.gpus * gpu_weight_bytes(each) for each in deployments)


def _is_calibrated(candidate: Candidate) -> bool:
    """Return whether a candidate's coefficients are calibrated to measurements of a server."""
    file = candidate.source
    return file != NETWORK and bool(read_coefficient_set(Path(file)).calibration)


def _per_million(
    cost_per_hour: float | None, rate_per_s: float, tokens: Int[np.ndarray, " requests"]
) -> float | None:
    """Return the cost of all GPUs per million tokens at a request rate; None if no price is known.

    At a rate of 0, the result is also None.
    """
    per_hour = 3600 * rate_per_s * float(tokens.mean())
    return None if cost_per_hour is None or per_hour == 0 else 1e6 * cost_per_hour / per_hour


@dataclass(frozen=True)
class _Certainty:
    """Uncertainty of a plan's row: intervals, seeds, and the probability of meeting the SLO.

    Attributes:
        together: Maximum rate of all replicas together, with its prediction interval.
        seeds_per_s: Maximum rate of one replica for each of several seeds of the load, in
            requests/s.
        chance: Probability of meeting the SLO.
        chance_with_headroom: Probability of meeting the SLO at the rate with headroom.
        chance_with_one_lost: Probability of meeting the SLO with one replica lost, if there are
            spare replicas.
        safe: Whether the SLO is met even if all times are at the upper bound of their intervals.
        at_interval_ends: Metrics of all replicas with all times at the upper and at the lower bound
            of their intervals.
        is_unknown: Whether time ran out before all other fields were estimated.
    """

    together: HighestRate
    seeds_per_s: Sequence[float]
    chance: float | None = None
    chance_with_headroom: float | None = None
    chance_with_one_lost: float | None = None
    safe: bool | None = None
    at_interval_ends: tuple[Point, Point] | None = None
    is_unknown: bool = False


def _lower_bound(sized: SizedFleet, sized_per_s: float | None) -> HighestRate:
    """Return a lower bound of the fleet's maximum rate: the rate for which it was sized."""
    many = sized_per_s is not None and sized.size.replicas > 1
    return HighestRate(sized_per_s, None) if many and sized_per_s else sized.rate


def _certainty(
    sized: SizedFleet, trials: Trials, problem: PlanningProblem, *, survives: bool
) -> _Certainty:
    """Estimate the uncertainty of a plan's row by additional simulations, until time runs out.

    The probability of meeting the SLO is estimated first.

    Args:
        sized: Fleet of replicas.
        trials: Simulations of one replica, within the time budget.
        problem: Load, rate and SLO.
        survives: Whether the fleet is predicted to meet the SLO with one replica lost.
    """
    known = _Certainty(
        _lower_bound(sized, problem.sized_rate_per_s), [sized.rate.per_s], is_unknown=True
    )
    size, asked, holds = sized.size, problem.rate_per_s, False
    with suppress(OutOfTimeError):
        trials.budget.check()
        share = sized.rate.per_s if asked is None else asked / size.replicas
        interval = fleet.interval_of(replace(trials, budget=UNLIMITED), share, problem.checkpoint)
        # The probability of meeting the SLO requires a requested rate and an interval. It is not
        # estimated if the load ends before servers are full, because a longer load would lower it.
        if interval is not None and asked is not None:
            if not size.is_burst:
                chance, holds = fleet.chance_to_hold(size, trials, interval, problem.workload)
                known = replace(known, chance=chance)
                if problem.headroom:
                    more, _ = fleet.chance_to_hold(size, trials, interval, problem.sized_for)
                    known = replace(known, chance_with_headroom=more)
                if problem.spare_replicas and survives:
                    rest = fleet.FleetSize(size.replicas - 1)
                    lost, _ = fleet.chance_to_hold(rest, trials, interval, problem.workload)
                    known = replace(known, chance_with_one_lost=lost)
            ends = fleet.at_interval_ends(size, trials, interval, problem)
            known = replace(known, at_interval_ends=ends)
        together = fleet.fleet_rate(size, trials, sized.rate, interval, problem)
        known = replace(known, together=together)
        if known.chance is not None and asked is not None:
            bad_end = together.interval_per_s[0] if together.interval_per_s else 0.0
            known = replace(known, safe=holds and bad_end >= asked)
        seeds = [sized.rate.per_s, *_other_draws(trials, sized.rate, problem)]
        known = replace(known, seeds_per_s=seeds, is_unknown=False)
    return known


def _as_generated(trials: Trials, rate: HighestRate, problem: PlanningProblem) -> HighestRate:
    """Return a maximum rate at which the load, generated at this rate, also meets the SLO.

    The search simulates subsets or repetitions of one load, which a user cannot reproduce. The rate
    is decreased in steps of the search's accuracy.
    """
    found = rate
    for _ in range(_MOST_STEPS_DOWN):
        run = trials.run_of(problem.load.draw(found.per_s))
        if trials.excess_of(run) <= 1:
            return found
        found = HighestRate(found.per_s / (1 + rate_search.WIDTH), found.per_s)
    return rate


def _ladder(trials: Trials, rate_per_s: float, shares: Sequence[float]) -> tuple[list[Point], Run]:
    """Return metrics at increasing fractions of the maximum rate, and the last run.

    The last run is above the maximum rate and misses the SLO.
    """
    points = []
    for share in shares:
        run = trials.run(share * rate_per_s)
        points.append(trials.point(run, share * rate_per_s))
    return points, run


def _just_beyond(trials: Trials, rate: HighestRate) -> Run | None:
    """Return the run at the lowest rate that misses the SLO; None if no such rate was found."""
    return None if rate.fails_per_s is None else trials.run(rate.fails_per_s)


def _fails_first(trials: Trials, beyond: Run) -> str:
    """Return the SLO limit that a run above the maximum rate exceeds most, as a string.

    A limit whose excess is unknown counts as exceeded most. For limits on each request, the string
    includes the one that the fewest requests meet.
    """
    latencies = latencies_s(beyond)
    worst = max(
        trials.slo.outcomes(latencies, beyond.gaps.per_token),
        key=lambda each: math.inf if each.excess is None else each.excess,
        default=None,
    )
    if worst is None:
        return ""
    each_s = {} if trials.slo.goodput is None else trials.slo.goodput.seconds
    if worst.share is None or len(each_s) < 2:
        return worst.limit
    met = {name: float(np.mean(~(latencies[name] > limit))) for name, limit in each_s.items()}
    first = min(met, key=lambda name: met[name])
    return f"{worst.limit}; only {100 * met[first]:.1f} % meet the {first.upper()} limit"


def _other_draws(trials: Trials, rate: HighestRate, problem: PlanningProblem) -> Iterator[float]:
    """Yield the maximum rate of one replica for each seed of the load after the first."""
    width = fleet.BAR_WIDTH
    for seed in range(1, len(problem.draws)):
        excess = replace(trials, load=problem.replica_load(seed)).excess
        yield rate_search.highest_rate(excess, rate.per_s, stride=1 + width, width=width)[0]
