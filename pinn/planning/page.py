"""A plan as one self-contained page, and its pictures as PNG files."""

import base64
from collections.abc import Callable
from pathlib import Path

from pinn.common import files, pages
from pinn.common.plots import png, short, svg
from pinn.common.screen import Cell, Column, Grid
from pinn.planning import pictures
from pinn.planning.candidate import NETWORK
from pinn.planning.plan import FLEET_HOLDS_MORE, POOLS_UNSURE, Choice, Plan
from pinn.planning.slo import written_s

#: Shown for what does not exist, such as a cost without prices.
_NONE = "–"

#: Name of a picture -> function that draws it, None where there is nothing to draw.
_PICTURES = {
    "frontier": pictures.frontier_figure,
    "percentiles": pictures.percentile_figure,
    "step-time": pictures.step_time_figure,
}


def write_page(plan: Plan, folder: Path) -> Path:
    """Write ``plan.html``, which needs no other file, and the same pictures as PNG files.

    Args:
        plan: The plan to show.
        folder: Where to.

    Returns:
        The page.
    """
    drawn: dict[str, str | None] = {}
    for name, draw in _PICTURES.items():
        figure = draw(plan)
        if figure is not None:
            files.write_whole(folder / f"{name}.png", png(figure))
        content = None if figure is None else base64.b64encode(svg(figure)).decode()
        drawn[name.replace("-", "_")] = content
    text = pages.template("pinn.planning", "plan.html.j2").render(
        plan=plan,
        table=_table(plan),
        pictures=drawn,
        parts=pictures.shown_parts(plan.choices),
        best=[point for point in plan.frontier if point.best],
        chance=_chance,
        error_bar=_error_bar,
        fleet_holds_more=FLEET_HOLDS_MORE,
        percent=_percent,
        pools_unsure=POOLS_UNSURE,
        rate=_rate,
        servers=_servers,
        short=short,
        time=_time,
    )
    files.write_whole(folder / "plan.html", text)
    return folder / "plan.html"


def _servers(choice: Choice) -> str:
    """How many of what size: replicas, or servers of two kinds."""
    if choice.pool_sizes is None:
        return f"{_count(choice.replicas, 'replica')} of {_count(choice.gpus_per_replica, 'GPU')}"
    kinds = zip(("prefill server", "decode server"), choice.pool_sizes, strict=True)
    return " and ".join(
        f"{_count(count, kind)} of {_count(gpus, 'GPU')}" for kind, (count, gpus) in kinds
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _table(plan: Plan) -> Grid:
    """A row per choice, best first, in the columns of what was asked."""
    shown: dict[Column, Callable[[Choice], Cell]] = {
        Column("Choice", True, "GPU, parallelism, format, flags"): lambda c: _word(c.label),
        Column("GPUs", meaning="in all"): lambda c: Cell(str(c.gpus), c.gpus),
        Column("Replicas", meaning="× (TP, PP, DP)"): _replicas,
    }
    if plan.ask.prices_per_gpu_hour:
        shown |= {
            Column("Cost/h", meaning="of all GPUs"): lambda c: _number(c.cost_per_hour, ".2f"),
            Column("Per million", meaning="tokens that are generated"): _price,
        }
    shown[Column("Holds/s", meaning="requests of all replicas, and its interval")] = _rate
    if plan.ask.rate_per_s is not None:
        shown |= {
            Column("Used", meaning="of what they hold"): lambda c: _percent(c.utilization),
            Column("Chance", meaning="that limits hold; safe: at the bad end too"): _sure,
        }
    percentiles = "p50 / p99 at the planned rate"
    shown |= {
        Column("TTFT", meaning=percentiles): lambda c: _latency(c, "ttft"),
        Column("TPOT", meaning=percentiles): lambda c: _latency(c, "tpot"),
        Column("Limited by", True, "what stops a higher rate"): lambda c: _word(c.limited_by),
    }
    if any(choice.coefficients != NETWORK for choice in plan.choices):
        source = Column("Coefficients", True, "network or calibrated")
        shown[source] = lambda c: _word(c.coefficients)
    table = Grid(list(shown))
    for choice in plan.choices:
        table.add(*(cell(choice) for cell in shown.values()))
    return table


def _word(text: str) -> Cell:
    return Cell(text, text)


def _replicas(choice: Choice) -> Cell:
    if choice.pools is not None:
        return Cell(_servers(choice), choice.replicas)
    sizes = (choice.flags.get(f"{k}_parallel_size", 1) for k in ("tensor", "pipeline", "data"))
    spread = choice.flags.get("enable_expert_parallel") or int(choice.flags.get("ep_size") or 1) > 1
    experts = ", EP" if spread else ""
    text = f"{choice.replicas} × ({', '.join(map(str, sizes))}{experts})"
    return Cell(_unbroken(text), choice.replicas)


def _rate(choice: Choice) -> Cell:
    """What all replicas hold, with the interval."""
    found, text = choice.fleet_rate, f"{choice.fleet_rate.per_s:.3g}"
    if found.interval_per_s is not None:
        text += " " + _unbroken("({:.3g} to {:.3g})".format(*found.interval_per_s))
    return Cell(text, found.per_s)


def _sure(choice: Choice) -> Cell:
    found = _chance(choice.chance)
    return Cell(f"{found.text} safe", found.value) if choice.safe else found


def _number(value: float | None, form: str) -> Cell:
    return Cell(_NONE, "") if value is None else Cell(format(value, form), value)


def _price(choice: Choice) -> Cell:
    """Three digits: prices of a million tokens are often below a cent."""
    value = choice.cost_per_million_output_tokens
    return _number(value, ".0f" if value is None or value >= 100 else "#.3g")


def _percent(value: float | None) -> Cell:
    return Cell(_NONE, "") if value is None else Cell(f"{100 * value:.0f} %", value)


def _chance(value: float | None) -> Cell:
    """In percent; what holds at every error of the law is not called certain."""
    return Cell("> 97 %", value) if value is not None and value > 0.97 else _percent(value)


def _latency(choice: Choice, metric: str) -> Cell:
    """Median and 99th percentile, sorted by the latter."""
    found = choice.seen.latency_s[metric]
    last = found["p99"]
    text = f"{_unbroken(_time(found['p50']))} / {_unbroken(_time(last))}"
    return Cell(text, "" if last is None else last)


def _unbroken(text: str) -> str:
    """A text that stays on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _time(seconds: float | None) -> str:
    return _NONE if seconds is None else written_s(seconds)


def _error_bar(choice: Choice) -> str:
    """How sure the highest rate is, in words."""
    found, all_of_them = choice.highest_rate, choice.fleet_rate
    parts = []
    if found.fails_per_s is not None:
        parts.append(f"{found.fails_per_s:.4g} requests/s no longer hold")
    if found.seeds_per_s:
        low, high = min(found.seeds_per_s), max(found.seeds_per_s)
        draws = len(found.seeds_per_s)
        parts.append(f"{low:.4g} to {high:.4g} over {draws} draws of the load")
    if all_of_them.interval_per_s is not None:
        level = f"{100 * (all_of_them.level or 0):.0f} %"
        parts.append(f"all replicas together hold {_rate(choice).text} at the ends of the "
                     f"prediction's {level} interval")  # fmt: skip
    parts += [FLEET_HOLDS_MORE] * choice.fleet_holds_more
    parts += [POOLS_UNSURE] * (choice.pools is not None)
    return "; ".join(parts)
