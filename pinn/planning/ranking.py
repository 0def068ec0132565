"""Order of a plan's search: hardware to screen first, hardware to evaluate, rank of rows."""

import math
from collections.abc import Mapping, Sequence

from pinn.common.numbers import number
from pinn.planning.candidate import NETWORK, Candidate
from pinn.planning.evaluation import SizedFleet
from pinn.planning.plan import Choice
from pinn.planning.pools import PoolsCandidate
from pinn.planning.problem import PlanningProblem
from pinn.planning.screening import guessed_rate_per_s

#: Assumed relative error of a screened maximum rate. A candidate is evaluated further if, within
#: this error, it may be as cheap as the cheapest.
_SCREENING_ERROR = 0.2

#: Cost of a fleet, for sorting: (whether only other GPUs have a price; price per hour or number of
#: GPUs).
Expense = tuple[bool, float]
_NO_FLEETS: Mapping[int, Expense] = {}


def screening_order(
    groups: Sequence[Sequence[Candidate]], problem: PlanningProblem
) -> tuple[list[int], list[int]]:
    """Return the indices of hardware that must be screened, and of all other hardware.

    In both lists, the most promising hardware comes first. The first list contains the most
    promising hardware for each GPU, for each engine, and with and without disaggregated
    prefill/decode.

    Args:
        groups: Candidates of each hardware configuration.
        problem: Load and prices.
    """
    # One candidate represents all candidates with the same hardware, because their estimated rates
    # hardly differ.
    guesses = [
        _expense(group[0], guessed_rate_per_s(group[0], problem), problem, whole=False)
        for group in groups
    ]
    ordered = sorted(range(len(groups)), key=lambda i: guesses[i])
    return firsts({i: groups[i][0] for i in ordered})


def firsts(candidates: Mapping[int, Candidate]) -> tuple[list[int], list[int]]:
    """Split indices into the first ones for each GPU, engine and serving mode, and the others.

    Args:
        candidates: One candidate of each hardware configuration, by its index, most promising
            first.
    """
    gpus, ways = set(), set()
    found: tuple[list[int], list[int]] = ([], [])
    for i, candidate in candidates.items():
        gpu, way = candidate.deployment.gpu.name, _way(candidate)
        found[gpu in gpus and way in ways].append(i)
        gpus.add(gpu)
        ways.add(way)
    return found


def _way(candidate: Candidate) -> tuple[str, bool]:
    """Return a candidate's engine, and whether it disaggregates prefill and decode."""
    return candidate.deployment.serving.engine, isinstance(candidate, PoolsCandidate)


