"""Planning for a load: find candidates, search for the best fleets, and rank the fleets."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from pinn.calibration.load_range import range_warnings
from pinn.common.documents import comma_separated
from pinn.common.files import find_checkpoint
from pinn.common.workers import Workers
from pinn.engines.configurations import Values, canonical, typed_configurations
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.planning.candidate import NETWORK, Candidate
from pinn.planning.candidates import (
    SearchSpace,
    find_candidates,
    grid_configurations,
    nearest_fit,
    read_candidates_file,
)
from pinn.planning.plan import Choice, Plan, PlanRequest, PlanSummary, RejectedCandidate
from pinn.planning.pools import find_pools
from pinn.planning.prices import Price
from pinn.planning.problem import PlanningProblem, check_sizes, draw_load
from pinn.planning.search import Search, by_hardware
from pinn.planning.search_result import make_plan
from pinn.planning.time_budget import TimeBudget
from pinn.simulator.slo import parse_slo
from pinn.simulator.workloads.load import asked_load
from pinn.specs.catalog import load_model
from pinn.specs.flags import FlagValue, flags_apart
from pinn.specs.gpu import load_gpu
from pinn.specs.request_media import RequestMedia
from pinn.specs.serving import VLLM
from pinn.surrogate.coefficient_set import read_coefficient_set


def plan_load(
    request: PlanRequest,
    flags: Mapping[str, FlagValue],
    prices: Mapping[str, Price],
    workers: Workers,
    clock: Callable[[], float] = time.time,
) -> Plan:
    """Return a plan of servers to rent for a load.

    Args:
        request: Load, SLO and GPUs that may be rented.
        flags: Engine and load flags.
        prices: Price by GPU name; empty to rank by the number of GPUs.
        workers: Processes that run simulations.
        clock: Function that returns the time for the time budget; the same in all processes.

    Raises:
        PinnError: If the request is incomplete, or no candidate fits or meets the SLO; the message
            names the closest candidate.
        KeyboardInterrupt: If an interrupt is received before any hardware was screened.
    """
    if not request.time_budget > 0:
        raise PinnError(f"--time-budget must be positive, got {request.time_budget:g} s")
    budget = TimeBudget.starting(request.time_budget, clock)
    checkpoint = find_checkpoint(request.checkpoint)
    load, flags = asked_load(
        request.workload, flags, request.seed, model=request.model, closed=False
    )
    rate, slo = request.rate, parse_slo(request.slo)
    load, draws = draw_load(load, rate)
    slo.check(draws[0].output_tokens)
    # A candidate is one replica, and the plan determines the number of replicas. The flag is
    # therefore only the minimum number.
    least = cast(int, flags.get("replicas", 1))
    flags = {name: value for name, value in flags.items() if name != "replicas"}
    check_sizes(request, least)
    space = _search_space(request, flags, load.media)
    gpus = [load_gpu(name).name for name in space.gpus if name]
    problem = PlanningProblem(
        draws, rate, slo, checkpoint, prices, request.max_gpus, load, request.headroom, gpus, least,
        request.min_probability, request.spare_replicas,
    )  # fmt: skip
    rows = _configurations(request, space, "engine" in flags)
    # Start the worker processes before computing predictions, because both take about equally long.
    with workers.kept("pinn.planning.search_steps", "pinn.simulator.simulate") as kept:
        files, listed = request.coefficients or (), request.configs is not None
        found, misfits = find_candidates(
            rows, space, problem.workload, checkpoint, files, listed=listed
        )
        if request.disaggregate:
            apart, more = find_pools(space, problem.workload, checkpoint, request.candidates)
            found, misfits = [*found, *apart], [*misfits, *more]
        if not found:
            raise PinnError(_fits_nowhere(misfits, space, problem))
        groups = by_hardware(found, each_alone=listed)
        search = Search(problem, groups, kept, budget, request.cache)
        plan = make_plan(search, misfits, top=request.top)
    ask = replace(
        plan.ask,
        gpus_per_machine=read_candidates_file(request.candidates).gpus_per_machine,
        derives_length=not any("max_model_len" in canonical(row) for row in rows),
        suggests_fp8="precision" not in flags and not listed and _may_gain_by_fp8(found),
    )
    return replace(plan, ask=ask, choices=[_with_range_warnings(c, ask) for c in plan.choices])


def _may_gain_by_fp8(candidates: Sequence[Candidate]) -> bool:
    """Return whether all weights have 16 bits, and a GPU multiplies faster in fp8."""
    deployments = [each.deployment for each in candidates if each.source == NETWORK]
    forms = {form.name for each in deployments for form in vars(each.model.precisions).values()}
    return forms <= {"bf16", "fp16"} and any(
        "fp8" in each.gpu.peak_flop_per_s for each in deployments
    )


def _with_range_warnings(choice: Choice, ask: PlanSummary) -> Choice:
    """Add a warning for each property of the load outside the range of a calibrated file."""
    if choice.coefficients == NETWORK:
        return choice
    load = {"prompt_tokens": ask.prompt_tokens, "output_tokens": ask.output_tokens}
    if e2e_s := choice.at_rate.latency_s["e2e"]["mean"]:
        load["requests_in_flight"] = choice.at_rate.rate_per_s * e2e_s  # Little's law
    found = range_warnings(read_coefficient_set(Path(choice.coefficients)), [load])
    sentences = [f"{text[0].upper()}{text[1:]}." for text in found]
    return replace(choice, assumptions=[*choice.assumptions, *sentences])


def _search_space(
    request: PlanRequest, flags: Mapping[str, FlagValue], media: RequestMedia | None
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
    servers = {path: _server_of(path) for path in request.coefficients or ()}
    named = {load_gpu(name).name for name in gpus}
    for path, (model, gpu) in servers.items():
        if named and gpu and load_gpu(gpu).name not in named:
            raise PinnError(
                f"{path} has coefficients of a server on {gpu}, but --gpu is {request.gpu}: add "
                f"{gpu} to --gpu, or omit the file"
            )
        if named and model and "model" not in shared:  # compare the server with other hardware
            shared = {**shared, "model": model}
    gpus = gpus or [gpu for _, gpu in servers.values()]
    engine = EngineSpec(**of_engine)
    most = request.max_gpus
    return SearchSpace(shared, gpus, formats, engine, most, engines, sizes, media)


def _server_of(path: Path) -> tuple[str, str]:
    """Return model and GPU of a coefficient file's server; empty if it does not state them."""
    found = read_coefficient_set(path).configuration()
    return str(found.get("model", "")), str(found.get("gpu", ""))


