"""How many replicas serve the asked rate, what they hold together, and how likely that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pinn.planning.brief import Brief
from pinn.planning.candidates import Candidate
from pinn.planning.interval import Interval
from pinn.planning.plan import Fleet, HighestRate
from pinn.planning.search import highest_rate
from pinn.planning.trial import Trials
from pinn.simulator.engine_spec import ROUTINGS
from pinn.simulator.workloads.workload import Workload

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
    workload = brief.workload
    enough = first = max(math.ceil(asked / rate_per_s - 1e-9), 1)
    while not (fleets := _holding_fleets(trials, workload, asked, enough)):
        enough += 1
        if enough > first + max(_MORE_REPLICAS, _MORE_SHARE * first):
            return None
    found = Sized(enough, fleets)
    too_few = max(math.ceil(asked / rate_per_s / BALANCED_GAIN), 1) - 1
    while found.replicas - too_few > 1 and not found.is_burst:
        middle = (found.replicas + too_few) // 2
        fleets = _holding_fleets(trials, workload, asked, middle)
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
        together = _highest_together(sized, trials, guess, asked)
    if interval is None:
        return together
    ends = []
    for way in (1, -1):
        other = replace(trials, misjudged=interval.at(way), count=0)
        guess = together.per_s * math.exp(-way * interval.bad.step)
        ends.append(_highest_together(sized, other, guess, asked).per_s)
        trials.count += other.count
    return replace(together, interval_per_s=(ends[0], ends[1]), level=interval.level)


def _highest_together(
    sized: Sized, trials: Trials, guess: float, asked: float | None
) -> HighestRate:
    """By bisection; the asked rate is tried where it lies between what holds and what fails."""
    routing = routings(trials.candidate, sized.replicas)[-1]

    def excess(rate_per_s: float) -> float:
        if sized.replicas == 1:
            return trials.excess(rate_per_s)
        return trials.fleet_excess_at(rate_per_s, sized.replicas, routing)

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
