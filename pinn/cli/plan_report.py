"""What pinn plan asks and prints."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pinn.api.requests import PlanRequest
from pinn.cli.report_parts import notices
from pinn.common.files import find_checkpoint
from pinn.common.screen import Column, Grid, as_typed, page, say
from pinn.common.tables import write_rows
from pinn.common.workers import Workers
from pinn.engines.configurations import canonical, read_configurations
from pinn.errors import PinnError
from pinn.planning import candidates
from pinn.planning import plan as plans
from pinn.planning.candidates import NETWORK, Brief, Candidate, Wanted
from pinn.planning.make import Progress, make_plan
from pinn.planning.pools import find_pools
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.workloads.load import Load, asked_load
from pinn.simulator.workloads.workload import mean_rate_per_s
from pinn.specs.catalog import load_model
from pinn.specs.flags import flags_apart
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import VLLM
from pinn.surrogate.coefficient_set import read_coefficient_set
from pinn.units import MILLISECOND

# What ``pinn plan`` was asked, and the candidates for it.

#: How long a load in flags lasts where nothing says it.
_DURATION_S = 600.0
#: Draws of the load whose highest rates are compared, by default.
_DRAWS = 5


def planned(
    asked: PlanRequest,
    flags: dict[str, Any],
    prices: dict[str, float],
    workers: Workers,
    progress: Progress = lambda _: None,
) -> plans.Plan:
    """The plan.

    Args:
        asked: The load, its limits and what may be rented.
        flags: Of engine and load.
        prices: Per GPU and hour, by its name; GPUs are counted where there are none.
        workers: Who simulates.
        progress: Told what is done.
    """
    used = find_checkpoint(asked.checkpoint)
    load, flags = asked_load(asked.workload, flags, asked.seed, closed=False)
    brief = _brief(asked, load, prices, used)
    wanted = _wanted(asked, flags)
    files, listed = asked.coefficients or [], asked.configs is not None
    if asked.configs is None:
        if not wanted.gpus or ("model" not in wanted.shared and not files):
            raise PinnError("--model and --gpu are needed: 'pinn models' and 'pinn gpus' list them")
        rows = candidates.grid_configurations(wanted, asked.candidates)
    else:
        rows = [{**wanted.shared, **row} for row in read_configurations(asked.configs)]
        if "engine" in flags:
            rows = [{**row, "engine": engine} for engine in wanted.engines for row in rows]
    if asked.disaggregate and listed:
        raise PinnError("--configs names all candidates: leave it or --disaggregate out")
    # Predicting takes as long as the processes take to start.
    with workers.kept("pinn.planning.make", "pinn.simulator.simulate") as kept:
        found, misfits = candidates.find_candidates(
            rows, wanted, brief.workload, used, files, listed=listed
        )
        if asked.disaggregate:
            apart, more = find_pools(wanted, brief.workload, used, asked.candidates)
            found, misfits = [*found, *apart], [*misfits, *more]
        how: Any = {"top": asked.top, "each_alone": listed, "workers": kept, "progress": progress}
        return make_plan(ask_of(wanted, found, misfits, brief), brief, found, misfits, **how)


def write_files(made: plans.Plan, out: Path) -> None:
    """Write plan.json, plan.csv, plan.html and its pictures into a folder."""
    from pinn.planning.page import write_page

    plans.write_plan(made, out / "plan.json")
    write_csv(made, out / "plan.csv")
    write_page(made, out)


def _brief(asked: PlanRequest, load: Load, prices: dict[str, float], checkpoint: Path) -> Brief:
    limits, rate = plans.parse_limits(asked.slo), asked.rate
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


def _wanted(asked: PlanRequest, flags: dict[str, Any]) -> Wanted:
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


def ask_of(
    wanted: Wanted, found: Sequence[Candidate], misfits: Sequence[plans.LeftOut], brief: Brief
) -> plans.Ask:
    """For the record; stops where nothing can be planned.

    Raises:
        PinnError: If there is no candidate, with what comes nearest, or a GPU has no price.
    """
    if not found:
        raise PinnError(_fits_nowhere(misfits, wanted, brief))
    gpus = sorted({candidate.deployment.gpu.name for candidate in found})
    prices = brief.prices_per_gpu_hour
    unpriced = [gpu for gpu in gpus if gpu not in prices]
    if prices and unpriced:
        raise PinnError(f"--price names no price of {', '.join(unpriced)}: add {unpriced[0]}=...")
    load = brief.workload
    servings = dict.fromkeys(candidate.deployment.serving for candidate in found)
    said = [text for serving in servings for text in notices(serving).get("notices", ())]
    return plans.Ask(
        model=found[0].deployment.model.title,
        workload=brief.load.title,
        requests=len(load),
        prompt_tokens=float(load.prompt_tokens.mean()),
        output_tokens=float(load.output_tokens.mean()),
        longest_tokens=int((load.prompt_tokens + load.output_tokens).max()),
        rate_per_s=brief.rate_per_s,
        slo=brief.limits.text,
        limits=brief.limits.sentences,
        gpus=gpus,
        max_gpus=brief.max_gpus,
        prices_per_gpu_hour=prices,
        notices=list(dict.fromkeys(said)),
    )


def _fits_nowhere(misfits: Sequence[plans.LeftOut], wanted: Wanted, brief: Brief) -> str:
    """One line: the last misfit, which is on most GPUs, and the nearest thing that works."""
    if misfits:
        last = f"{misfits[-1].label}: {misfits[-1].reason}"
    else:
        most = "" if wanted.most_gpus is None else f" within --max-gpus {wanted.most_gpus}"
        last = f"the engine starts none of the grid's on {', '.join(wanted.gpus)}{most}"
    fit = candidates.nearest_fit(wanted, brief.workload)
    # A misfit that more GPUs do not mend names its own remedy.
    advice = "" if misfits else "; name other GPUs, or combinations with --candidates"
    return f"no candidate: {last}" + (f"; what fits is {fit}" if fit else advice)


# A plan as a table for the terminal and as CSV.

#: Rows of a terminal; the files have all.
_ROWS = 5
#: Most hardware that is left out with a line each; plan.json has all.
_NAMED = 1


def print_plan(plan: plans.Plan, out: Path | None) -> None:
    """Print the choices, best first, how to start the first one, and what was left out."""
    ask = plan.ask
    asked = f"{ask.rate_per_s:g} requests/s" if ask.rate_per_s else "as much as it holds"
    say(
        f"{ask.model}, {ask.workload}: {asked}, {ask.prompt_tokens:,.0f} prompt and "
        f"{ask.output_tokens:,.0f} output tokens; {'; '.join(ask.limits)}"
    )
    page().print(_table(plan))
    first = plan.choices[0]
    print("First choice:", *map(as_typed, first.serve_command.split("\n")), sep="\n")
    print("Its figures:", *map(as_typed, first.simulate_command.split("\n")), sep="\n")
    for line in _notes(plan, out):
        say(line)


def _table(plan: plans.Plan) -> Grid:
    """What fits in a terminal; the page and the CSV file have the rest."""
    left_out = set()
    if not plan.ask.prices_per_gpu_hour:
        left_out.add("per\nhour")
    if plan.ask.rate_per_s is None:
        left_out.add("chance")
    if all(c.coefficients == NETWORK for c in plan.choices):
        left_out.add("coefficients")
    shown = {column: text for column, text in _COLUMNS.items() if column.heading not in left_out}
    table = Grid(list(shown), gap=1)
    for choice in plan.choices[:_ROWS]:
        table.add(*(text(choice) for text in shown.values()))
    return table


def _written(value: float | None) -> str:
    """With three significant digits, trailing zeros among them, and never with an exponent."""
    if value is None:
        return "-"
    decimals = 2 - math.floor(math.log10(value)) if value > 0 else 2
    return f"{value:,.{max(decimals, 0)}f}"


def _p99_ms(choice: plans.Choice, metric: str) -> str:
    value = choice.seen.latency_s[metric]["p99"]
    return "-" if value is None else f"{value / MILLISECOND:,.0f}"


def _rate(choice: plans.Choice) -> str:
    rate = choice.fleet_rate
    if rate.interval_per_s is None:
        return _written(rate.per_s)
    low, high = map(_written, rate.interval_per_s)
    return f"{_written(rate.per_s)} ({low}-{high})"


def _chance(choice: plans.Choice) -> str:
    if choice.chance is None:
        return "-"
    # The largest of the law's equally likely errors stands for the worst 5 %.
    share = ">97 %" if choice.chance > 0.97 else f"{100 * choice.chance:.0f} %"
    return share + (" safe" if choice.safe else "")


_COLUMNS: dict[Column, Callable[[plans.Choice], str]] = {
    Column("GPUs", folds=False): lambda c: str(c.gpus),
    Column("per\nhour", folds=False): lambda c: f"{c.cost_per_hour:,.2f}",
    Column("start", True, least=26): lambda c: f"{c.replicas} x {c.label}".replace(", ", ",\n", 1),
    Column("holds/s", folds=False): _rate,
    Column("TTFT\np99 ms", folds=False): lambda c: _p99_ms(c, "ttft"),
    Column("TPOT\np99 ms", folds=False): lambda c: _p99_ms(c, "tpot"),
    Column("chance", most=6): _chance,
    Column("coefficients", True): lambda c: c.coefficients,
}


def _notes(plan: plans.Plan, out: Path | None) -> list[str]:
    first = plan.choices[0]
    on_each = plans.parse_limits(plan.ask.slo).goodput is not None
    lines = _how_sure(first)
    lines += [_fleet(first.replicas, fleet, on_each) for fleet in first.fleets]
    lines += filter(None, [first.seen.burst_warning])
    if any(choice.pools for choice in plan.choices):
        lines.append(f"Prefill and decode apart: {plans.POOLS_UNSURE}.")
    misfits = [each for each in plan.left_out if not each.simulated]
    more = len(plan.choices) - _ROWS
    if more > 0:
        lines.append(f"Choices beside these: {more}, in the page, plan.json and plan.csv of --out.")
    lines.append(
        f"{plan.candidates} candidates, {plan.simulations} simulations, {plan.seconds:.0f} s; left "
        f"out {len(plan.left_out)}, {len(misfits)} of them without a simulation."
    )
    hardware = [each for each in misfits if ", " not in each.label]
    lines += [f"  {each.label}: {each.reason}" for each in hardware[:_NAMED]]
    if out is not None:
        lines.append(f"All of it: {out / 'plan.html'}, {out / 'plan.json'}, {out / 'plan.csv'}")
    return lines


def _fleet(replicas: int, fleet: plans.Fleet, on_each: bool) -> str:
    """How replicas serve the load together; limits on each request are not always there."""
    what = "meet the limits on each request" if on_each else "of the requests are served"
    routing = fleet.routing.replace("_", " ")
    together = f"{replicas} replicas together, {routing}" if replicas > 1 else "1 replica"
    missed = "" if fleet.point.holds else "; a limit is MISSED"
    return f"{together}: {100 * fleet.point.met_share:.1f} % {what}{missed}"


def _how_sure(choice: plans.Choice) -> list[str]:
    """What one replica holds and what all do together, and how sure that is."""
    one, all_of_them = choice.highest_rate, choice.fleet_rate
    alone = f"One replica alone holds {_written(one.per_s)} requests/s" + _search_bar(one)
    if choice.replicas == 1:
        return [alone + _interval_bar(all_of_them) + "."]
    together = f"{choice.replicas} replicas together hold {_written(all_of_them.per_s)}"
    together += _search_bar(all_of_them) + _interval_bar(all_of_them)
    more = f"; {plans.FLEET_HOLDS_MORE}" if choice.fleet_holds_more else ""
    return [f"{alone}.", f"{together}{more}."]


def _search_bar(rate: plans.HighestRate) -> str:
    """Width of the bisection, and the spread over draws of the load."""
    parts = []
    if rate.fails_per_s is not None:
        parts.append(f"no longer {_written(rate.fails_per_s)}")
    if len(rate.seeds_per_s) > 1:
        low, high = map(_written, (min(rate.seeds_per_s), max(rate.seeds_per_s)))
        parts.append(f"{len(rate.seeds_per_s)} draws of the load: {low} to {high}")
    return f" ({'; '.join(parts)})" if parts else ""


def _interval_bar(rate: plans.HighestRate) -> str:
    if rate.interval_per_s is None or rate.level is None:
        return ", no interval of the prediction"
    low, high = map(_written, rate.interval_per_s)
    return f", {100 * rate.level:.0f} % interval of the prediction {low} to {high}/s"


def write_csv(plan: plans.Plan, path: Path) -> None:
    """One row per choice, best first; SI units, named in the columns."""
    rows = choice_rows(plan)
    write_rows(rows, list(rows[0]), path)


def choice_rows(plan: plans.Plan) -> list[dict[str, object]]:
    """What :func:`write_csv` writes: column to value, for each choice."""
    rows = [_row(place, choice) for place, choice in enumerate(plan.choices, 1)]
    if any(choice.pools for choice in plan.choices):
        for row, choice in zip(rows, plan.choices, strict=True):
            row["prefill"], row["decode"] = choice.pools or (None, None)
    return rows


#: Columns that are called as in a choice: those before its flags, and the last ones.
_FIRST_COLUMNS = ("gpus", "cost_per_hour", "cost_per_million_output_tokens", "replicas", "engine",
                  "gpu", "gpus_per_replica")  # fmt: skip
_LAST_COLUMNS = ("limited_by", "chance", "safe", "serve_command", "simulate_command")


def _row(place: int, c: plans.Choice) -> dict[str, object]:
    low, high = c.fleet_rate.interval_per_s or (None, None)
    seeds = c.highest_rate.seeds_per_s
    return {
        "rank": place,
        **{name: getattr(c, name) for name in _FIRST_COLUMNS},
        **c.flags,
        **{f"format_{part}": name for part, name in c.formats.items()},
        "coefficients": c.coefficients,
        "highest_rate_per_s": c.highest_rate.per_s,
        "lowest_rate_that_fails_per_s": c.highest_rate.fails_per_s,
        "highest_rate_least_draw_per_s": min(seeds, default=None),
        "highest_rate_most_draw_per_s": max(seeds, default=None),
        "fleet_rate_per_s": c.fleet_rate.per_s,
        "fleet_rate_bad_end_per_s": low,
        "fleet_rate_good_end_per_s": high,
        "utilization": c.utilization,
        "rate_per_replica_per_s": c.at_rate.rate_per_s,
        "met_share": c.seen.met_share,
        **{
            f"{metric}_{name}_s": value
            for metric, table in c.seen.latency_s.items()
            for name, value in table.items()
        },
        "output_tokens_per_gpu_s": c.seen.output_tokens_per_gpu_s,
        "user_tokens_per_s": c.seen.user_tokens_per_s,
        **{name: getattr(c, name) for name in _LAST_COLUMNS},
    }
