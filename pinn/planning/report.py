"""Printing of a plan in a terminal, and writing of its files."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from pinn.common.files import write_whole
from pinn.common.numbers import exact, number
from pinn.common.screen import Column, Grid, as_typed, page, say
from pinn.common.tables import write_rows
from pinn.engines.routers import LEAST_REQUESTS, PREFIX_AWARE, RANDOM, ROUND_ROBIN
from pinn.errors import PinnError
from pinn.planning.candidate import NETWORK
from pinn.planning.manifest import manifest
from pinn.planning.plan import (
    INTERRUPT,
    NOT_TRIED,
    POOLS_UNSURE,
    Choice,
    Fleet,
    HighestRate,
    Plan,
)
from pinn.simulator.slo import LimitOutcome, parse_slo

#: Most rows in a terminal; the files have all.
_ROWS = 4
#: Most hardware without a simulation that gets a line of its own; plan.json has all.
_NAMED = 1


def print_plan(plan: Plan, out: Path | None) -> None:
    """Print the choices, best first, how to start the first one, and the rejected candidates."""
    ask = plan.ask
    asked = f"{exact(ask.rate_per_s)} requests/s" if ask.rate_per_s else "as much as it holds"
    asked += f" and {100 * ask.headroom:g} % more" if ask.headroom else ""
    say(
        f"{ask.model}, {ask.workload}: {asked}, {ask.prompt_tokens:,.0f} prompt and "
        f"{ask.output_tokens:,.0f} output tokens; {'; '.join(ask.limits)}"
    )
    page().print(_table(plan))
    if len(plan.by_gpu) > 1:
        page().print(_gpu_table(plan))
    first = plan.choices[0]
    print("First choice:", *map(as_typed, first.serve_command.split("\n")), sep="\n")
    print("Its figures:", *map(as_typed, first.simulate_command.split("\n")), sep="\n")
    for line in _notes(plan, out):
        say(line)


def _table(plan: Plan) -> Grid:
    """Return the columns that fit a terminal; the page and the CSV file have the rest."""
    is_shown = {
        "per\nhour": bool(plan.ask.prices_per_gpu_hour),
        "chance": plan.ask.rate_per_s is not None,
        "coefficients": any(c.coefficients != NETWORK for c in plan.choices),
    }
    limits: dict[Column, Callable[[Choice], str]] = {
        Column(_heading(each), folds=False): partial(_limit_cell, i)
        for i, each in enumerate(plan.choices[0].seen.limits)
    }
    columns = {**_COLUMNS, **limits, **_LAST}
    shown = {column: text for column, text in columns.items() if is_shown.get(column.heading, True)}
    table = Grid(list(shown), gap=1)
    for choice in plan.choices[:_ROWS]:
        table.add(*(text(choice) for text in shown.values()))
    return table


def _gpu_table(plan: Plan) -> Grid:
    """Return the best choice on every GPU that was asked, or that it has none."""
    has_prices = bool(plan.ask.prices_per_gpu_hour)
    columns: dict[Column, Callable[[Choice], str]] = {
        Column("best on", True, folds=False): lambda c: c.gpu,
        Column("GPUs", folds=False): lambda c: str(c.gpus),
    }
    if has_prices:
        columns |= {
            Column("per\nhour", folds=False): lambda c: _price(c.cost_per_hour),
            Column("per 10^6\ntokens in", folds=False): lambda c: number(
                c.cost_per_million_prompt_tokens
            ),
            Column("out", folds=False): lambda c: number(c.cost_per_million_output_tokens),
        }
    columns |= {
        Column(_heading(each), folds=False): partial(_limit_cell, i, between=" ")
        for i, each in enumerate(plan.choices[0].seen.limits)
    }
    if plan.ask.rate_per_s is not None:
        columns[Column("chance", most=6)] = _chance
    table = Grid(list(columns), gap=1)
    for outcome in plan.by_gpu:
        if outcome.rank is None:
            table.add(outcome.gpu, "none", *[""] * (len(columns) - 2))
        else:
            choice = plan.choices[outcome.rank - 1]
            table.add(*(text(choice) for text in columns.values()))
    return table


def _price(cost: float | None) -> str:
    return "-" if cost is None else f"{cost:,.2f}"


def _heading(outcome: LimitOutcome) -> str:
    """Return a limit on a few short lines."""
    return "\n".join([outcome.what, *outcome.bound.split(" and ")]).replace(" of requests", " of:")


def _limit_cell(place: int, choice: Choice, between: str = "\n") -> str:
    """Return the value where a limit was asked, and whether it is met."""
    outcome = choice.seen.limits[place]
    return f"{outcome.value}{between}{'met' if outcome.met else 'MISSED'}"


def _rate(choice: Choice) -> str:
    rate = choice.fleet_rate
    if choice.is_partial:
        return f">= {number(rate.per_s)}"
    if rate.interval_per_s is None:
        return number(rate.per_s)
    low, high = map(number, rate.interval_per_s)
    return f"{number(rate.per_s)} ({low}-{high})"


def _chance(choice: Choice) -> str:
    if choice.chance is None:
        return "-"
    # The largest of the law's equally likely errors stands for the worst 5 %.
    share = ">97 %" if choice.chance > 0.97 else f"{100 * choice.chance:.0f} %"
    return share + (" safe" if choice.safe else "")


_COLUMNS: dict[Column, Callable[[Choice], str]] = {
    Column("GPUs", folds=False): lambda c: str(c.gpus),
    Column("per\nhour", folds=False): lambda c: _price(c.cost_per_hour),
    Column("start", True, least=26): lambda c: f"{c.replicas} x {c.label}".replace(", ", ",\n", 1),
    Column("holds/s", folds=False): _rate,
}
#: Columns after those of the limits.
_LAST: dict[Column, Callable[[Choice], str]] = {
    Column("chance", most=6): _chance,
    Column("coefficients", True): lambda c: c.coefficients,
}


def _notes(plan: Plan, out: Path | None) -> list[str]:
    first = plan.choices[0]
    on_each = parse_slo(plan.ask.slo).goodput is not None
    lines = _how_sure(first)
    if first.fails_first:
        lines.append(f"Fails first: {first.fails_first} ({first.limited_by}).")
    lines += _memory_limit(first)
    lines += [_fleet(first.replicas, fleet, on_each) for fleet in first.fleets]
    lines += filter(None, [first.seen.burst_warning])
    lines += first.assumptions
    lines += [f"None on {o.gpu}: {o.reason}." for o in plan.by_gpu if o.rank is None]
    lines += [f"{gpu} per hour: {origin}." for gpu, origin in plan.ask.purchases.items()]
    if any(choice.pools for choice in plan.choices):
        lines.append(f"Prefill and decode apart: {POOLS_UNSURE}.")
    misfits = [each for each in plan.left_out if not each.simulated]
    more = len(plan.choices) - _ROWS
    if more > 0:
        lines.append(f"Choices beside these: {more}, in the page, plan.json and plan.csv of --out.")
    lines.append(
        f"{plan.candidates} candidates, {plan.simulations} simulations, {plan.seconds:.0f} s; "
        f"rejected {len(plan.left_out)}, {len(misfits)} without a simulation."
    )
    lines += _unfinished(plan)
    unfit = (each for each in misfits if not each.reason.startswith(NOT_TRIED))
    hardware = [each for each in unfit if ", " not in each.label]
    lines += [f"  {each.label}: {each.reason}" for each in hardware[:_NAMED]]
    if out is not None:
        names = ("plan.html", "plan.json", "plan.csv", "manifest.yaml")
        lines.append(f"All of it: {', '.join(str(out / n) for n in names if (out / n).exists())}")
    return lines


#: Router -> words for it.
_ROUTED = {
    RANDOM: "requests sent at random (a Kubernetes Service)",
    ROUND_ROBIN: "requests sent in turn",
    LEAST_REQUESTS: "requests sent to the one with the fewest",
    PREFIX_AWARE: "requests sent where their prefix is",
}


def _unfinished(plan: Plan) -> list[str]:
    """Return sentences on what an ended search did not try, and how it goes on."""
    if not plan.stopped:
        return []
    why = "Interrupted" if plan.stopped == INTERRUPT else "Time was over (--time-budget)"
    partial = sum(choice.is_partial for choice in plan.choices)
    rows = f", {partial} of {len(plan.choices)} rows have no interval and no chance" * (partial > 0)
    return [
        f"{why}: {plan.untried:,} of {plan.candidates:,} candidates were not tried{rows}; the same "
        "command goes on from here."
    ]


def _fleet(replicas: int, fleet: Fleet, on_each: bool) -> str:
    """Return a sentence on replicas that serve the load together, with limits on each request."""
    what = "of all requests meet the limits on each" if on_each else "of all requests are served"
    together = f"{replicas} replicas, {_ROUTED[fleet.routing]}" if replicas > 1 else "1 replica"
    gone = [each.limit for each in fleet.point.limits if not each.met]
    missed = "" if fleet.point.holds else f"; MISSED: {', '.join(gone) or 'it falls behind'}"
    return f"{together}: {100 * fleet.point.met_share:.1f} % {what}{missed}"


def _how_sure(choice: Choice) -> list[str]:
    """Return sentences on the highest rates of one replica and of all together, with intervals."""
    one, all_of_them = choice.highest_rate, choice.fleet_rate
    alone = f"One replica alone holds {number(one.per_s)} requests/s" + _search_bar(one)
    if choice.is_partial:
        unsure = "there was no time for its interval and chance"
        if choice.replicas == 1:
            return [f"{alone}; {unsure}."]
        most = f"{choice.replicas} replicas together hold {number(all_of_them.per_s)} or more"
        return [f"{alone}.", f"{most}; {unsure}."]
    if choice.replicas == 1:
        return [alone + _interval_bar(all_of_them) + "."]
    together = f"{choice.replicas} replicas under --router {choice.router} hold "
    together += number(all_of_them.per_s) + _search_bar(all_of_them) + _interval_bar(all_of_them)
    return [f"{alone}.", f"{together}; {choice.beside_one_by_one}."]


def _memory_limit(choice: Choice) -> list[str]:
    """Return a sentence on the memory of a GPU where it limits the rate."""
    if choice.memory is None:
        return []
    gib = choice.memory
    ends = f"{gib['kv_cache_low']:.1f} to {gib['kv_cache_high']:.1f}"
    return [
        f"KV memory limits the rate: {gib['kv_cache']:.1f} GiB per GPU ({ends}) beside "
        f"{gib['weights']:.1f} GiB of weights; pinn coefficients --memory shows the rest."
    ]


def _search_bar(rate: HighestRate) -> str:
    """Return the width of the bisection, and the range over seeds of the load."""
    parts = []
    if rate.fails_per_s is not None:
        parts.append(f"no longer {number(rate.fails_per_s)}")
    if len(rate.seeds_per_s) > 1:
        low, high = map(number, (min(rate.seeds_per_s), max(rate.seeds_per_s)))
        parts.append(f"{len(rate.seeds_per_s)} draws of the load: {low} to {high}")
    return f" ({'; '.join(parts)})" if parts else ""


def _interval_bar(rate: HighestRate) -> str:
    if rate.interval_per_s is None or rate.level is None:
        return ", no interval of the prediction"
    low, high = map(number, rate.interval_per_s)
    return f", {100 * rate.level:.0f} % interval of the prediction {low} to {high}/s"


def plan_json(plan: Plan) -> bytes:
    """Return the content of plan.json."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"


