"""Make a plan: a quick look at every candidate, a whole one at the best of each hardware."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TypeVar

from pinn.common.workers import Workers
from pinn.errors import PinnError
from pinn.planning.candidates import Brief, Candidate
from pinn.planning.examine import Unfit, examine
from pinn.planning.plan import Ask, Choice, FrontierPoint, LeftOut, Plan
from pinn.planning.pools import PoolsCandidate
from pinn.planning.scout import Scouted, scout

#: A quick highest rate may be this much too low, as a share, before a candidate is lost to it.
_QUICK_ERROR = 0.2

_Kind = TypeVar("_Kind")
_Found = TypeVar("_Found")

#: Told what happens: a line for people.
Progress = Callable[[str], None]


def make_plan(
    ask: Ask,
    brief: Brief,
    candidates: Sequence[Candidate],
    misfits: Sequence[LeftOut],
    *,
    top: int,
    each_alone: bool,
    workers: Workers,
    progress: Progress,
) -> Plan:
    """Rank candidates.

    Args:
        ask: What was asked, for the record.
        brief: The same with the data.
        candidates: That fit.
        misfits: That do not.
        top: How many choices to examine, at least.
        each_alone: Whether every candidate is a row; else the best on each hardware.
        workers: Where simulations run.
        progress: Told how far it is.

    Raises:
        PinnError: If no candidate holds the limits, with what comes nearest.
    """
    begin = time.monotonic()
    groups = _by_hardware(candidates, each_alone)
    progress(f"{len(candidates)} candidates on {len(groups)} kinds of hardware")
    scouted = dict(_run(workers, partial(scout, brief=brief), groups, progress, "looked at"))
    _check_any(scouted, brief, groups)
    chosen = _promising(scouted, brief, top)
    left_out = [*misfits, *(each for found in scouted.values() for each in found.left_out)]
    for found in (scouted[i] for i in scouted if i not in chosen):
        left_out += [c.left_out(_costs_more(found, brief)) for c, _ in found.kept]
    choices, simulations = [], sum(found.simulations for found in scouted.values())
    # The longest first: a replica of a higher rate is sent more of the load's requests.
    chosen.sort(key=lambda i: -scouted[i].kept[0][1])
    tasks = [scouted[i].kept for i in chosen]
    unfit: list[Unfit] = []
    for _, examined in _run(workers, partial(examine, brief=brief), tasks, progress, "examined"):
        simulations += examined.simulations
        left_out += examined.left_out
        choices += [examined.choice] if examined.choice else []
        unfit += [examined.unfit] if examined.unfit else []
    if not choices:
        nearest = min(unfit, key=lambda each: each.gpus)
        raise PinnError(
            f"no candidate can be rented for {brief.limits.text!r}: the nearest, {nearest.label}, "
            f"{nearest.reason}"
        )
    choices.sort(key=partial(_rank, brief.rate_per_s))
    return Plan(
        ask=ask,
        choices=choices,
        left_out=left_out,
        frontier=_frontier(scouted),
        candidates=len(candidates) + len(misfits),
        simulations=simulations,
        seconds=time.monotonic() - begin,
    )


def _run(
    workers: Workers,
    work: Callable[[_Kind], _Found],
    tasks: Sequence[_Kind],
    progress: Progress,
    verb: str,
) -> Iterator[tuple[int, _Found]]:
    begin = time.monotonic()
    for done, (i, result) in enumerate(workers.run(work, tasks), 1):
        progress(f"{verb} {done} of {len(tasks)} in {time.monotonic() - begin:.0f} s")
        yield i, result


def _by_hardware(candidates: Sequence[Candidate], each_alone: bool) -> list[list[Candidate]]:
    if each_alone:
        return [[candidate] for candidate in candidates]
    ordered = sorted(candidates, key=lambda c: str(c.hardware))
    return [list(group) for _, group in groupby(ordered, key=lambda c: c.hardware)]


def _expense(found: Scouted, brief: Brief, error: float = 1.0, *, whole: bool = True) -> float:
    """Price or GPUs for the asked rate, or for each request per second without one.

    Args:
        found: Whose best candidate is meant.
        brief: What is asked.
        error: Factor by which the quick rate may be off.
        whole: Whether replicas are rounded up, else parts of them are counted beyond the first.
    """
    candidate, rate_per_s = found.kept[0][0], found.kept[0][1] * error
    gpu = candidate.deployment.gpu.name
    each = brief.price_per_hour(gpu, candidate.gpus) or candidate.gpus
    if brief.rate_per_s is None:
        return each / rate_per_s
    if whole:
        return each * -(-brief.rate_per_s // rate_per_s)
    return each * max(brief.rate_per_s / rate_per_s, 1.0)


def _promising(scouted: Mapping[int, Scouted], brief: Brief, top: int) -> list[int]:
    """Hardware to examine: the cheapest, and what may be as cheap as the cheapest.

    A quick look knows rates to a part, and replicas are whole: what is lost by rounding one up
    may be won by another. Of every engine the cheapest is, and where prefill and decode apart are
    tried, the cheapest of both kinds.
    """
    kept = [i for i, found in scouted.items() if found.kept]
    ordered = sorted(kept, key=lambda i: _expense(scouted[i], brief, whole=False))
    least = min(_expense(scouted[i], brief, 1 - _QUICK_ERROR) for i in ordered)
    kinds = [_kind(scouted[i].kept[0][0]) for i in ordered]
    return [
        i
        for place, i in enumerate(ordered)
        if place < top
        or kinds[place] not in kinds[:place]
        or _expense(scouted[i], brief, 1 + _QUICK_ERROR) <= least
    ]


def _kind(candidate: Candidate) -> tuple[str, bool]:
    """Engine, and whether prefill and decode are apart."""
    return candidate.deployment.serving.engine, isinstance(candidate, PoolsCandidate)


def _costs_more(found: Scouted, brief: Brief) -> str:
    more, what = ("costs", " an hour") if brief.prices_per_gpu_hour else ("takes", " GPUs")
    per = "" if brief.rate_per_s is not None else " for each request per second"
    return (
        f"{more} more than the choices: about {found.kept[0][1]:.3g} requests/s a replica, so "
        f"{_expense(found, brief):.3g}{what}{per}"
    )


def _rank(asked: float | None, choice: Choice) -> tuple[float, ...]:
    """Least expense of those predicted to hold the limits, then the one with most to spare."""
    expense = choice.cost_per_hour if choice.cost_per_hour is not None else choice.gpus
    rate = choice.highest_rate
    if asked is None:
        return (expense / rate.per_s, -rate.per_s)
    return (expense, choice.utilization or 0.0)


def _frontier(scouted: Mapping[int, Scouted]) -> list[FrontierPoint]:
    """Points of every hardware, each with its best limits of the scheduler."""
    kept = [found for found in scouted.values() if found.kept]
    series = {found.kept[0][0].label: (found.kept[0][0], found.points) for found in kept}
    points = [
        (speed, c, p)
        for c, points in series.values()
        for p in points
        if (speed := p.user_tokens_per_s)
    ]
    points.sort(key=lambda each: (-each[0], -each[2].output_tokens_per_gpu_s))
    frontier, most = [], 0.0
    for speed, c, p in points:
        dense, gpu = p.output_tokens_per_gpu_s, c.deployment.gpu.name
        frontier.append(
            FrontierPoint(c.label, gpu, c.gpus, p.rate_per_s, dense, speed, best=dense > most)
        )
        most = max(most, dense)
    return frontier


def _check_any(
    scouted: Mapping[int, Scouted], brief: Brief, groups: Sequence[Sequence[Candidate]]
) -> None:
    """Stop where no candidate holds the limits at any rate."""
    if any(found.kept for found in scouted.values()):
        return
    nearest = min(scouted, key=lambda i: scouted[i].floor)
    floor, label = scouted[nearest].floor, groups[nearest][0].label
    raise PinnError(
        f"no candidate holds {brief.limits.text!r}: on the nearest, {label}, a request alone takes "
        f"{floor:.2f} times as long: allow that much, or name faster GPUs or fewer bits"
    )
