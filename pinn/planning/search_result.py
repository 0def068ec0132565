"""Plan that results from a search: ranked rows, the best of every GPU, and rejected candidates."""

import time
from collections.abc import Iterator, Sequence

from pinn.errors import PinnError
from pinn.planning.plan import (
    INTERRUPT,
    NOT_EVALUATED,
    NOT_TRIED,
    TIME_BUDGET,
    FrontierPoint,
    GpuOutcome,
    Plan,
    RejectedCandidate,
)
from pinn.planning.ranking import costs_more
from pinn.planning.search import Search


def make_plan(search: Search, misfits: Sequence[RejectedCandidate] = (), *, top: int) -> Plan:
    """Search for the best fleets and rank them.

    Args:
        search: Search for a problem, which this function runs.
        misfits: Candidates that do not fit their GPUs' memory or the load.
        top: Minimum number of hardware configurations to evaluate.

    Raises:
        PinnError: If no candidate meets the SLO; the message has the nearest candidate.
        KeyboardInterrupt: If an interrupt is received before any hardware was screened.
    """
    begin = time.monotonic()
    problem, groups = search.problem, search.groups
    summary = problem.summary([each.deployment for group in groups for each in group])
    search.run(top)
    _check_any(search)
    choices = search.choices
    untried = [each for group in search.untried.values() for each in group]
    rejected = [*misfits, *_rejected(search)]
    rejected += [each.rejected(_no_time(search), simulated=False) for each in untried]
    return Plan(
        ask=summary,
        choices=choices,
        by_gpu=_by_gpu(search, summary.gpus, misfits),
        left_out=rejected,
        frontier=_frontier(search),
        candidates=sum(map(len, groups)) + len(misfits),
        simulations=search.simulations,
        seconds=time.monotonic() - begin,
        untried=len(untried),
        stopped=_stopped(search),
        left_s=_left_s(search, time.monotonic() - begin),
    )


def _left_s(search: Search, seconds: float) -> float | None:
    """Estimate the seconds to screen the remaining hardware, at the pace so far.

    None is returned if no hardware remains, or if all results of this search were cached.
    """
    if not search.untried or not search.newly_screened:
        return None
    return seconds * len(search.untried) / search.newly_screened


def _stopped(search: Search) -> str:
    """Return the reason why a search ended before everything was tried; empty if all was tried."""
    if search.is_interrupted:
        return INTERRUPT
    is_partial = any(row.choice.is_partial for row in search.rows.values())
    is_whole = not is_partial and len(search.rows) == len(search.fleets)
    return "" if is_whole and not search.untried else TIME_BUDGET


def _rejected(search: Search) -> Iterator[RejectedCandidate]:
    """Yield the screened candidates that are not in the plan."""
    fastest, fleets = search.fastest, search.fleets
    for i, found in search.screened.items():
        yield from found.rejected
        sized = search.sized.get(i)
        if sized is not None:
            yield from sized.rejected
        if i in search.rows:
            continue
        if sized is None:
            reason = costs_more(*fastest[i], search.problem) if i in fastest else ""
            yield from (candidate.rejected(reason) for candidate, _ in search.kept(i))
        elif i in fleets:
            yield fleets[i][0].rejected(f"{NOT_EVALUATED}: {_why_ended(search)}")


def _no_time(search: Search) -> str:
    """Return a clause that candidates were not tried, and why: time or an interrupt."""
    return f"{NOT_TRIED}: {_why_ended(search)}"


def _why_ended(search: Search) -> str:
    return "interrupted" if search.is_interrupted else "time was over"


def _by_gpu(
    search: Search, gpus: Sequence[str], misfits: Sequence[RejectedCandidate]
) -> list[GpuOutcome]:
    """Return each GPU's best row, or the reason why it has no row; GPUs without a row are last."""
    ranks: dict[str, int] = {}
    for place, choice in enumerate(search.choices, 1):
        ranks.setdefault(choice.gpu, place)
    return [
        *(GpuOutcome(gpu, place) for gpu, place in ranks.items()),
        *(
            GpuOutcome(gpu, None, _without(search, gpu, misfits) + _not_tried(search, gpu))
            for gpu in gpus
            if gpu not in ranks
        ),
    ]


