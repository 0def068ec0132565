"""Fleets of replicas: size for a requested rate, joint maximum rate, and uncertainty."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from pathlib import Path

from pinn.calibration.posterior import server_half_widths
from pinn.common.numbers import amount
from pinn.engines.deployment import Deployment
from pinn.engines.routers import LEAST_REQUESTS, RANDOM
from pinn.errors import PinnError
from pinn.planning.candidate import NETWORK, Candidate
from pinn.planning.plan import Fleet, HighestRate, Point
from pinn.planning.problem import PlanningProblem
from pinn.planning.rate_search import highest_rate
from pinn.planning.time_budget import UNLIMITED, OutOfTimeError, TimeBudget
from pinn.planning.trials import ErrorScenario, Trials
from pinn.simulator.intervals import standing_step
from pinn.simulator.workloads.workload import Workload
from pinn.surrogate.coefficient_set import read_coefficient_set
from pinn.surrogate.encoder_time import HALF_WIDTH
from pinn.surrogate.uncertainty.distance import gpu_is_known
from pinn.surrogate.uncertainty.intervals import read_calibration
from pinn.surrogate.uncertainty.quantiles import LEVEL, ErrorLaw, normal_law

#: Upper bound of a fleet's rate per replica, relative to the maximum rate of a single replica. A
#: replica in a fleet can sustain a higher rate, because a load balancer distributes requests more
#: evenly than the random subset with which a single replica is simulated.
BALANCED_GAIN = 2.0
#: The search gives up after trying this many replicas more than the estimate from one replica: a
#: fixed number or a share of the estimate, whichever is larger.
_MORE_REPLICAS, _MORE_SHARE = 2, 0.25
#: Maximum number of replicas for a requested probability of meeting the SLO, relative to the number
#: with which the predicted latencies meet the SLO.
_MOST_TIMES = 8
#: Bisection for a fleet's maximum rate. ``BAR_WIDTH``: relative distance between a passing and a
#: failing rate at which the bisection ends. ``_BAR_STRIDE``: ratio between its first rates.
BAR_WIDTH, _BAR_STRIDE = 0.02, 1.05


@dataclass(frozen=True)
class PredictionInterval:
    """Interval of predicted times, and the distribution of prediction errors.

    Attributes:
        bad: Prediction errors for which all times are at the upper bound of their intervals.
        level: Nominal coverage of the interval, such as 0.9.
        law: Distribution of prediction errors, in half-widths of the interval.
    """

    bad: ErrorScenario
    level: float
    law: ErrorLaw

    def at(self, half_widths: float) -> ErrorScenario:
        """Return prediction errors of ``half_widths`` half-widths; 1 puts times at upper bounds."""
        return ErrorScenario(*(half_widths * error for error in astuple(self.bad)))


def interval_of(trials: Trials, rate_per_s: float, checkpoint: Path) -> PredictionInterval | None:
    """Return the interval of a candidate's predicted times.

    For calibrated coefficients, it is the interval of their calibration, with normally distributed
    errors. None is returned if neither the checkpoint nor the coefficient file has an interval.

    Args:
        trials: Simulations of one replica of the candidate.
        rate_per_s: Rate of this replica in requests/s, which determines the batches in which steps
            are predicted.
        checkpoint: Checkpoint that makes the predictions.
    """
    candidate = trials.candidate
    if candidate.source == NETWORK:
        return prediction_interval(checkpoint, *candidate.deployments)
    found = read_coefficient_set(Path(candidate.source))
    if found.covariance is None:
        return None
    batch = standing_step(trials.run(rate_per_s))
    step, request = server_half_widths(found, candidate.deployment, batch)
    return PredictionInterval(ErrorScenario(step, request, HALF_WIDTH), LEVEL, normal_law())


def prediction_interval(checkpoint: Path, *deployments: Deployment) -> PredictionInterval | None:
    """Return the interval of predicted times; None if the checkpoint has no intervals.

    Args:
        checkpoint: Checkpoint that makes the predictions.
        deployments: Predicted deployments; with several, the widest interval of any applies to all.
    """
    try:
        calibration = read_calibration(checkpoint)
        known = [gpu_is_known(checkpoint, deployment) for deployment in deployments]
    except PinnError:
        return None
    step, request = (
        max(calibration.half_width(metric, *each) for each in zip(deployments, known, strict=True))
        for metric in ("tpot", "ttft")
    )
    return PredictionInterval(
        ErrorScenario(step, request, HALF_WIDTH), calibration.level, calibration.error_law("tpot")
    )


@dataclass(frozen=True)
class FleetSize:
    """Number of replicas for a request rate, and joint simulations of these replicas.

    Attributes:
        replicas: Number of replicas.
        fleets: Run of these replicas at the requested rate, behind the router; empty if no rate is
            requested.
    """

    replicas: int
    fleets: Sequence[Fleet] = ()

    @property
    def is_burst(self) -> bool:
        """Whether the load ends before servers are as heavily loaded as under a sustained load."""
        return any(fleet.point.is_burst for fleet in self.fleets)


def fewest_replicas(
    trials: Trials, rate_per_s: float, problem: PlanningProblem, budget: TimeBudget = UNLIMITED
) -> FleetSize | None:
    """Return the minimum number of replicas that sustain the requested rate, by bisection.

    The rate includes the headroom. The first guess of the number follows from ``rate_per_s``, the
    maximum rate of one replica. None is returned if a few more replicas than guessed, or the
    maximum within the GPU limit, also miss the SLO. A run that ends before servers are fully loaded
    does not prove that fewer replicas suffice. Without headroom, the fleet must also meet the SLO
    with other seeds of the load, unless ``budget`` is exhausted. With headroom, its maximum rate
    must be at least the rate with headroom.
    """
    asked, least = problem.sized_rate_per_s, problem.least_replicas
    if asked is None:
        return FleetSize(1)
    fleets: list[Fleet] = []
    first = max(math.ceil(asked / rate_per_s - 1e-9), least)
    most = most_replicas(trials.candidate, rate_per_s, problem)
    enough = min(first, most)
    while least <= enough <= most and not fleets:
        fleets = _holding_fleets(trials, problem, enough)
        enough += 1
    if not fleets:
        return None
    found = FleetSize(enough - 1, fleets)
    too_few = max(math.ceil(asked / rate_per_s / BALANCED_GAIN), least) - 1
    while found.replicas - too_few > 1 and not found.is_burst:
        middle = (found.replicas + too_few) // 2
        fleets = _holding_fleets(trials, problem, middle)
        if fleets and not FleetSize(middle, fleets).is_burst:
            found = FleetSize(middle, fleets)
        else:
            too_few = middle
    timed = replace(trials, budget=budget)
    with suppress(OutOfTimeError):
        if problem.headroom:
            found = _with_rate(found, timed, rate_per_s, problem)
        else:
            found = _with_other_seeds(found, timed, problem)
    return found


def most_replicas(candidate: Candidate, rate_per_s: float, problem: PlanningProblem) -> int:
    """Return the maximum number of replicas that :func:`fewest_replicas` tries first."""
    guess = math.ceil((problem.sized_rate_per_s or 0.0) / rate_per_s - 1e-9)
    most = _most_replicas(max(guess, problem.least_replicas))
    return int(min(most, _replicas_within(candidate, problem)))


def _replicas_within(candidate: Candidate, problem: PlanningProblem) -> float:
    """Return the maximum number of a candidate's replicas within the limit on GPUs."""
    return math.inf if problem.max_gpus is None else problem.max_gpus // candidate.gpus