def write_files(plan: Plan, folder: Path) -> None:
    """Write plan.json, plan.csv, plan.html, its pictures and the manifest into a folder."""
    from pinn.planning.page import write_page  # pictures take long to import

    write_whole(folder / "plan.json", plan_json(plan))
    write_rows(choice_rows(plan), folder / "plan.csv")
    write_page(plan, folder)
    with suppress(PinnError):  # the first choice has no manifest
        write_whole(folder / "manifest.yaml", manifest(plan))


def choice_rows(plan: Plan) -> list[dict[str, object]]:
    """Return the rows of plan.csv: column -> value per choice, best first; SI units, as named."""
    pools = ("prefill", "decode") if any(choice.pools for choice in plan.choices) else ()
    return [
        _row(place, choice) | dict(zip(pools, choice.pools or (None, None), strict=False))
        for place, choice in enumerate(plan.choices, 1)
    ]


#: Columns with the names of a choice's fields: those before its flags, and the last ones.
_FIRST_COLUMNS = ("gpus", "cost_per_hour", "cost_per_million_prompt_tokens",
                  "cost_per_million_output_tokens", "replicas", "engine", "gpu",
                  "gpus_per_replica")  # fmt: skip
_LAST_COLUMNS = ("limited_by", "fails_first", "chance", "safe", "serve_command", "simulate_command")


def _row(place: int, c: Choice) -> dict[str, object]:
    low, high = c.fleet_rate.interval_per_s or (None, None)
    seeds = c.highest_rate.seeds_per_s
    return {
        "rank": place,
        **{name: getattr(c, name) for name in _FIRST_COLUMNS},
        **c.flags,
        **{f"format_{part}": name for part, name in c.formats.items()},
        "coefficients": c.coefficients,
        "is_partial": c.is_partial,
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
