"""How many replicas serve the asked rate, and how likely they hold the limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pinn.planning.brief import Brief
from pinn.planning.candidates import Candidate
from pinn.planning.interval import Interval
from pinn.planning.plan import Fleet
from pinn.planning.trial import Trials
from pinn.simulator.engine_spec import ROUTINGS
from pinn.simulator.workloads.rate import at_rate
from pinn.simulator.workloads.workload import Workload

#: A load balancer sends each replica a more even load than thinning does; no replica of a fleet is
#: expected to hold more than this many times what a lone one does.
BALANCED_GAIN = 2.0
#: Replicas that a fleet may need beyond what thinning says, before it is given up: so many, or
#: this share.
_MORE_REPLICAS, _MORE_SHARE = 2, 0.25
#: Replicas of another kind are tried from this share fewer than the best's on.
_FEWER_SHARE = 0.1
#: A chance of 1 that was divided by replicas and multiplied with them again is less by no more.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Sized:
    """Replicas for a rate, and how they serve it together.

    Attributes:
        replicas: How many.
        fleets: Them under every routing; none without a rate.
        chance: That they hold the limits; None where the prediction has no interval.
        safe: Whether they do at the interval's bad end.
    """

    replicas: int
    fleets: Sequence[Fleet] = ()
    chance: float | None = None
    safe: bool | None = None

    @property
    def worth(self) -> float:
        """Expected service within the limits for each replica; 1 is all by one."""
        return (1.0 if self.chance is None else self.chance) / self.replicas


def fewest_replicas(trials: Trials, rate_per_s: float, brief: Brief) -> Sized | None:
    """The fewest replicas that hold the asked rate under every routing, by bisection.

    None where not even a few more than the highest rate says hold it.
    """
    asked = brief.rate_per_s
    if asked is None:
        return Sized(1)
    workload = at_rate(brief.workload, asked)
    enough = first = max(math.ceil(asked / rate_per_s - 1e-9), 1)
    while not (fleets := _holding_fleets(trials, workload, asked, enough)):
        enough += 1
        if enough > first + max(_MORE_REPLICAS, _MORE_SHARE * first):
            return None
    too_few = max(math.ceil(asked / rate_per_s / BALANCED_GAIN), 1) - 1
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        found = _holding_fleets(trials, workload, asked, middle)
        if found:
            enough, fleets = middle, found
        else:
            too_few = middle
    return Sized(enough, fleets)


def worth_most(fewest: Sized, trials: Trials, interval: Interval, brief: Brief) -> Sized:
    """As many replicas as are expected to serve most within the limits for their price.

    Args:
        fewest: Those that hold the limits as predicted.
        trials: Of one replica.
        interval: How wrong the prediction may be.
        brief: What is asked, with a rate.
    """
    asked = brief.rate_per_s
    assert asked is not None, "replicas are for a rate"
    workload = at_rate(brief.workload, asked)
    best, replicas = _with_chance(fewest, trials, interval, workload), fewest.replicas
    while best.worth * (replicas := replicas + 1) < 1 and _may_be_rented(replicas, trials, brief):
        if not _beats(best, replicas, trials, interval, workload):
            continue
        fleets = _holding_fleets(trials, workload, asked, replicas)
        if fleets:
            more = _with_chance(Sized(replicas, fleets), trials, interval, workload)
            best = max(best, more, key=lambda sized: sized.worth)
    return best


def may_be_worth_more(best: Sized, trials: Trials, interval: Interval | None, brief: Brief) -> bool:
    """Whether replicas of another kind hold what would make them worth more than the best.

    A few runs tell: from a few replicas less on, each number of them at the least error that has
    to be held beyond the best's.

    Args:
        best: Of the same GPUs, and how often they hold the limits.
        trials: Of the other kind.
        interval: How wrong the prediction may be; None where it has no interval.
        brief: What is asked.
    """
    if brief.rate_per_s is None:
        return False
    workload = at_rate(brief.workload, brief.rate_per_s)
    fewer = max(round(_FEWER_SHARE * best.replicas), 1)
    replicas = max(best.replicas - fewer, 1)
    while best.worth * replicas < 1 and _may_be_rented(replicas, trials, brief):
        if _beats(best, replicas, trials, interval, workload):
            return True
        replicas += 1
    return False


def _beats(
    best: Sized, replicas: int, trials: Trials, interval: Interval | None, workload: Workload
) -> bool:
    """Whether replicas hold the least error that has to be held to be worth more than the best."""
    needed = best.worth * replicas
    if needed > 1 - _ROUNDING:  # so many are worth no more than if they held the limits for sure
        return False
    error = 0.0 if interval is None else max(interval.law.beyond(needed), 0.0)
    return _holds(trials, interval, error, workload, replicas)


def _may_be_rented(replicas: int, trials: Trials, brief: Brief) -> bool:
    return brief.max_gpus is None or replicas * trials.candidate.gpus <= brief.max_gpus


def _holds(
    trials: Trials, interval: Interval | None, error: float, workload: Workload, replicas: int
) -> bool:
    """Whether replicas hold the limits with all times off by an error of the law."""
    misjudged = trials.misjudged if interval is None else interval.at(error)
    other = replace(trials, misjudged=misjudged, count=0)
    excess = other.fleet_excess(workload, replicas, routings(trials.candidate, replicas)[-1])
    trials.count += other.count
    return excess <= 1


def _with_chance(sized: Sized, trials: Trials, interval: Interval, workload: Workload) -> Sized:
    known: dict[float, bool] = {}

    def holds(error: float) -> bool:
        if error <= 0:  # the fleet holds the limits as predicted
            return True
        if error not in known:
            known[error] = _holds(trials, interval, error, workload, sized.replicas)
        return known[error]

    chance = interval.law.held(holds)
    held = [error for error, held in known.items() if held]
    failed = [error for error, held in known.items() if not held]
    safe = max(held, default=0) >= 1 or (min(failed, default=math.inf) > 1 and holds(1.0))
    return replace(sized, chance=chance, safe=safe)


def routings(candidate: Candidate, replicas: int) -> tuple[str, ...]:
    """Of a load balancer; a replica by itself spreads requests as its engine does."""
    own = candidate.engine.data_parallel_routing or candidate.deployment.recipe.routing
    return ROUTINGS if replicas > 1 else (own,)


def _holding_fleets(
    trials: Trials, workload: Workload, rate_per_s: float, replicas: int
) -> list[Fleet]:
    """Replicas under every routing; none where one of them misses a limit."""
    found = []
    for how in routings(trials.candidate, replicas):
        run = trials.fleet(workload, replicas, how)
        if run is None or trials.excess_of(run) > 1:
            return []
        gpus = replicas * trials.candidate.gpus
        found.append(Fleet(how, trials.point(run, rate_per_s, gpus)))
    return found
