"""``pinn plan``."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from pinn.common.files import find_checkpoint
from pinn.errors import PinnError
from pinn.interface.commands.options import engine_flags, output
from pinn.interface.commands.requests import PlanRequest
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.workloads.load import Load, LoadFlags, asked_load
from pinn.simulator.workloads.workload import mean_rate_per_s
from pinn.specs.catalog import load_model
from pinn.specs.flags import flags_apart
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import VLLM, ServingSpec

if TYPE_CHECKING:
    from pinn.common.workers import Workers
    from pinn.planning.candidates import Brief, Wanted
    from pinn.planning.make import Progress
    from pinn.planning.plan import Plan

#: How long a load in flags lasts where nothing says it.
_DURATION_S = 600.0
#: Draws of the load whose highest rates are compared, by default.
_DRAWS = 5


@dataclass(frozen=True, kw_only=True)
class WorkersRequest:
    """Who simulates.

    Attributes:
        backend: processes of this machine, or ray.
        workers: Tasks at a time. [default: one per core]
        address: Of a running Ray cluster.
    """

    PANEL: ClassVar[str] = "Where simulations run"

    backend: str = "processes"
    workers: int | None = None
    address: str | None = None


@engine_flags(ServingSpec, EngineSpec, LoadFlags, several=("engine",), deploys=True)
def plan(
    asked: PlanRequest,
    where: WorkersRequest,
    price: Annotated[
        str | None,
        typer.Option(help="Per GPU and hour: 'H100=2.5 H200=3.2'. [default: GPUs are counted]"),
    ] = None,
    out: Annotated[
        Path | None, output("--out", "Folder for plan.json, plan.csv, plan.html, PNGs.")
    ] = None,
    *,
    flags: dict[str, Any],
) -> None:
    """What to rent, how to start it, and how sure that is: simulates a load on every candidate.

    Candidates are all parallelisms, token budgets and numbers of requests a step that the engine
    would start with room for the load's longest request; flags that are given hold for all of
    them; --quantization and --engine take several, separated by commas. Each is searched for the
    highest rate that one replica holds within the limits; as few replicas as hold the asked rate
    follow, checked together behind a load balancer.

    Columns:
      GPUs          replicas x tensor x pipeline x data-parallel ranks
      per hour      GPUs x price
      start         replicas x GPU, ranks (TP, PP, DP, EP), format, engine, and
                    the most tokens and requests of a step; flags in the line
      holds/s       requests/s: highest rate of all replicas within the limits;
                    in brackets at both ends of the prediction's interval
      TTFT p99      ms from sending to the first token, of all replicas' requests
      TPOT p99      ms: (last token - first token) / (tokens - 1), likewise
      chance        %: share of 20 equally likely errors of the prediction at
                    which all replicas hold the limits; safe: at its interval's
                    bad end too; none for a load shorter than 10 answers
      coefficients  network, or the file of --coefficients

    Rows are in the order of per hour (or GPUs). Without --rate, of per hour / holds/s; TTFT and
    TPOT are then of one replica at holds/s. The files of --out have more: price per million
    tokens, what limits a row, use, other percentiles, what was left out and why.

    Examples:
      pinn plan --model Llama-3.1-8B --gpu H100,L40S --slo 'p99 ttft<=2s'
        --input-len 1024 --output-len 256 --rate 8

      pinn plan --model meta-llama/Llama-3.3-70B-Instruct --rate 12
        --workload load.yaml --slo 'ttft<=1s, tpot<=40ms for 95 %'
        --gpu H100,H200,L40S --price 'H100=2.5 H200=3.2 L40S=1.1'
        --max-gpus 32 --out plan/

      pinn plan --model Qwen/Qwen3-30B-A3B --workload trace.csv --gpu H100
        --slo 'p99 ttft<=2s' --quantization bf16,fp8
    """
    from pinn.common.workers import Workers, stopping_at_once
    from pinn.interface.commands.plan_report import print_plan

    with stopping_at_once("nothing is kept: a plan is written when it is done"):
        made = planned(
            asked,
            flags,
            {} if price is None else _prices(price),
            Workers(
                where.backend, where.workers or os.cpu_count() or 1, where.address, torch=False
            ),
            lambda line: print(line, file=sys.stderr, flush=True),
        )
        if out is not None:
            write_files(made, out)
    print_plan(made, out)


def planned(
    asked: PlanRequest,
    flags: dict[str, Any],
    prices: dict[str, float],
    workers: Workers,
    progress: Progress = lambda _: None,
) -> Plan:
    """The plan.

    Args:
        asked: The load, its limits and what may be rented.
        flags: Of engine and load.
        prices: Per GPU and hour, by its name; GPUs are counted where there are none.
        workers: Who simulates.
        progress: Told what is done.
    """
    from pinn.coefficients.configurations import read_configurations
    from pinn.interface.commands.plan_report import ask_of
    from pinn.planning.candidates import find_candidates, grid_configurations
    from pinn.planning.make import make_plan

    used = find_checkpoint(asked.checkpoint)
    load, flags = asked_load(asked.workload, flags, asked.seed, closed=False)
    brief = _brief(asked, load, prices, used)
    wanted = _wanted(asked, flags)
    files, listed = asked.coefficients or [], asked.configs is not None
    if asked.configs is None:
        if not wanted.gpus or ("model" not in wanted.shared and not files):
            raise PinnError("--model and --gpu are needed: 'pinn models' and 'pinn gpus' list them")
        rows = grid_configurations(wanted, asked.candidates)
    else:
        rows = [{**wanted.shared, **row} for row in read_configurations(asked.configs)]
        if "engine" in flags:
            rows = [{**row, "engine": engine} for engine in wanted.engines for row in rows]
    if asked.disaggregate and listed:
        raise PinnError("--configs names all candidates: leave it or --disaggregate out")
    # Predicting takes as long as the processes take to start.
    with workers.kept("pinn.planning.make", "pinn.simulator.simulate") as kept:
        found, misfits = find_candidates(rows, wanted, brief.workload, used, files, listed=listed)
        if asked.disaggregate:
            from pinn.planning.pools import find_pools

            apart, more = find_pools(wanted, brief.workload, used, asked.candidates)
            found, misfits = [*found, *apart], [*misfits, *more]
        return make_plan(
            ask_of(wanted, found, misfits, brief),
            brief,
            found,
            misfits,
            top=asked.top,
            each_alone=listed,
            workers=kept,
            progress=progress,
        )


def write_files(made: Plan, out: Path) -> None:
    """Write plan.json, plan.csv, plan.html and its pictures into a folder."""
    from pinn.interface.commands.plan_report import write_csv
    from pinn.planning.page import write_page
    from pinn.planning.plan import write_plan

    write_plan(made, out / "plan.json")
    write_csv(made, out / "plan.csv")
    write_page(made, out)


def _brief(asked: PlanRequest, load: Load, prices: dict[str, float], checkpoint: Path) -> Brief:
    from pinn.planning.candidates import Brief
    from pinn.planning.plan import parse_limits

    limits, rate = parse_limits(asked.slo), asked.rate
    if rate is not None and not 0 < rate < float("inf"):
        raise PinnError(f"--rate must be positive and finite, got {rate:g} requests/s")
    if load.path is None and not {"num_prompts", "duration"} & set(load.flags.given):
        load = replace(load, flags=replace(load.flags, duration=_DURATION_S))
    # Flags have no rate of their own; what a server holds does not hang on the one to begin with.
    drawn_at = 1.0 if rate is None and load.path is None else rate
    seeds = [load.seed, *((load.seed or 0) + 1000 + i for i in range(1, _DRAWS))]
    draws = [load.draw(drawn_at, each) for each in seeds]
    mean_rate_per_s(draws[0])
    return Brief(draws, rate, limits, checkpoint, prices, asked.max_gpus, load)


def _prices(text: str) -> dict[str, float]:

    found: dict[str, float] = {}
    for part in text.replace(",", " ").split():
        name, equals, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not equals or not 0 < number < float("inf"):
            raise PinnError(f"--price: cannot read {part!r}: write 'H100=2.5 H200=3.2'")
        gpu = load_gpu(name).name
        if found.setdefault(gpu, number) != number:
            raise PinnError(f"--price: {gpu} costs {found[gpu]:g} and {number:g}: give one price")
    return found


def _wanted(asked: PlanRequest, flags: dict[str, Any]) -> Wanted:
    from pinn.coefficients.coefficients import read_coefficient_set
    from pinn.coefficients.configurations import canonical
    from pinn.planning.candidates import Wanted

    of_engine, serving = flags_apart(EngineSpec, flags)
    formats = [part.strip() for part in str(serving.pop("precision", "")).split(",") if part]
    engines = serving.pop("engine", [])
    engines = [engines] if isinstance(engines, str) else engines
    shared = canonical(({} if asked.model is None else {"model": asked.model}) | serving)
    gpus = [part.strip() for part in (asked.gpu or "").split(",") if part.strip()]
    for name in gpus:
        load_gpu(name)
    if asked.model is not None:
        load_model(asked.model)
    if not gpus:
        files = asked.coefficients or []
        gpus = [read_coefficient_set(path).configuration().get("gpu", "") for path in files]
    return Wanted(
        shared, gpus, formats or [None], EngineSpec(**of_engine), asked.max_gpus, engines or [VLLM]
    )
