"""Planning for a load: find candidates, screen them, evaluate the best on each hardware."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from pinn.common.documents import comma_separated
from pinn.common.files import find_checkpoint
from pinn.common.numbers import number
from pinn.common.workers import Workers
from pinn.engines.configurations import Values, canonical, read_configurations
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.planning.candidate import Candidate
from pinn.planning.candidates import SearchSpace, find_candidates, grid_configurations, nearest_fit
from pinn.planning.evaluation import Infeasible, evaluate
from pinn.planning.plan import Choice, FrontierPoint, Plan, PlanRequest, RejectedCandidate
from pinn.planning.pools import PoolsCandidate, find_pools
from pinn.planning.problem import PlanningProblem, check_headroom, draw_load
from pinn.planning.screening import ScreeningResult, screen
from pinn.simulator.slo import parse_slo
from pinn.simulator.workloads.load import asked_load
from pinn.specs.catalog import load_model
from pinn.specs.flags import FlagValue, flags_apart
from pinn.specs.gpu import load_gpu
from pinn.specs.images import RequestImages
from pinn.specs.serving import VLLM
from pinn.surrogate.coefficient_set import read_coefficient_set


def plan_load(
    request: PlanRequest,
    flags: Mapping[str, FlagValue],
    prices_per_gpu_hour: Mapping[str, float],
    workers: Workers,
) -> Plan:
    """Plan what to rent for a load.

    Args:
        request: Load, SLO and GPUs that may be rented.
        flags: Flags of engine and load.
        prices_per_gpu_hour: Name of a GPU -> price; GPUs are counted where there are none.
        workers: Processes that run simulations.

    Raises:
        PinnError: If the request is incomplete, or no candidate fits or meets the SLO; the message
            has the nearest candidate.
    """
    checkpoint = find_checkpoint(request.checkpoint)
    load, flags = asked_load(
        request.workload, flags, request.seed, model=request.model, closed=False
    )
    rate, slo = request.rate, parse_slo(request.slo)
    load, draws = draw_load(load, rate)
    slo.check(draws[0].output_tokens)
    check_headroom(request)
    prices, most = prices_per_gpu_hour, request.max_gpus
    problem = PlanningProblem(draws, rate, slo, checkpoint, prices, most, load, request.headroom)
    space = _search_space(request, flags, load.images)
    rows = _configurations(request, space, "engine" in flags)
    # Prediction takes as long as the start of the processes.
    with workers.kept("pinn.planning.planner", "pinn.simulator.simulate") as kept:
        files, listed = request.coefficients or (), request.configs is not None
        found, misfits = find_candidates(
            rows, space, problem.workload, checkpoint, files, listed=listed
        )
        if request.disaggregate:
            apart, more = find_pools(space, problem.workload, checkpoint, request.candidates)
            found, misfits = [*found, *apart], [*misfits, *more]
        if not found:
            raise PinnError(_fits_nowhere(misfits, space, problem))
        return make_plan(problem, found, misfits, top=request.top, each_alone=listed, workers=kept)


def _search_space(
    request: PlanRequest, flags: Mapping[str, FlagValue], images: RequestImages | None
) -> SearchSpace:
    of_engine, serving = flags_apart(EngineSpec, flags)
    formats, engines = serving.pop("precision", [None]), serving.pop("engine", [VLLM])
    sizes = serving.pop("tensor_parallel_size", [None])
    if len(sizes) == 1:
        serving["tensor_parallel_size"], sizes = sizes[0], [None]
    shared = canonical({"model": request.model} | serving)
    gpus = comma_separated(request.gpu or "")
    for name in gpus:
        load_gpu(name)
    if request.model is not None:
        load_model(request.model)
    if not gpus:
        files = request.coefficients or []
        gpus = [read_coefficient_set(path).configuration().get("gpu", "") for path in files]
    engine = EngineSpec(**of_engine)
    most = request.max_gpus
    return SearchSpace(shared, gpus, formats, engine, most, engines, sizes, images)


def _configurations(request: PlanRequest, space: SearchSpace, has_engine: bool) -> Sequence[Values]:
    """Return the listed configurations, or those of the grid.

    Args:
        request: Request for the plan.
        space: Flags and settings of all candidates.
        has_engine: Whether engines were named, for listed ones too.
    """
    if request.configs is not None:
        if request.disaggregate:
            raise PinnError("--configs names all candidates: leave it or --disaggregate out")
        listed = read_configurations(request.configs)
        rows = [{**given, **row} for row in listed for given in space.given]
        if not has_engine:
            return rows
        return [{**row, "engine": engine} for engine in space.engines for row in rows]
    if not space.gpus or ("model" not in space.shared and not request.coefficients):
        raise PinnError("--model and --gpu are needed: 'pinn models' and 'pinn gpus' list them")
    return grid_configurations(space, request.candidates)


def _fits_nowhere(
    misfits: Sequence[RejectedCandidate], space: SearchSpace, problem: PlanningProblem
) -> str:
    """Return the message: the last misfit, on most GPUs, and the nearest fit."""
    if misfits:
        last = f"{misfits[-1].label}: {misfits[-1].reason}"
    else:
        most = "" if space.most_gpus is None else f" within --max-gpus {space.most_gpus}"
        last = f"the engine starts none of the grid's on {', '.join(space.gpus)}{most}"
    fit = nearest_fit(space, problem.workload)
    # A misfit that more GPUs would not help names its own remedy.
    advice = "" if misfits else "; name other GPUs, or combinations with --candidates"
    return f"no candidate: {last}" + (f"; what fits is {fit}" if fit else advice)


#: Relative error by which a screened highest rate may be too low without losing the candidate.
_SCREENING_ERROR = 0.2

_LOG = logging.getLogger(__name__)
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def make_plan(
    problem: PlanningProblem,
    candidates: Sequence[Candidate],
    misfits: Sequence[RejectedCandidate] = (),
    *,
    top: int,
    each_alone: bool,
    workers: Workers,
) -> Plan:
    """Rank candidates.

    Args:
        problem: Load and SLO.
        candidates: Replicas that fit.
        misfits: Candidates that do not fit.
        top: Smallest number of choices to evaluate.
        each_alone: Whether every candidate is a row; else the best on each hardware.
        workers: Processes that run simulations.

    Raises:
        PinnError: If no candidate meets the SLO; the message has the nearest one.
    """
    begin = time.monotonic()
    summary = problem.summary([candidate.deployment for candidate in candidates])
    groups = _by_hardware(candidates, each_alone)
    _LOG.info("%d candidates on %d kinds of hardware", len(candidates), len(groups))
    # Workers end in any order; the order of a plan is fixed.
    looked_at = _run(workers, partial(screen, problem=problem), groups, "looked at")
    screened = dict(sorted(looked_at, key=itemgetter(0)))
    _check_any(screened, problem, groups)
    chosen = _promising(screened, problem, top)
    rejected = [*misfits, *(each for found in screened.values() for each in found.rejected)]
    for found in (screened[i] for i in screened if i not in chosen):
        rejected += [c.rejected(_costs_more(found, problem)) for c, _ in found.kept]
    choices: list[Choice] = []
    infeasible: list[Infeasible] = []
    simulations = sum(found.simulations for found in screened.values())
    # The longest first: a replica with a higher rate is sent more of the load's requests.
    chosen.sort(key=lambda i: -screened[i].kept[0][1])
    tasks = [screened[i].kept for i in chosen]
    examined = _run(workers, partial(evaluate, problem=problem), tasks, "examined")
    for _, evaluated in sorted(examined, key=itemgetter(0)):
        simulations += evaluated.simulations
        rejected += evaluated.rejected
        choices += [evaluated.choice] if evaluated.choice else []
        infeasible += [evaluated.nearest] if evaluated.nearest else []
    if not choices:
        nearest = min(infeasible, key=lambda each: each.gpus)
        raise PinnError(
            f"no candidate can be rented for {problem.slo.text!r}: the nearest, {nearest.label}, "
            f"{nearest.reason}"
        )
    choices.sort(key=partial(_rank, problem.rate_per_s))
    return Plan(
        ask=summary,
        choices=choices,
        left_out=rejected,
        frontier=_frontier(screened),
        candidates=len(candidates) + len(misfits),
        simulations=simulations,
        seconds=time.monotonic() - begin,
    )


def _run(
    workers: Workers, do: Callable[[_Task], _Result], tasks: Sequence[_Task], verb: str
) -> Iterator[tuple[int, _Result]]:
    begin = time.monotonic()
    for done, (i, result) in enumerate(workers.run(do, tasks), 1):
        _LOG.info("%s %d of %d in %.0f s", verb, done, len(tasks), time.monotonic() - begin)
        yield i, result


def _by_hardware(candidates: Sequence[Candidate], each_alone: bool) -> list[list[Candidate]]:
    if each_alone:
        return [[candidate] for candidate in candidates]
    ordered = sorted(candidates, key=lambda c: str(c.hardware))
    return [list(group) for _, group in groupby(ordered, key=lambda c: c.hardware)]


def _expense(
    found: ScreeningResult, problem: PlanningProblem, error: float = 1.0, *, whole: bool = True
) -> float:
    """Return the price or GPUs for the asked rate, or per request per second without one.

    Args:
        found: Screened hardware, of which the best candidate counts.
        problem: Load and prices.
        error: Factor on the screened rate, for its error.
        whole: Whether replicas are rounded up; else fractions count beyond the first.
    """
    candidate, screened_per_s = found.kept[0]
    rate_per_s, asked = screened_per_s * error, problem.rate_per_s
    gpu = candidate.deployment.gpu.name
    each = problem.price_per_hour(gpu, candidate.gpus) or candidate.gpus
    if asked is None:
        return each / rate_per_s
    return each * (-(-asked // rate_per_s) if whole else max(asked / rate_per_s, 1.0))


def _promising(
    screened: Mapping[int, ScreeningResult], problem: PlanningProblem, top: int
) -> list[int]:
    """Return the hardware to evaluate: the cheapest, and all that may be as cheap as the cheapest.

    Screened rates have an error, and replicas are whole: a loss by rounding up may be gained back
    by another hardware. The cheapest of every engine is evaluated. Where disaggregated P/D is
    tried, so is the cheapest of both kinds.
    """
    kept = (i for i, found in screened.items() if found.kept)
    ordered = sorted(kept, key=lambda i: _expense(screened[i], problem, whole=False))
    least = min(_expense(screened[i], problem, 1 - _SCREENING_ERROR) for i in ordered)
    kinds = [_kind(screened[i].kept[0][0]) for i in ordered]
    return [
        i
        for place, i in enumerate(ordered)
        if place < top
        or kinds[place] not in kinds[:place]
        or _expense(screened[i], problem, 1 + _SCREENING_ERROR) <= least
    ]


def _kind(candidate: Candidate) -> tuple[str, bool]:
    """Return the engine, and whether prefill and decode are disaggregated."""
    return candidate.deployment.serving.engine, isinstance(candidate, PoolsCandidate)


def _costs_more(found: ScreeningResult, problem: PlanningProblem) -> str:
    more, what = ("costs", " an hour") if problem.prices_per_gpu_hour else ("takes", " GPUs")
    per = "" if problem.rate_per_s is not None else " for each request per second"
    return (
        f"{more} more than the choices: about {number(found.kept[0][1])} requests/s a replica, so "
        f"{number(_expense(found, problem))}{what}{per}"
    )


def _rank(asked: float | None, choice: Choice) -> tuple[float, ...]:
    """Return a sort key: least expense of those that meet the SLO, then most to spare."""
    expense = choice.cost_per_hour if choice.cost_per_hour is not None else choice.gpus
    rate = choice.highest_rate
    if asked is None:
        return (expense / rate.per_s, -rate.per_s)
    return (expense, choice.utilization or 0.0)


def _frontier(screened: Mapping[int, ScreeningResult]) -> list[FrontierPoint]:
    """Return the points of every hardware, each with its best limits of the scheduler."""
    series = {each.kept[0][0].label: each for each in screened.values() if each.kept}
    points = [
        (speed, p.output_tokens_per_gpu_s, p.rate_per_s, each.kept[0][0])
        for each in series.values()
        for p in each.points
        if (speed := p.user_tokens_per_s)
    ]
    points.sort(key=lambda each: (-each[0], -each[1]))
    frontier, most = [], 0.0
    for speed, dense, rate, c in points:
        gpu = c.deployment.gpu.name
        frontier.append(FrontierPoint(c.label, gpu, c.gpus, rate, dense, speed, best=dense > most))
        most = max(most, dense)
    return frontier


def _check_any(
    screened: Mapping[int, ScreeningResult],
    problem: PlanningProblem,
    groups: Sequence[Sequence[Candidate]],
) -> None:
    """Raise an error if no candidate meets the SLO at any rate."""
    if any(found.kept for found in screened.values()):
        return
    nearest = min(screened, key=lambda i: screened[i].least_excess)
    excess, label = screened[nearest].least_excess, groups[nearest][0].label
    raise PinnError(
        f"no candidate holds {problem.slo.text!r}: on the nearest, {label}, a request alone takes "
        f"{excess:.2f} times as long: allow that much, or name faster GPUs or fewer bits"
    )
