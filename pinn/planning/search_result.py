"""Plan that results from a search: ranked rows, best row per GPU, rejected candidates."""

import logging
import math
from collections.abc import Iterator, Sequence

from pinn.common.numbers import amount
from pinn.planning.plan import (
    INTERRUPT,
    NOT_EVALUATED,
    NOT_TRIED,
    TIME_BUDGET,
    TIME_OVER,
    FrontierPoint,
    GpuOutcome,
    NoPlanError,
    Plan,
    RejectedCandidate,
)
from pinn.planning.ranking import costs_more
from pinn.planning.search import Search

_LOG = logging.getLogger(__name__)


def make_plan(search: Search, misfits: Sequence[RejectedCandidate] = (), *, top: int) -> Plan:
    """Search for the best fleets and rank them.

    Args:
        search: Search to run.
        misfits: Candidates whose model does not fit in GPU memory, or that cannot serve the load.
        top: Minimum number of hardware configurations to evaluate.

    Raises:
        NoPlanError: If no candidate meets the SLO; the message names the closest candidate.
        KeyboardInterrupt: If an interrupt is received before any hardware was screened.
    """
    problem, groups = search.problem, search.groups
    summary = problem.summary([each.deployment for group in groups for each in group])
    fitting = sum(map(len, groups))
    _LOG.info(
        "%s: %d do not fit, %d on %s",
        amount(fitting + len(misfits), "candidate"), len(misfits), fitting,
        amount(len(groups), "hardware configuration"),
    )  # fmt: skip
    search.run(top)
    choices = search.choices
    rejected = [*misfits, *_rejected(search, top)]
    for each in (each for group in search.untried.values() for each in group):
        rejected.append(each.rejected(f"{NOT_TRIED}: {_why_ended(search)}", simulated=False))
    untried = sum(each.reason.startswith(NOT_TRIED) for each in rejected)
    budget = search.budget
    plan = Plan(
        ask=summary,
        choices=choices,
        by_gpu=_by_gpu(search, summary.gpus, misfits, rejected),
        left_out=rejected,
        frontier=_frontier(search),
        candidates=fitting + len(misfits),
        simulations=search.simulations,
        seconds=budget.passed_s,
        untried=untried,
        stopped=_stopped(search, rejected),
        left_s=search.left_s(top),
        time_budget_s=None if math.isinf(budget.end_s) else budget.end_s - budget.begin_s,
        spent_s=search.spent_s,
    )
    if not search.rows:
        raise NoPlanError(_infeasible(search, summary.gpus, misfits, untried), plan)
    return plan


def _stopped(search: Search, rejected: Sequence[RejectedCandidate]) -> str:
    """Return the reason why a search ended early; empty if everything was tried."""
    if search.is_interrupted:
        return INTERRUPT
    is_partial = any(row.choice.is_partial for row in search.rows.values())
    is_late = any(each.reason.startswith((NOT_TRIED, NOT_EVALUATED)) for each in rejected)
    return TIME_BUDGET if is_partial or is_late else ""


def _rejected(search: Search, top: int) -> Iterator[RejectedCandidate]:
    """Yield the screened candidates that are not in the plan."""
    fleets = search.fleets
    late = f"{NOT_EVALUATED}: {_why_ended(search)}"
    awaited = search.unsized(top)
    for i, found in search.screened.items():
        yield from found.rejected
        sized = search.sized.get(i)
        if sized is not None:
            yield from sized.rejected
        if i in search.rows:
            continue
        if sized is None:
            for candidate, rate in search.kept(i):
                reason = late if i in awaited else costs_more(candidate, rate, search.problem, top)
                yield candidate.rejected(reason)
        elif i in fleets:
            yield fleets[i][0].rejected(late)


def _why_ended(search: Search) -> str:
    return "interrupted" if search.is_interrupted else TIME_OVER


def _by_gpu(
    search: Search,
    gpus: Sequence[str],
    misfits: Sequence[RejectedCandidate],
    rejected: Sequence[RejectedCandidate],
) -> list[GpuOutcome]:
    """Return each GPU's best row, or the reason why it has no row; GPUs without a row are last."""
    ranks: dict[str, int] = {}
    for place, choice in enumerate(search.choices, 1):
        ranks.setdefault(choice.gpu, place)
    return [
        *(GpuOutcome(gpu, place) for gpu, place in ranks.items()),
        *(
            GpuOutcome(gpu, None, _without(search, gpu, misfits) + _not_tried(gpu, rejected))
            for gpu in gpus
            if gpu not in ranks
        ),
    ]


def _not_tried(gpu: str, rejected: Sequence[RejectedCandidate]) -> str:
    """Return a clause about a GPU's untried candidates; empty if none or all are untried."""
    own = [each for each in rejected if each.gpu == gpu]
    left = sum(each.reason.startswith(NOT_TRIED) for each in own)
    return (
        f"; {amount(left, 'candidate was', 'candidates were')} not tried"
        if 0 < left < len(own)
        else ""
    )


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
    idle = [found.idle for found in tried.values() if found.idle is not None]
    if idle:
        return min(idle, key=lambda each: each.excess).reason
    if own:
        return f"{NOT_TRIED}: {_why_ended(search)}"
    unfit = [each for each in misfits if each.gpu == gpu]
    if unfit:
        return f"{unfit[-1].label}: {unfit[-1].reason}"
    most = (
        "" if search.problem.max_gpus is None else f" within --max-gpus {search.problem.max_gpus}"
    )
    return f"the engine does not start with any candidate on this GPU{most}"


def _distance(search: Search, gpu: str) -> tuple[bool, float, float]:
    """Return how far a GPU is from a plan, as a sort key.

    The key is whether no replica meets the SLO, the number of GPUs of the closest fleet, and the
    ratio of a latency on an idle server to its limit.
    """
    own = [i for i, g in enumerate(search.groups) if g[0].deployment.gpu.name == gpu]
    fleets = [found.gpus for i in own if i in search.sized if (found := search.sized[i].nearest)]
    tried = [search.screened[i] for i in own if i in search.screened]
    idle = [found.idle.excess for found in tried if found.idle is not None]
    return not fleets, min(fleets, default=math.inf), min(idle, default=math.inf)


def _frontier(search: Search) -> list[FrontierPoint]:
    """Return frontier points of the best candidate of every hardware configuration.

    Rows of the plan are also points, at the requested rate, because plots mark them.
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


def _infeasible(
    search: Search, gpus: Sequence[str], misfits: Sequence[RejectedCandidate], left: int
) -> str:
    """Return why no candidate meets the SLO within the GPU limit, for the closest of the GPUs."""
    gpu = min(gpus, key=lambda each: _distance(search, each))
    told = _without(search, gpu, misfits)
    if len(gpus) > 1:
        told = f"the closest of {len(gpus)} GPUs is {gpu}: {told}"
    advice = ""
    if "infeasible" in told:
        advice = (
            "; relax the limits beyond these values, because latencies are longer under load, or "
            "give faster GPUs or formats with fewer bits"
        )
    tried = amount(left, "candidate was", "candidates were")
    untried = f"; {tried} not tried: raise --time-budget" if left else ""
    return f"no candidate meets {search.problem.slo.text!r}: {told}{advice}{untried}"