def with_probability(
    found: FleetSize, trials: Trials, problem: PlanningProblem
) -> FleetSize | None:
    """Add replicas to a fleet until it meets the SLO with the requested probability.

    The fleet is returned unchanged if no probability is requested or none can be computed. None is
    returned if no number of replicas within the limits reaches the probability.
    """
    interval = None
    if problem.min_probability is not None and not found.is_burst:
        share = (problem.rate_per_s or 0.0) / found.replicas
        interval = interval_of(trials, share, problem.checkpoint)
    if interval is None:
        return found
    error = interval.law.error_at(problem.min_probability or 0.0)
    worse = replace(trials, scenario=interval.at(error))

    def reaches(n: int) -> bool:
        router = router_of(trials.candidate, n)
        return error <= 0 or worse.fleet_excess(problem.workload, n, router) <= 1

    most = min(_MOST_TIMES * found.replicas, _replicas_within(trials.candidate, problem))
    too_few, enough = found.replicas - 1, found.replicas
    while not reaches(enough):
        if enough >= most:
            return None
        too_few, enough = enough, int(min(2 * enough, most))
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        too_few, enough = (too_few, middle) if reaches(middle) else (middle, enough)
    if enough == found.replicas:
        return found
    fleets = _holding_fleets(trials, problem, enough)
    return FleetSize(enough, fleets) if fleets else None


def _most_replicas(guess: int) -> float:
    return guess + max(_MORE_REPLICAS, _MORE_SHARE * guess)