def _not_tried(search: Search, gpu: str) -> str:
    """Return a clause on a GPU's untried candidates; empty unless only some are untried."""
    own = [i for i, g in enumerate(search.groups) if g[0].deployment.gpu.name == gpu]
    left = sum(len(search.untried.get(i, ())) for i in own)
    return f"; {left:,} candidates were not tried" if left and {*own} & {*search.screened} else ""


def _without(search: Search, gpu: str, misfits: Sequence[RejectedCandidate]) -> str:
    """Return why a GPU has no row, from the last step of the search that it reached."""
    own = [i for i, g in enumerate(search.groups) if g[0].deployment.gpu.name == gpu]
    nearest = [found for i in own if i in search.sized if (found := search.sized[i].nearest)]
    if nearest:
        best = min(nearest, key=lambda each: each.gpus)
        return f"the closest is {best.label}: {best.reason}"
    tried = {i: search.screened[i] for i in own if i in search.screened}
    if any(found.kept for found in tried.values()):
        return "screened, but its fleet was not sized in time"
    if tried:
        i = min(tried, key=lambda i: tried[i].least_excess)
        excess, label = tried[i].least_excess, search.groups[i][0].label
        if excess > 1:
            return (
                f"infeasible: on an idle server of {label}, a request takes "
                f"{excess:.2f} times as long as the SLO allows"
            )
        return "meets the SLO at no rate"
    if own:
        return _no_time(search)
    unfit = [each for each in misfits if each.gpu == gpu]
    if unfit:
        return f"{unfit[-1].label}: {unfit[-1].reason}"
    most = (
        "" if search.problem.max_gpus is None else f" within --max-gpus {search.problem.max_gpus}"
    )
    return f"the engine starts with no candidate on this GPU{most}"


def _frontier(search: Search) -> list[FrontierPoint]:
    """Return frontier points of the best candidate of every hardware configuration.

    Rows of the plan are also points, at the planned rate, because plots mark these points.
    """
    series = {each.label: (i, each) for i, (each, _) in search.fastest.items()}
    points = [
        (speed, p.output_tokens_per_gpu_s, p.rate_per_s, each)
        for i, each in series.values()
        for p in search.screened[i].points
        if (speed := p.user_tokens_per_s)
    ]
    for i, row in search.rows.items():
        p = row.choice.at_rate
        candidate = next(c for c in search.groups[i] if c.label == row.choice.label)
        if p.user_tokens_per_s:
            points.append((p.user_tokens_per_s, p.output_tokens_per_gpu_s, p.rate_per_s, candidate))
    points.sort(key=lambda each: (-each[0], -each[1]))
    frontier, most = [], 0.0
    for speed, dense, rate, c in points:
        gpu = c.deployment.gpu.name
        frontier.append(FrontierPoint(c.label, gpu, c.gpus, rate, dense, speed, best=dense > most))
        most = max(most, dense)
    return frontier


def _check_any(search: Search) -> None:
    """Raise an error if no candidate meets the SLO within the limit on GPUs."""
    if search.rows:
        return
    slo, screened = search.problem.slo.text, search.screened
    left = sum(map(len, search.untried.values()))
    untried = f"; {left:,} candidates were not tried: raise --time-budget" if left else ""
    infeasible = [each.nearest for each in search.sized.values() if each.nearest is not None]
    if infeasible:
        best = min(infeasible, key=lambda each: each.gpus)
        fault = f"no candidate meets {slo!r}: the closest is {best.label}: {best.reason}"
        raise PinnError(f"{fault}{untried}")
    i = min(screened, key=lambda i: screened[i].least_excess)
    excess, label = screened[i].least_excess, search.groups[i][0].label
    raise PinnError(
        f"no candidate meets {slo!r}: on an idle server of the closest one, "
        f"{label}, a request takes {excess:.2f} times as long as the SLO allows: relax the "
        f"SLO by that factor, or give faster GPUs or formats with fewer bits{untried}"
    )
