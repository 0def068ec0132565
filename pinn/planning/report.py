"""Report of a plan for the terminal."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pinn.common.numbers import amount, exact, number
from pinn.common.screen import Column, Grid, as_typed, page, say
from pinn.engines.routers import LEAST_REQUESTS, PREFIX_AWARE, RANDOM, ROUND_ROBIN
from pinn.planning.candidate import NETWORK
from pinn.planning.manifest import deployed, length_limit, several_machines
from pinn.planning.plan import (
    POOLS_UNSURE,
    Choice,
    Fleet,
    HighestRate,
    Plan,
    Point,
    stated_chance,
)
from pinn.planning.plan_files import FILES
from pinn.planning.search_extent import counts, probability_gap, unfinished
from pinn.simulator.slo import LimitOutcome, parse_slo
from pinn.surrogate.uncertainty.quantiles import LEVEL

#: Maximum number of rows in a terminal if one GPU type was requested; the files contain all rows.
_ROWS = 3


def print_plan(plan: Plan, out: Path | None) -> None:
    """Print a plan: its best rows, the command of the recommended row, and notes on the search."""
    ask, first = plan.ask, plan.choices[0]
    asked = (
        f"{exact(ask.rate_per_s)} requests/s" if ask.rate_per_s else "maximum rate within the SLO"
    )
    asked += f" (with headroom: {ask.sized_rate_per_s:g})" if ask.headroom else ""
    asked += f" on at least {ask.least_replicas} replicas" if ask.least_replicas > 1 else ""
    spares = amount(ask.spare_replicas, "spare replica")
    asked += f" with {spares}" if ask.spare_replicas else ""
    if ask.min_probability is not None:
        gap = probability_gap(plan, first)
        asked += f" with P(SLO met) of at least {100 * ask.min_probability:g} %"
        asked += f" (row 1: {gap})" if gap else ""
    title = ", ".join(filter(None, [ask.model, ask.named_load]))
    say(f"{title}: {asked}, {ask.lengths}; {'; '.join(ask.limits)}")
    page().print(_table(plan))
    for line in unfinished(plan):
        say(line)
    print(
        "Recommended so far:" if plan.stopped else "Recommended:",
        *map(as_typed, first.serve_command.split("\n")),
        sep="\n",
    )
    for line in (*several_machines(plan, first), *length_limit(plan, first)):
        say(line)
    print("Reproduce with:", *map(as_typed, first.simulate_command.split("\n")), sep="\n")
    for line in _notes(plan, out):
        say(line)


def _table(plan: Plan) -> Grid:
    """Return a table of the best row per GPU; for one requested GPU, of its best rows."""
    columns = _columns(plan)
    table = Grid(list(columns), gap=1)
    for choice in _shown(plan):
        table.add(*(text(choice) for text in columns.values()))
    start = next(column for column in columns if column.is_text)
    for outcome in plan.by_gpu:
        if outcome.rank is None:
            none = {start: f"none on {outcome.gpu}"}
            table.add(*(none.get(column, "") for column in columns))
    return table


def _shown(plan: Plan) -> list[Choice]:
    """Return the plan's rows that a terminal shows; the written files contain all rows.

    With disaggregated P/D, the cheapest ordinary and the cheapest disaggregated row are among them.
    """
    places = {each.rank - 1 for each in plan.by_gpu if each.rank is not None}
    if len(plan.by_gpu) <= 1:
        places = set(range(min(_ROWS, len(plan.choices))))
    modes = [choice.pools is None for choice in plan.choices]
    places |= {modes.index(mode) for mode in modes}
    return [plan.choices[place] for place in sorted(places)]


def _columns(plan: Plan) -> dict[Column, Callable[[Choice], str]]:
    """Return the function that writes a row's cell, for each column of the terminal's table.

    The page and the CSV file have additional columns.
    """
    has_prices = bool(plan.ask.prices_per_gpu_hour)
    start = "best on each GPU" if len(plan.by_gpu) > 1 else "start"
    start += "\n(tokens/requests)"  # the largest step; 'pinn plan --help' says so
    columns: dict[Column, Callable[[Choice], str]] = {
        Column("row", folds=False): lambda c: str(1 + plan.choices.index(c)),
        Column("GPUs", folds=False): lambda c: str(c.gpus),
    }
    if has_prices:
        columns[Column("cost\n/hour", folds=False)] = lambda c: _price(c.cost_per_hour)
    columns[Column(start, True, least=20)] = _start
    if has_prices:
        columns[Column("cost of\n10^6\ntokens", folds=False)] = _token_costs
    level = next((c.fleet_rate.level for c in plan.choices if c.fleet_rate.level), None)
    interval = f"\n({100 * level:.0f} %)" if level else ""
    columns[Column(f"max req/s{interval}", folds=False)] = _rate
    for i, outcome in enumerate(plan.choices[0].seen.limits):
        columns[Column(_heading(outcome), folds=False)] = partial(_limit_cell, i)
    if plan.ask.rate_per_s is not None:
        columns[Column("P(SLO\nmet)", most=6)] = _chance
    if any(choice.seen.preemptions for choice in _shown(plan)):
        columns[Column("preemp-\ntions", folds=False)] = lambda c: f"{c.seen.preemptions:,}"
    if any(choice.coefficients != NETWORK for choice in plan.choices):
        columns[Column("coefficients", True)] = lambda c: c.coefficients
    return columns


def _start(choice: Choice) -> str:
    """Return a cell with the row's servers; limits of a step are as short as ``8192/128``."""
    limits = re.sub(r"(\d+) tokens, (\d+) requests$", r"\1/\2", choice.label)
    return f"{choice.replicas} x {limits}"