def _with_rate(
    found: FleetSize, trials: Trials, rate_per_s: float, problem: PlanningProblem
) -> FleetSize:
    """Add replicas to a fleet until its maximum rate reaches the requested rate with headroom.

    This can be necessary because the search for the maximum rate simulates different requests than
    a run at the requested rate. If a few more replicas do not help, the fleet is returned
    unchanged.

    Args:
        found: Fleet that meets the SLO at the requested rate, with headroom.
        trials: Simulations of one replica.
        rate_per_s: Maximum rate of one replica.
        problem: Load, rate and SLO.
    """
    size, asked = found, problem.sized_rate_per_s or 0.0
    while size.replicas <= _most_replicas(found.replicas):
        n = size.replicas
        if size.fleets and (
            rate_per_s >= asked
            if n == 1
            else trials.excess(asked, n, router_of(trials.candidate, n)) <= 1
        ):
            return size
        size = FleetSize(n + 1, _holding_fleets(trials, problem, n + 1))
    return found


def _with_other_seeds(found: FleetSize, trials: Trials, problem: PlanningProblem) -> FleetSize:
    """Add replicas to a fleet until it meets the SLO with every seed of the load.

    A fleet that barely meets a limit with one seed may miss it with another. If a few more replicas
    do not help, the fleet is returned unchanged.
    """
    size = found
    while size.replicas <= _most_replicas(found.replicas):
        router = router_of(trials.candidate, size.replicas)
        excess = partial(trials.fleet_excess, replicas=size.replicas, router=router)
        if size.fleets and all(excess(draw) <= 1 for draw in problem.draws[1:]):
            return size
        more = size.replicas + 1
        size = FleetSize(more, _holding_fleets(trials, problem, more))
    return found


def with_spares(found: FleetSize, trials: Trials, problem: PlanningProblem) -> FleetSize:
    """Add the requested number of spare replicas to a fleet that meets the SLO without them."""
    if not problem.spare_replicas:
        return found
    n, asked = found.replicas + problem.spare_replicas, problem.rate_per_s or 0.0
    router = router_of(trials.candidate, n)
    run = trials.fleet(problem.workload, n, router, may_end=False)
    fleets = [] if run is None else [Fleet(router, trials.point(run, asked, n))]
    return FleetSize(n, fleets)


def with_one_lost(size: FleetSize, trials: Trials, problem: PlanningProblem) -> Point | None:
    """Return the metrics at the requested rate of a fleet that has lost one of its replicas.

    None is returned without a requested rate, and for one replica, without which nothing is served.
    """
    n, asked = size.replicas - 1, problem.rate_per_s
    if asked is None or n == 0:
        return None
    run = trials.fleet(problem.workload, n, router_of(trials.candidate, n), may_end=False)
    return None if run is None else trials.point(run, asked, n)


def may_do_with_fewer(replicas: int, trials: Trials, problem: PlanningProblem) -> bool:
    """Return whether fewer than ``replicas`` replicas of a candidate sustain the requested rate.

    ``replicas`` excludes spare replicas. Only ``replicas`` - 1 replicas are simulated.
    """
    if problem.rate_per_s is None or replicas <= problem.least_replicas:
        return False
    router = router_of(trials.candidate, replicas - 1)
    return trials.fleet_excess(problem.sized_for, replicas - 1, router) <= 1


def fleet_rate(
    size: FleetSize,
    trials: Trials,
    one: HighestRate,
    interval: PredictionInterval | None,
    problem: PlanningProblem,
) -> HighestRate:
    """Return the maximum rate that all replicas sustain together, behind the router.

    A fleet may sustain a higher rate than the sum of its replicas' rates: the router balances the
    requests, whereas a single replica is simulated with random arrivals.

    Args:
        size: Fleet to simulate.
        trials: Simulations of one replica.
        one: Maximum rate of one replica.
        interval: Interval of the prediction; None if there is no interval.
        problem: Load, rate and SLO.
    """
    asked, replicas = problem.sized_rate_per_s, size.replicas
    together, guess = one, replicas * one.per_s
    if replicas > 1:
        together = _highest_of_all(size, trials, guess, asked)
    if interval is None:
        return together
    ends = []
    for way in (1, -1):
        guess = together.per_s * math.exp(-way * interval.bad.step)
        other = replace(trials, scenario=interval.at(way))
        ends.append(_highest_of_all(size, other, guess, asked).per_s)
    return replace(together, interval_per_s=(ends[0], ends[1]), level=interval.level)


