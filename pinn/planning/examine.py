"""A whole look at the best candidates on one kind of hardware: the choice and all that is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from pinn.planning.bottleneck import limited_by, step_time_shares, time_shares
from pinn.planning.brief import Brief
from pinn.planning.candidates import ENGINE, Candidate
from pinn.planning.commands import serve_command, simulate_command
from pinn.planning.interval import chance_to_hold, prediction_interval
from pinn.planning.plan import Choice, Fleet, HighestRate, LeftOut, Point
from pinn.planning.search import WIDTH, highest_rate
from pinn.planning.trial import Trials
from pinn.simulator.engine_spec import ROUTINGS
from pinn.simulator.run import Run
from pinn.simulator.workloads.rate import at_rate
from pinn.simulator.workloads.workload import Workload

#: Rates of a choice's ladder, as shares of the highest that it holds.
_LADDER = (0.25, 0.5, 0.7, 0.85, 1.0, 1.1)
#: A load balancer sends each replica a more even load than thinning does; no replica of a fleet is
#: expected to hold more than this many times what a lone one does.
_BALANCED_GAIN = 2.0
#: Width of the bisections behind an error bar.
_BAR_WIDTH = 0.02
#: Replicas that a fleet may need beyond what thinning says, before it is given up.
_MORE_REPLICAS = 2


@dataclass(frozen=True)
class Examined:
    """What a whole look found.

    Attributes:
        choice: None where nothing holds the limits with the GPUs there are.
        left_out: Candidates that are not the choice.
        simulations: Runs that it took.
    """

    choice: Choice | None
    left_out: Sequence[LeftOut]
    simulations: int


@dataclass(frozen=True)
class Sized:
    """Replicas for a rate, and how they serve it together.

    Attributes:
        replicas: How many.
        fleets: Them under every routing; none without a rate.
    """

    replicas: int
    fleets: Sequence[Fleet]


def examine(kept: Sequence[tuple[Candidate, float]], brief: Brief) -> Examined:
    """Search the highest rate on the whole load, size the fleet, and say how sure that is."""
    found, left_out, simulations = _best(kept, brief)
    if found is None:
        return Examined(None, left_out, simulations)
    trials, rate, fails = found
    sized = _sized(trials, rate, brief)
    if sized is None:
        reason = f"holds {rate:.3g} requests/s alone, but no fleet holds the asked rate together"
        left_out.append(_left_out(trials.candidate, reason))
        return Examined(None, left_out, simulations + trials.count)
    gpus = sized.replicas * trials.candidate.gpus
    if brief.max_gpus is not None and gpus > brief.max_gpus:
        reason = f"needs {gpus} GPUs at {rate:.3g} requests/s a replica, {brief.max_gpus} may be"
        left_out.append(_left_out(trials.candidate, reason))
        return Examined(None, left_out, simulations + trials.count)
    choice = _choice(trials, HighestRate(rate, fails), sized, brief)
    return Examined(choice, left_out, simulations + trials.count)


def _best(
    kept: Sequence[tuple[Candidate, float]], brief: Brief
) -> tuple[tuple[Trials, float, float | None] | None, list[LeftOut], int]:
    """The candidate with the highest rate on the whole load; the others are left out."""
    best: tuple[Trials, float, float | None] | None = None
    left_out: list[LeftOut] = []
    simulations = 0
    for candidate, guess in kept:
        trials = Trials(candidate, brief.replica_load(), brief.limits)
        if best is not None and trials.excess(best[1] * (1 + WIDTH)) > 1:
            reason = f"holds no more than the {best[1]:.3g} requests/s of {best[0].candidate.label}"
            left_out.append(_left_out(candidate, reason))
            simulations += trials.count
            continue
        rate, fails = highest_rate(trials.excess, max(guess, best[1] if best else 0), stride=1.03)
        if rate > 0 and (best is None or rate > best[1]):
            if best is not None:
                reason = f"holds {best[1]:.3g} requests/s, {candidate.label} {rate:.3g}"
                left_out.append(_left_out(best[0].candidate, reason))
                simulations += best[0].count
            best = (trials, rate, fails)
        else:
            left_out.append(_left_out(candidate, f"holds {rate:.3g} requests/s on the whole load"))
            simulations += trials.count
    return best, left_out, simulations


def _sized(trials: Trials, rate_per_s: float, brief: Brief) -> Sized | None:
    """The fewest replicas that hold the asked rate under every routing, by bisection.

    None where not even a few more than the highest rate says hold it.
    """
    asked = brief.rate_per_s
    if asked is None:
        return Sized(1, ())
    workload = at_rate(brief.workload, asked)

    def holds(replicas: int) -> bool:
        excesses = (trials.fleet_excess(workload, replicas, how) for how in _routings(replicas))
        return all(excess <= 1 for excess in excesses)

    enough = first = max(math.ceil(asked / rate_per_s - 1e-9), 1)
    while not holds(enough):
        enough += 1
        if enough > first + _MORE_REPLICAS:
            return None
    too_few = max(math.ceil(asked / rate_per_s / _BALANCED_GAIN), 1) - 1
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if holds(middle):
            enough = middle
        else:
            too_few = middle
    return Sized(enough, _fleets(trials, workload, asked, enough))


def _routings(replicas: int) -> tuple[str, ...]:
    """One stands for all where there is nothing to choose."""
    return ROUTINGS if replicas > 1 else ROUTINGS[:1]


def _fleets(trials: Trials, workload: Workload, rate_per_s: float, replicas: int) -> list[Fleet]:
    gpus = replicas * trials.candidate.gpus
    runs = ((how, trials.fleet(workload, replicas, how)) for how in _routings(replicas))
    return [Fleet(how, trials.point(run, rate_per_s, gpus)) for how, run in runs]


def _choice(trials: Trials, rate: HighestRate, sized: Sized, brief: Brief) -> Choice:
    candidate, asked = trials.candidate, brief.rate_per_s
    share = rate.per_s if asked is None else asked / sized.replicas
    run = trials.run(share)
    ladder, beyond = _ladder(trials, rate.per_s)
    seeds = [rate.per_s, *_other_seeds(trials, rate.per_s, brief)]
    rate = replace(rate, seeds_per_s=seeds)
    rate, chance, safe = _interval(trials, rate, sized.replicas, run, brief)
    gpus = sized.replicas * candidate.gpus
    at_rate = trials.point(run, share, candidate.gpus)
    output_per_s = sized.replicas * share * float(brief.workload.output_tokens.mean())
    cost = brief.price_per_hour(candidate.deployment.gpu.name, gpus)
    deployment = candidate.deployment
    formats = {k: p.name for k, p in vars(deployment.model.precisions).items()}
    return Choice(
        label=candidate.label,
        engine=ENGINE,
        gpu=deployment.gpu.name,
        gpus_per_replica=candidate.gpus,
        replicas=sized.replicas,
        gpus=gpus,
        formats=formats | {"kv_cache": deployment.kv_cache_precision.name},
        flags=asdict(deployment.serving),
        coefficients=candidate.source,
        highest_rate=rate,
        utilization=None if asked is None else asked / (sized.replicas * rate.per_s),
        at_rate=at_rate,
        cost_per_hour=cost,
        cost_per_million_output_tokens=None if cost is None else cost / output_per_s / 3600 * 1e6,
        limited_by=limited_by(beyond, candidate.latency),
        chance=chance,
        safe=safe,
        ladder=ladder,
        step_time=step_time_shares(run, candidate.latency),
        limits_time=time_shares(run, candidate.latency),
        fleets=sized.fleets,
        serve_command=serve_command(candidate),
        simulate_command=simulate_command(
            candidate, brief.path, share if asked is None else asked, sized.replicas, brief.seed
        ),
    )


def _ladder(trials: Trials, rate_per_s: float) -> tuple[list[Point], Run]:
    """Runs at rising rates, and the last of them, beyond the limits."""
    points = []
    for share in _LADDER:
        run = trials.run(share * rate_per_s)
        points.append(trials.point(run, share * rate_per_s, trials.candidate.gpus))
    return points, run


def _other_seeds(trials: Trials, rate_per_s: float, brief: Brief) -> list[float]:
    """The highest rate of every other draw of the load."""
    found = []
    for seed in range(1, len(brief.draws)):
        other = Trials(trials.candidate, brief.replica_load(seed), brief.limits)
        found.append(highest_rate(other.excess, rate_per_s, stride=1.03, width=_BAR_WIDTH)[0])
        trials.count += other.count
    return found


def _interval(
    trials: Trials, rate: HighestRate, replicas: int, run: Run, brief: Brief
) -> tuple[HighestRate, float | None, bool | None]:
    """The highest rate at both ends of the prediction's interval; the fleet's chance and safety."""
    candidate = trials.candidate
    if candidate.is_calibrated:
        return rate, None, None
    interval = prediction_interval(brief.checkpoint, candidate.deployment, run)
    if interval is None:
        return rate, None, None
    ends = []
    for way in (1, -1):
        other = replace(trials, misjudged=interval.at(way), count=0)
        guess = rate.per_s * math.exp(-way * interval.bad.step)
        ends.append(highest_rate(other.excess, guess, stride=1.1, width=_BAR_WIDTH)[0])
        trials.count += other.count
    rate = replace(rate, interval_per_s=(ends[0], ends[1]), level=interval.level)
    if brief.rate_per_s is None:
        return rate, None, None
    workload = at_rate(brief.workload, brief.rate_per_s)

    def holds(error: float) -> bool:
        other = replace(trials, misjudged=interval.at(error), count=0)
        found = other.fleet_excess(workload, replicas, ROUTINGS[-1]) <= 1
        trials.count += other.count
        return found

    return rate, *chance_to_hold(holds, interval.level)


def _left_out(candidate: Candidate, reason: str) -> LeftOut:
    return LeftOut(candidate.label, candidate.deployment.gpu.name, reason, simulated=True)
