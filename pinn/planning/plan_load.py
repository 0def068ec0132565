"""Plan for a load: from a request to its problem, its search space and the plan."""

from collections.abc import Mapping, Sequence

from pinn.common.documents import comma_separated
from pinn.common.files import find_checkpoint
from pinn.common.workers import Workers
from pinn.engines.configurations import Values, canonical, read_configurations
from pinn.errors import PinnError
from pinn.planning.candidates import SearchSpace, find_candidates, grid_configurations, nearest_fit
from pinn.planning.plan import Plan, RejectedCandidate
from pinn.planning.planner import make_plan
from pinn.planning.pools import find_pools
from pinn.planning.problem import PlanningProblem, draw_load
from pinn.planning.request import PlanRequest
from pinn.planning.slo import parse_slo
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.workloads.load import asked_load
from pinn.specs.catalog import load_model
from pinn.specs.flags import FlagValue, flags_apart
from pinn.specs.gpu import load_gpu
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
        request: The load, its SLO and what may be rented.
        flags: Flags of engine and load.
        prices_per_gpu_hour: Name of a GPU -> price; GPUs are counted where there are none.
        workers: Where simulations run.

    Raises:
        PinnError: If the request is incomplete, or no candidate fits or meets the SLO, with what
            comes nearest.
    """
    checkpoint = find_checkpoint(request.checkpoint)
    load, flags = asked_load(request.workload, flags, request.seed, closed=False)
    slo = parse_slo(request.slo)
    load, draws = draw_load(load, request.rate)
    problem = PlanningProblem(
        draws, request.rate, slo, checkpoint, prices_per_gpu_hour, request.max_gpus, load
    )
    space = _search_space(request, flags)
    rows = _configurations(request, space, "engine" in flags)
    # Predicting takes as long as the processes take to start.
    with workers.kept("pinn.planning.planner", "pinn.simulator.simulate") as kept:
        found, misfits = find_candidates(
            rows,
            space,
            problem.workload,
            checkpoint,
            request.coefficients or (),
            listed=request.configs is not None,
        )
        if request.disaggregate:
            apart, more = find_pools(space, problem.workload, checkpoint, request.candidates)
            found, misfits = [*found, *apart], [*misfits, *more]
        if not found:
            raise PinnError(_fits_nowhere(misfits, space, problem))
        return make_plan(
            problem,
            found,
            misfits,
            top=request.top,
            each_alone=request.configs is not None,
            workers=kept,
        )


def _search_space(request: PlanRequest, flags: Mapping[str, FlagValue]) -> SearchSpace:
    of_engine, serving = flags_apart(EngineSpec, flags)
    formats = comma_separated(str(serving.pop("precision", "")))
    engines = serving.pop("engine", [])
    engines = [engines] if isinstance(engines, str) else engines
    shared = canonical({"model": request.model} | serving)
    gpus = comma_separated(request.gpu or "")
    for name in gpus:
        load_gpu(name)
    if request.model is not None:
        load_model(request.model)
    if not gpus:
        files = request.coefficients or []
        gpus = [read_coefficient_set(path).configuration().get("gpu", "") for path in files]
    return SearchSpace(
        shared, gpus, formats or [None], EngineSpec(**of_engine), request.max_gpus,
        engines or [VLLM],
    )  # fmt: skip


def _configurations(request: PlanRequest, space: SearchSpace, has_engine: bool) -> Sequence[Values]:
    """The listed configurations, or those of the grid.

    Args:
        request: What was asked.
        space: What holds for all of them.
        has_engine: Whether engines were named, for listed ones too.
    """
    if request.configs is not None:
        if request.disaggregate:
            raise PinnError("--configs names all candidates: leave it or --disaggregate out")
        rows = [{**space.shared, **row} for row in read_configurations(request.configs)]
        if not has_engine:
            return rows
        return [{**row, "engine": engine} for engine in space.engines for row in rows]
    if not space.gpus or ("model" not in space.shared and not request.coefficients):
        raise PinnError("--model and --gpu are needed: 'pinn models' and 'pinn gpus' list them")
    return grid_configurations(space, request.candidates)


def _fits_nowhere(
    misfits: Sequence[RejectedCandidate], space: SearchSpace, problem: PlanningProblem
) -> str:
    """One line: the last misfit, which is on most GPUs, and the nearest thing that works."""
    if misfits:
        last = f"{misfits[-1].label}: {misfits[-1].reason}"
    else:
        most = "" if space.most_gpus is None else f" within --max-gpus {space.most_gpus}"
        last = f"the engine starts none of the grid's on {', '.join(space.gpus)}{most}"
    fit = nearest_fit(space, problem.workload)
    # A misfit that more GPUs do not mend names its own remedy.
    advice = "" if misfits else "; name other GPUs, or combinations with --candidates"
    return f"no candidate: {last}" + (f"; what fits is {fit}" if fit else advice)
