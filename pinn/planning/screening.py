"""Screening: few requests on candidates of the same hardware, to see which scheduler limits pay."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pinn.planning.candidate import Candidate
from pinn.planning.estimates import guessed_rates_per_s, least_excess
from pinn.planning.fleet import BALANCED_GAIN
from pinn.planning.plan import Point, RejectedCandidate
from pinn.planning.pools import PoolsCandidate
from pinn.planning.problem import PlanningProblem
from pinn.planning.rate_search import highest_rate
from pinn.planning.slo import Slo
from pinn.planning.trials import Trials
from pinn.simulator.pools import halves
from pinn.simulator.workloads.workload import Workload

#: Requests of a screening run.
_REQUESTS = 1000
#: Candidates whose screened highest rate is this close to the best on their hardware stay.
_MARGIN = 0.04
#: Width of the bisection.
_WIDTH = 0.02
#: Times the rate at which all time is used, by a formula without queues, that nothing exceeds.
_MOST_GUESSED = 2.0
#: Rates of the frontier, as shares of that at which all time is used.
_LADDER = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)


@dataclass(frozen=True)
class ScreeningResult:
    """Result of screening candidates of one hardware.

    Attributes:
        kept: Candidates worth an evaluation and their screened highest rates, best first.
        rejected: The others.
        points: Of the first one kept, at rising rates.
        least_excess: Lower bound of the worst latency of any, as a share of its limit.
        simulations: Runs that it took.
    """

    kept: Sequence[tuple[Candidate, float]]
    rejected: Sequence[RejectedCandidate]
    points: Sequence[Point]
    least_excess: float
    simulations: int


def screen(candidates: Sequence[Candidate], problem: PlanningProblem) -> ScreeningResult:
    """Screen candidates that differ in the scheduler's limits alone.

    Those whose lower bound misses a limit are not simulated. Nor are those with a ``max_num_seqs``
    above one that was never reached: requests would run as before. The others first try the best
    rate so far.
    """
    load, slo = problem.replica_load(most=_REQUESTS), problem.slo
    found: list[tuple[Candidate, float]] = []
    rejected: list[RejectedCandidate] = []
    unfilled: list[Candidate] = []
    simulations, least = 0, math.inf
    for candidate in sorted(candidates, key=_scheduler_limits):
        bound = least_excess(problem.workload, candidate.latency, candidate.prompt_latency, slo)
        least = min(least, bound)
        reason = _same(candidate, unfilled)
        if bound > 1:
            reason = f"a request alone on it takes {bound:.2f} times as long as the limits allow"
        if reason is not None:
            rejected.append(candidate.rejected(reason, simulated=False))
            continue
        trials = Trials(candidate, load, slo)
        best = max((rate for _, rate in found), default=0.0)
        near = _near(best, problem)
        rate = _screened_rate(trials, best, near)
        simulations += trials.tally.simulations
        if trials.tally.most_running < candidate.deployment.recipe.max_requests and rate > 0:
            unfilled.append(candidate)
        if rate < near or rate == 0:
            rejected.append(candidate.rejected(_too_low(rate, best)))
        else:
            found.append((candidate, rate))
    found.sort(key=lambda each: -each[1])
    kept = [(c, rate) for c, rate in found if rate >= _near(found[0][1], problem)]
    rejected += [c.rejected(_too_low(rate, found[0][1])) for c, rate in found[len(kept) :]]
    points = _ladder(Trials(kept[0][0], load, slo), problem) if kept else []
    return ScreeningResult(kept, rejected, points, least, simulations + len(points))


def _near(best: float, problem: PlanningProblem) -> float:
    """The least screened rate that stays: close to the best, or as few replicas at the asked rate.

    Replicas of a fleet hold more than a lone one, and not of every candidate as much more.
    """
    near, asked = best * (1 - _MARGIN), problem.rate_per_s
    if asked is None or asked <= best or best == 0:
        return near
    return min(near, asked / math.ceil(asked / best) / BALANCED_GAIN)


def _screened_rate(trials: Trials, best: float, near: float) -> float:
    """The highest rate on few requests; 0 where it does not come near the best."""
    if best > 0:
        if trials.excess(near) > 1:
            return 0.0
        # Of those that do, how far they stay behind does not matter.
        return max(_highest(trials, best, stride=1 + _MARGIN, best=best), near)
    most, guess = _guesses(trials.candidate, trials.load.workload, trials.slo)
    # So few requests may all run at once, at whatever rate.
    return min(_highest(trials, guess), _MOST_GUESSED * most)


def _highest(trials: Trials, guess: float, stride: float = 1.25, best: float = 0.0) -> float:
    return highest_rate(trials.excess, guess, stride=stride, width=_WIDTH, enough=best)[0]


def _ladder(trials: Trials, problem: PlanningProblem) -> list[Point]:
    most, _ = _guesses(trials.candidate, problem.workload, None)
    return [trials.point(trials.run(share * most), share * most) for share in _LADDER]


def _guesses(candidate: Candidate, load: Workload, slo: Slo | None) -> tuple[float, float]:
    if not isinstance(candidate, PoolsCandidate):
        return guessed_rates_per_s(load, candidate.latency, candidate.engine, slo)
    first, rest = halves(load)
    prompts, _ = guessed_rates_per_s(first, candidate.prompt_latency, candidate.engine, None)
    answers = guessed_rates_per_s(rest, candidate.latency, candidate.engine, slo)
    prompts *= candidate.prefill_servers
    most, held = (min(prompts, candidate.decode_servers * rate) for rate in answers)
    return most, held


def _scheduler_limits(candidate: Candidate) -> tuple[int, int]:
    recipe = candidate.deployment.recipe
    return -recipe.token_budget, recipe.max_requests


def _same(candidate: Candidate, unfilled: Sequence[Candidate]) -> str | None:
    """Why more requests at a time change nothing: as many as another candidate runs never came."""
    a = candidate.deployment.recipe
    for b in (other.deployment.recipe for other in unfilled):
        alike = (a.token_budget, a.graph_tokens) == (b.token_budget, b.graph_tokens)
        if alike and a.max_requests > b.max_requests:
            return f"as with {b.max_requests} requests a step, which never run at once"
    return None


def _too_low(rate: float, best: float) -> str:
    if rate == 0 and best == 0:
        return "holds the limits at no rate"
    return f"holds less than {best:.3g} requests/s, as other limits of the scheduler do"