def _price(cost: float | None) -> str:
    return "-" if cost is None else f"{cost:,.2f}"


def _token_costs(choice: Choice) -> str:
    """Return a cell with the cost per million prompt tokens above that of output tokens."""
    prompt, output = choice.cost_per_million_prompt_tokens, choice.cost_per_million_output_tokens
    return "-" if prompt is None else f"{number(prompt)} in\n{number(output)} out"


def _heading(outcome: LimitOutcome) -> str:
    """Wrap a limit's text into a column heading of a few short lines."""
    return "\n".join([outcome.what, *outcome.bound.split(" and ")]).replace(" of requests", " of:")


def _limit_cell(place: int, choice: Choice) -> str:
    """Return a cell with the predicted value for a limit, above whether the limit is met."""
    outcome = choice.seen.limits[place]
    return f"{outcome.value}\n{'met' if outcome.met else 'MISSED'}"


def _rate(choice: Choice) -> str:
    """Return a cell with the fleet's maximum rate, above its prediction interval."""
    rate = choice.fleet_rate
    if choice.is_lower_bound:
        return f">= {number(rate.per_s)}"
    if rate.interval_per_s is None:
        return number(rate.per_s)
    low, high = map(number, rate.interval_per_s)
    return f"{number(rate.per_s)}\n{low}-{high}"


def _chance(choice: Choice) -> str:
    return choice.stated_chance + (" safe" if choice.safe else "")


def _notes(plan: Plan, out: Path | None) -> list[str]:
    first = plan.choices[0]
    lines = [*_how_sure(first), *_at_interval_ends(plan)]
    lines += [f"{first.missed_first}."] * bool(first.missed_first)
    lines += _with_headroom(plan)
    lines += _with_one_lost(plan)
    lines += _memory_limit(first)
    lines += _fleets(plan)
    lines += filter(None, [first.seen.burst_warning])
    lines += first.assumptions
    lines += filter(None, [plan.ask.unmeasured_warning])
    lines += [f"None on {o.gpu}: {o.reason}." for o in plan.by_gpu if o.rank is None]
    lines += [f"{gpu} per hour: {origin}." for gpu, origin in plan.ask.purchases.items()]
    if any(choice.pools for choice in plan.choices):
        lines.append(f"Disaggregated prefill/decode: {POOLS_UNSURE}.")
    lines += counts(plan, len(_shown(plan)))
    lines += filter(None, [plan.ask.fp8_hint])
    if first.seen.preemptions:
        lines.append(
            f"Row 1 has {first.seen.preemptions:,} preemptions at the requested rate, because its "
            f"batches exceed the KV cache."
        )
    if out is not None:
        lines.append(f"Written: {', '.join(str(out / n) for n in FILES if (out / n).exists())}")
        lines += [deployed(plan, 1)] * (out / "manifest.yaml").exists()
    return lines


#: Descriptions that begin a sentence, by routing policy.
_ROUTED = {
    RANDOM: "With random routing (Kubernetes Service)",
    ROUND_ROBIN: "With round-robin routing",
    LEAST_REQUESTS: "With routing to the replica with the fewest requests",
    PREFIX_AWARE: "With prefix-aware routing",
}
_MEET = "requests within limits"


def _with_headroom(plan: Plan) -> list[str]:
    """Return a sentence about the recommended row's metrics at the rate with headroom."""
    first, ask = plan.choices[0], plan.ask
    if first.with_headroom is None:
        return []
    on_each = parse_slo(ask.slo).goodput is not None
    met = stated_chance(first.chance_with_headroom)
    return [
        f"With headroom, at {ask.sized_rate_per_s:g} requests/s: "
        f"{_values(first.with_headroom, on_each)}{'' if met == '-' else f', P(SLO met) {met}'}; "
        f"the table shows limits and P(SLO met) at {exact(ask.rate_per_s)} requests/s."
    ]


def _with_one_lost(plan: Plan) -> list[str]:
    """Return a sentence about the recommended row's metrics while one replica is down."""
    first = plan.choices[0]
    if first.with_one_lost is None:
        return []
    on_each = parse_slo(plan.ask.slo).goodput is not None
    met = stated_chance(first.chance_with_one_lost)
    chance = "" if met == "-" else f", P(SLO met) {met}"
    remedy = "" if first.with_one_lost.holds else "; --spare-replicas 1 adds a replica"
    asked = exact(plan.ask.rate_per_s or 0.0)
    return [
        f"With one replica lost, at {asked} requests/s: "
        f"{_values(first.with_one_lost, on_each)}{chance}{remedy}."
    ]


