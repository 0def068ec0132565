"""A quick look at candidates on the same hardware: which limits of the scheduler are worth more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pinn.planning.brief import Brief
from pinn.planning.candidates import Candidate
from pinn.planning.capacity import guessed_rates_per_s
from pinn.planning.floor import floor_excess
from pinn.planning.limits import Limits
from pinn.planning.plan import LeftOut, Point
from pinn.planning.pools import PoolsCandidate, halves
from pinn.planning.search import highest_rate
from pinn.planning.sizing import BALANCED_GAIN
from pinn.planning.trial import Trials
from pinn.simulator.workloads.workload import Workload

#: Requests of a quick look.
_REQUESTS = 1000
#: Candidates whose quick highest rate is this close to the best on their hardware stay.
_MARGIN = 0.04
#: Width of the bisection of a quick look.
_WIDTH = 0.02
#: Times the rate at which all time is used, by a formula without queues, that nothing exceeds.
_MOST_GUESSED = 2.0
#: Rates of the frontier, as shares of that at which all time is used.
_LADDER = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)


@dataclass(frozen=True)
class Scouted:
    """What a quick look found.

    Attributes:
        kept: Candidates worth a whole look and their quick highest rates, best first.
        left_out: The others.
        points: Of the first one kept, at rising rates.
        floor: The least that the worst latency of any can be, as a share of its limit.
        simulations: Runs that it took.
    """

    kept: Sequence[tuple[Candidate, float]]
    left_out: Sequence[LeftOut]
    points: Sequence[Point]
    floor: float
    simulations: int


def scout(candidates: Sequence[Candidate], brief: Brief) -> Scouted:
    """Look at candidates that differ in the scheduler's limits alone.

    Those whose floor misses a limit are not simulated. Nor are those with a ``max_num_seqs`` above
    one that was never reached: requests would run as before. The others first try the best rate so
    far.
    """
    load, limits = brief.replica_load(most=_REQUESTS), brief.limits
    found: list[tuple[Candidate, float]] = []
    left_out: list[LeftOut] = []
    unfilled: list[Candidate] = []
    simulations, least = 0, float("inf")
    for candidate in sorted(candidates, key=_scheduler_limits):
        floor = floor_excess(brief.workload, candidate.latency, candidate.prompt_latency, limits)
        least = min(least, floor)
        reason = _misses(floor) or _same(candidate, unfilled)
        if reason is not None:
            left_out.append(_left_out(candidate, reason, simulated=False))
            continue
        trials = Trials(candidate, load, limits)
        best = max((rate for _, rate in found), default=0.0)
        near = _near(best, brief)
        rate = _quick_rate(trials, best, near)
        simulations += trials.count
        if trials.most_running < candidate.deployment.recipe.max_requests and rate > 0:
            unfilled.append(candidate)
        if rate < near or rate == 0:
            left_out.append(_left_out(candidate, _too_low(rate, best), simulated=True))
        else:
            found.append((candidate, rate))
    found.sort(key=lambda each: -each[1])
    kept = [(c, rate) for c, rate in found if rate >= _near(found[0][1], brief)]
    left_out += [
        _left_out(c, _too_low(rate, found[0][1]), simulated=True) for c, rate in found[len(kept) :]
    ]
    points, more = _ladder(kept[0][0], brief) if kept else ([], 0)
    return Scouted(kept, left_out, points, least, simulations + more)


def _near(best: float, brief: Brief) -> float:
    """The least quick rate that stays: close to the best, or of as few replicas at the asked rate.

    Replicas of a fleet hold more than a lone one, and not of every candidate as much more.
    """
    near, asked = best * (1 - _MARGIN), brief.rate_per_s
    if asked is None or asked <= best or best == 0:
        return near
    return min(near, asked / math.ceil(asked / best) / BALANCED_GAIN)


def _quick_rate(trials: Trials, best: float, near: float) -> float:
    """The highest rate on few requests; 0 where it does not come near the best."""
    if best > 0:
        if trials.excess(near) > 1:
            return 0.0
        # Of those that do, how far they stay behind does not matter.
        return max(_highest(trials, best, stride=1 + _MARGIN, enough=best), near)
    most, guess = _guesses(trials.candidate, trials.load.workload, trials.limits)
    # So few requests may all run at once, at whatever rate.
    return min(_highest(trials, guess), _MOST_GUESSED * most)


def _highest(trials: Trials, guess: float, stride: float = 1.25, enough: float = 0.0) -> float:
    return highest_rate(trials.excess, guess, stride=stride, width=_WIDTH, enough=enough)[0]


def _ladder(candidate: Candidate, brief: Brief) -> tuple[list[Point], int]:
    load = brief.replica_load(most=_REQUESTS)
    trials = Trials(candidate, load, brief.limits)
    most, _ = _guesses(candidate, brief.workload, None)
    rates = [share * most for share in _LADDER]
    points = [trials.point(trials.run(rate), rate, candidate.gpus) for rate in rates]
    return points, trials.count


def _guesses(
    candidate: Candidate, workload: Workload, limits: Limits | None
) -> tuple[float, float]:
    if not isinstance(candidate, PoolsCandidate):
        return guessed_rates_per_s(workload, candidate.latency, candidate.engine, limits)
    first, rest = halves(workload)
    prompts, _ = guessed_rates_per_s(first, candidate.prompt_latency, candidate.engine, None)
    answers = guessed_rates_per_s(rest, candidate.latency, candidate.engine, limits)
    prompts *= candidate.prefill_servers
    most, held = (min(prompts, candidate.decode_servers * rate) for rate in answers)
    return most, held


def _scheduler_limits(candidate: Candidate) -> tuple[int, int]:
    recipe = candidate.deployment.recipe
    return -recipe.token_budget, recipe.max_requests


def _same(candidate: Candidate, unfilled: Sequence[Candidate]) -> str | None:
    """Why more requests at a time change nothing: as many as another candidate runs never came."""
    for other in unfilled:
        a, b = candidate.deployment.recipe, other.deployment.recipe
        alike = (a.token_budget, a.graph_tokens) == (
            b.token_budget,
            b.graph_tokens,
        )
        if alike and a.max_requests > b.max_requests:
            return f"as with {b.max_requests} requests a step, which never run at once"
    return None


def _misses(floor: float) -> str | None:
    if floor <= 1:
        return None
    return f"a request alone on it takes {floor:.2f} times as long as the limits allow"


def _too_low(rate: float, best: float) -> str:
    if rate == 0 and best == 0:
        return "holds the limits at no rate"
    return f"holds less than {best:.3g} requests/s, as other limits of the scheduler do"


def _left_out(candidate: Candidate, reason: str, *, simulated: bool) -> LeftOut:
    return LeftOut(candidate.label, candidate.deployment.gpu.name, reason, simulated)