def _expense(
    candidate: Candidate, rate_per_s: float, problem: PlanningProblem, *, whole: bool = True
) -> Expense:
    """Return the expense of a candidate's replicas, as a sort key.

    It is the price per hour or, without prices, the number of GPUs. The expense is that for the
    requested rate; if no rate is requested, that per request/s.

    Args:
        candidate: Candidate whose replicas are rented.
        rate_per_s: Maximum rate of one replica.
        problem: Load and prices.
        whole: Whether to round the number of replicas up; otherwise it may be fractional above 1.
    """
    price = problem.price_per_hour(candidate.deployment.gpu.name, candidate.gpus)
    each, asked = (candidate.gpus if price is None else price), problem.sized_rate_per_s
    unpriced = price is None and bool(problem.prices)
    if rate_per_s == 0:
        return unpriced, math.inf
    if asked is None:
        return unpriced, each / rate_per_s
    needed = -(-asked // rate_per_s) if whole else asked / rate_per_s
    replicas = max(needed, float(problem.least_replicas)) + problem.spare_replicas
    return unpriced, each * replicas


def promising(
    fastest: Mapping[int, tuple[Candidate, float]],
    problem: PlanningProblem,
    top: int,
    sized: Mapping[int, Expense] = _NO_FLEETS,
) -> tuple[list[int], list[int]]:
    """Return the indices of hardware that must be evaluated, and of hardware that may be as cheap.

    The first list contains the cheapest hardware for each GPU and engine, with and without
    disaggregated P/D. The second list is needed because screened rates are approximate: it contains
    hardware that may be as cheap as the cheapest of all, or cheaper than every fleet found on its
    own GPU. Both lists are sorted by expense.

    Args:
        fastest: Candidate with the highest screened rate of each hardware configuration, and this
            rate, by the configuration's index.
        problem: Load and prices.
        top: Minimum number of hardware configurations to evaluate.
        sized: Expense of the smallest fleet of each evaluated hardware configuration, by index;
            infinite if none meets the SLO.
    """

    def expense(i: int, factor: float = 1.0, *, whole: bool = True) -> Expense:
        candidate, rate_per_s = fastest[i]
        return _expense(candidate, rate_per_s * factor, problem, whole=whole)

    def gpu(i: int) -> str:
        return fastest[i][0].deployment.gpu.name

    ordered = sorted(fastest, key=lambda i: (expense(i), expense(i, whole=False)))
    least = min((expense(i, 1 - _SCREENING_ERROR) for i in ordered), default=(False, 0.0))
    must, rest = firsts({i: fastest[i][0] for i in ordered})
    cheap = ordered[:top]
    best: dict[str, Expense] = {}
    for i in sized:
        best[gpu(i)] = min(sized[i], best.get(gpu(i), sized[i]))
    may = []
    for i in rest:
        at_best = expense(i, 1 + _SCREENING_ERROR)
        beats_own = gpu(i) in best and at_best < best[gpu(i)]
        if i in cheap or at_best <= least or (beats_own and _may_fit(*fastest[i], problem)):
            may.append(i)
    return must, may


def _may_fit(candidate: Candidate, rate_per_s: float, problem: PlanningProblem) -> bool:
    """Return whether a fleet may fit within ``max_gpus``, given the error of a screened rate."""
    asked, most = problem.sized_rate_per_s, problem.max_gpus
    if asked is None or most is None:
        return True
    return candidate.gpus * -(-asked // (rate_per_s * (1 + _SCREENING_ERROR))) <= most


def fleet_expense(candidate: Candidate, sized: SizedFleet, problem: PlanningProblem) -> Expense:
    """Return the expense of a sized fleet, which compares to the expense of a screened candidate.

    Args:
        candidate: Candidate whose replicas form the fleet.
        sized: Fleet of the candidate's replicas.
        problem: Load and prices.
    """
    if problem.rate_per_s is None:
        return _expense(candidate, sized.rate.per_s, problem)
    gpus = sized.size.replicas * candidate.gpus
    price = problem.price_per_hour(candidate.deployment.gpu.name, gpus)
    return price is None and bool(problem.prices), gpus if price is None else price


def costs_more(candidate: Candidate, rate_per_s: float, problem: PlanningProblem, top: int) -> str:
    """Return the reason why a candidate's hardware is not evaluated: its GPUs or its cost.

    Args:
        candidate: Candidate of the hardware.
        rate_per_s: Screened maximum rate of one replica.
        problem: Load, prices and limit on GPUs.
        top: Minimum number of hardware configurations to evaluate.
    """
    unpriced, expense = _expense(candidate, rate_per_s, problem)
    is_price = bool(problem.prices) and not unpriced
    alone, asked = f"about {number(rate_per_s)} requests/s per replica", problem.sized_rate_per_s
    if asked is not None and problem.max_gpus is not None:
        replicas = max(-(-asked // rate_per_s), problem.least_replicas)
        gpus = candidate.gpus * (replicas + problem.spare_replicas)
        if gpus > problem.max_gpus:
            return f"needs about {gpus:.0f} GPUs, more than --max-gpus {problem.max_gpus}: {alone}"
    what = "per hour" if is_price else "GPUs"
    per = "" if asked is not None else " per request/s"
    gpu, engine = candidate.deployment.gpu.name, candidate.deployment.serving.engine
    return (
        f"by screening, neither among the {top} cheapest hardware configurations (--top) nor the "
        f"cheapest on {gpu} or with {engine}: {alone}, so {number(expense)} {what}{per}"
    )


def rank(choice: Choice, asked_per_s: float | None) -> tuple[float, ...]:
    """Return a row's sort key: expense, then probability of meeting the SLO, then spare capacity.

    Rows without a price come after rows with one, sorted by number of GPUs. Among rows of equal
    expense, a calibrated row, which has no probability, comes first, and a row whose probability
    was not computed in time comes last.
    """
    per_s = choice.highest_rate.per_s
    used = choice.utilization
    if used is None and asked_per_s is not None:  # time ran out before the maximum rate was found
        used = asked_per_s / (choice.replicas * per_s)
    chance = 1.0 if choice.coefficients != NETWORK else choice.chance or 0.0
    return _key(choice.cost_per_hour, choice.gpus, per_s, used, chance)


def fleet_rank(
    candidate: Candidate, sized: SizedFleet, problem: PlanningProblem
) -> tuple[float, ...]:
    """Return a fleet's sort key: that of :func:`rank` without the probability."""
    replicas, asked = sized.size.replicas, problem.rate_per_s
    gpus = replicas * candidate.gpus
    cost = problem.price_per_hour(candidate.deployment.gpu.name, gpus)
    used = None if asked is None else asked / (replicas * sized.rate.per_s)
    return _key(cost, gpus, sized.rate.per_s, used)


def _key(
    cost: float | None, gpus: int, rate_per_s: float, used: float | None, chance: float = 0.0
) -> tuple[float, ...]:
    expense = gpus if cost is None else cost
    if used is None:
        return (cost is None, expense / rate_per_s, -rate_per_s)
    return (cost is None, expense, -chance, used)