def _at_interval_ends(plan: Plan) -> list[str]:
    """Return a sentence about the recommended row's limits at both ends of the interval."""
    first = plan.choices[0]
    if first.at_interval_ends is None:
        return []
    on_each = parse_slo(plan.ask.slo).goodput is not None
    slow, fast = (_values(point, on_each) for point in first.at_interval_ends)
    level = f"{100 * (first.fleet_rate.level or LEVEL):.0f} %"
    asked = f"at {exact(plan.ask.rate_per_s or 0.0)} requests/s"
    return [
        f"With times at the upper bound of their {level} interval, {asked}: {slow}; at the "
        f"lower bound: {fast}."
    ]


def _fleets(plan: Plan) -> list[str]:
    """Return sentences about the limits that the recommended row meets or misses per router.

    The routers are a random one, for comparison, and the plan's own. The printed table already
    shows the values for the plan's router, so a sentence about it is added only if a limit is
    missed or requests are not served.
    """
    first, on_each = plan.choices[0], parse_slo(plan.ask.slo).goodput is not None
    return [
        _fleet(fleet, on_each)
        for fleet in first.fleets
        if fleet is not first.fleets[-1]
        or not fleet.point.holds
        or (fleet.point.met_share < 1 and not on_each)
    ]


def _fleet(fleet: Fleet, on_each: bool) -> str:
    """Return text with the value for each limit, for replicas behind a router.

    ``on_each`` specifies whether some limits apply to each request.
    """
    return f"{_ROUTED.get(fleet.routing, 'One replica')}: {_values(fleet.point, on_each)}."


def _values(point: Point, on_each: bool) -> str:
    """Return text with the value for each limit in a run; ``on_each`` as for :func:`_fleet`."""
    parts = [
        (f"{each.what} {each.value}" if each.share is None else f"{each.value} of {_MEET}")
        + ("" if each.met else " (MISSED)")
        for each in point.limits
    ]
    if point.met_share < 1 and not on_each:
        parts.append(f"{100 * point.met_share:.1f} % of all requests are served")
    if not point.holds and all(each.met for each in point.limits):
        parts.append("it falls behind")
    return ", ".join(parts)


def _how_sure(choice: Choice) -> list[str]:
    """Return sentences about the maximum rates of one and of all replicas, with intervals."""
    one, all_of_them = choice.highest_rate, choice.fleet_rate
    alone = f"One replica meets the SLO up to {number(one.per_s)} requests/s{_search_bar(one)}"
    late = "" if choice.chance is not None else " and P(SLO met)"
    unsure = f"; the interval of the rate{late} {'were' if late else 'was'} not computed in time"
    is_late = choice.is_partial and all_of_them.interval_per_s is None
    bar = unsure if is_late else _interval_bar(all_of_them, choice.coefficients)
    if choice.replicas == 1:
        return [f"{alone}{bar}."]
    together = f"{choice.replicas} replicas with --router {choice.router} meet the SLO up to "
    if choice.is_lower_bound:
        return [f"{alone}.", f"{together}{number(all_of_them.per_s)} requests/s or more{bar}."]
    together += f"{number(all_of_them.per_s)} requests/s{_search_bar(all_of_them)}{bar}"
    return [f"{alone}.", f"{together}; {choice.beside_one_by_one}."]


def _memory_limit(choice: Choice) -> list[str]:
    """Return a sentence about the use of a GPU's memory, if KV memory limits the rate."""
    if choice.memory is None:
        return []
    gib = choice.memory
    ends = f"{gib['kv_cache_low']:.1f} to {gib['kv_cache_high']:.1f}"
    return [
        f"KV memory limits the rate: {gib['kv_cache']:.1f} GiB per GPU ({ends}) "
        f"next to {gib['weights']:.1f} GiB of weights; 'pinn coefficients "
        "--memory' shows all parts."
    ]


def _search_bar(rate: HighestRate) -> str:
    """Return text about the lowest rate that misses the SLO, and the range across seeds."""
    words = "" if rate.fails_per_s is None else f" but not at {number(rate.fails_per_s)}"
    if len(rate.seeds_per_s) > 1:
        low, high = map(number, (min(rate.seeds_per_s), max(rate.seeds_per_s)))
        words += f" ({low} to {high} over {len(rate.seeds_per_s)} seeds)"
    return words


def _interval_bar(rate: HighestRate, source: str) -> str:
    if rate.interval_per_s is None or rate.level is None:
        file = "the checkpoint" if source == NETWORK else source
        return f"; without an interval and P(SLO met), which {file} does not have"
    low, high = map(number, rate.interval_per_s)
    return f", {100 * rate.level:.0f} % prediction interval {low} to {high}"