def _configurations(request: PlanRequest, space: SearchSpace, has_engine: bool) -> Sequence[Values]:
    """Return the configurations that the user listed, or else the combinations of the grid.

    Args:
        request: Request for the plan.
        space: Flags and settings of all candidates.
        has_engine: Whether the user specified engines, which then also apply to listed
            configurations.
    """
    if request.configs is not None:
        if request.disaggregate:
            raise PinnError(
                "--configs and --disaggregate both set the candidates: omit one of the two"
            )
        listed = typed_configurations(request.configs)
        rows = [{**given, **row} for row in listed for given in space.given]
        if not has_engine:
            return rows
        return [{**row, "engine": engine} for engine in space.engines for row in rows]
    if not space.gpus or ("model" not in space.shared and not request.coefficients):
        raise PinnError(
            "--model and --gpu are required: give names that 'pinn models' and 'pinn gpus' list"
        )
    return grid_configurations(space, request.candidates)


def _fits_nowhere(
    misfits: Sequence[RejectedCandidate], space: SearchSpace, problem: PlanningProblem
) -> str:
    """Return an error message: why no candidate fits, and which replica would fit.

    The reason is that of the last candidate that does not fit, which has the most GPUs.
    """
    if misfits:
        last = f"{misfits[-1].label}: {misfits[-1].reason}"
    else:
        most = "" if space.most_gpus is None else f" within --max-gpus {space.most_gpus}"
        last = (
            f"the engine does not start with any of the candidates on {', '.join(space.gpus)}{most}"
        )
    fit = nearest_fit(space, problem.workload)
    # The reason why a candidate does not fit already contains advice.
    advice = "" if misfits else "; give other GPUs, or other combinations with --candidates"
    return f"no candidate: {last}" + (f"; these would fit: {fit}" if fit else advice)