def _highest_of_all(
    size: FleetSize, trials: Trials, guess: float, asked: float | None
) -> HighestRate:
    """Return the fleet's maximum rate by bisection.

    If the requested rate lies between the highest passing and the lowest failing rate, it is also
    simulated.
    """
    router = router_of(trials.candidate, size.replicas)
    excess = partial(trials.excess, replicas=size.replicas, router=router)
    low, high = highest_rate(excess, guess, stride=_BAR_STRIDE, width=BAR_WIDTH)
    if asked is not None and low < asked < (high or math.inf) and excess(asked) <= 1:
        low = asked
    return HighestRate(low, high)


def chance_to_hold(
    size: FleetSize, trials: Trials, interval: PredictionInterval, load: Workload
) -> tuple[float, bool]:
    """Return the probability that a fleet meets the SLO, and whether it does with longer times.

    ``load`` is the load of the whole fleet, under which it meets the SLO with predicted times.

    The longer times are the upper bounds of the prediction intervals. The probability is the share
    of equally likely prediction errors with which the SLO is met. The share is found by bisection
    over the sorted errors.
    """
    router = router_of(trials.candidate, size.replicas)

    @cache
    def holds(error: float) -> bool:
        if error <= 0:  # times as predicted or shorter, with which the fleet meets the SLO
            return True
        other = replace(trials, scenario=interval.at(error))
        return other.fleet_excess(load, size.replicas, router) <= 1

    return interval.law.held(holds), holds(1.0)


def at_interval_ends(
    size: FleetSize, trials: Trials, interval: PredictionInterval, problem: PlanningProblem
) -> tuple[Point, Point] | None:
    """Return the fleet's metrics at the requested rate, at both bounds of the times' interval.

    The upper bound comes first. None is returned if no rate is requested.
    """
    if problem.rate_per_s is None:
        return None
    n, router, points = size.replicas, router_of(trials.candidate, size.replicas), []
    for way in (1, -1):
        run = replace(trials, scenario=interval.at(way)).fleet(
            problem.workload, n, router, may_end=False
        )
        if run is None:
            return None
        points.append(trials.point(run, problem.rate_per_s, n))
    return points[0], points[1]


def router_of(candidate: Candidate, replicas: int) -> str:
    """Return the policy for routing requests to the replicas.

    For a single replica, it is the policy of the engine's load balancer over data-parallel ranks.
    """
    engine = candidate.engine
    if replicas > 1:
        return engine.router or LEAST_REQUESTS
    return engine.data_parallel_routing or candidate.deployment.recipe.routing


def many(replicas: int, candidate: Candidate) -> str:
    """Return a number of replicas as a string; for several replicas, with the router."""
    behind = f" behind --router {router_of(candidate, replicas)}" if replicas > 1 else ""
    return f"{amount(replicas, 'replica')}{behind}"


def by_chance(size: FleetSize, trials: Trials, problem: PlanningProblem) -> list[Fleet]:
    """Return, as a list, the fleet's metrics behind a random router (a Kubernetes Service).

    The plan shows them for comparison. The list is empty if there is no rate or only one replica,
    if the plan's own router is random, or if there are too many replicas to simulate.
    """
    asked = problem.rate_per_s
    if asked is None or size.replicas == 1 or not size.fleets or size.fleets[-1].routing == RANDOM:
        return []
    run = trials.fleet(problem.workload, size.replicas, RANDOM, may_end=False)
    if run is None:
        return []
    return [Fleet(RANDOM, trials.point(run, asked, size.replicas))]


def with_headroom(size: FleetSize, trials: Trials, problem: PlanningProblem) -> Point | None:
    """Return the fleet's metrics at the requested rate plus headroom; None if there is none."""
    sized = problem.sized_rate_per_s
    if not problem.headroom or sized is None:
        return None
    router = router_of(trials.candidate, size.replicas)
    run = trials.fleet(problem.sized_for, size.replicas, router, may_end=False)
    return None if run is None else trials.point(run, sized, size.replicas)


def _holding_fleets(trials: Trials, problem: PlanningProblem, n: int) -> list[Fleet]:
    """Return, as a list, the metrics of ``n`` replicas at the requested rate if they meet the SLO.

    The list is empty if they miss the SLO at this rate, or at this rate with headroom.
    """
    asked, router = problem.rate_per_s, router_of(trials.candidate, n)
    run = trials.fleet(problem.sized_for, n, router)
    if run is None or trials.excess_of(run) > 1:
        return []
    if problem.headroom:
        run = trials.fleet(problem.workload, n, router)
        if run is None or trials.excess_of(run) > 1:
            return []
    return [Fleet(router, trials.point(run, asked or 0.0, n))]
