"""A plan as one self-contained page, and its pictures as PNG files."""

import base64
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from pinn.common import files, pages
from pinn.common.plots import png, short, svg
from pinn.common.screen import Cell, Column, Grid
from pinn.planning import candidates, pictures
from pinn.planning.plan import FLEET_HOLDS_MORE, POOLS_UNSURE, Choice, Plan, written_s

#: Shown for what does not exist, such as a cost without prices.
_NONE = "–"


def write_page(plan: Plan, folder: Path) -> Path:
    """Write ``plan.html``, which needs no other file, and the same pictures as PNG files.

    Args:
        plan: What is shown.
        folder: Where to.

    Returns:
        The page.
    """
    drawn: dict[str, dict[str, str] | None] = {}
    for name, (figure, alt) in _figures(plan).items():
        shown = None
        if figure is not None:
            files.write_whole(folder / f"{name}.png", png(figure))
            shown = {"name": name, "alt": alt, "content": base64.b64encode(svg(figure)).decode()}
        drawn[name.replace("-", "_")] = shown
    text = pages.template("pinn.planning", "plan.html.j2").render(
        plan=plan,
        verdict=_verdict(plan),
        confidence=_confidence(plan),
        asked=_asked(plan),
        table=_table(plan),
        pictures=drawn,
        parts=pictures.shown_parts(plan.choices),
        best=[point for point in plan.frontier if point.best],
        error_bar=_error_bar,
        time=_time,
        short=short,
    )
    files.write_whole(folder / "plan.html", text)
    return folder / "plan.html"


def _figures(plan: Plan) -> dict[str, tuple[Figure | None, str]]:
    """Name -> figure and what it shows."""
    best = [p for p in plan.frontier if p.best]
    ends = ""
    if best:
        fast = max(best, key=lambda p: p.user_tokens_per_s)
        dense = max(best, key=lambda p: p.output_tokens_per_gpu_s)
        ends = (
            f" The best candidates run from {dense.output_tokens_per_gpu_s:.0f} tokens/s per GPU "
            f"at {dense.user_tokens_per_s:.0f} tokens/s per user ({dense.label}) to "
            f"{fast.output_tokens_per_gpu_s:.0f} at {fast.user_tokens_per_s:.0f} ({fast.label})."
        )
    return {
        "frontier": (
            pictures.frontier_figure(plan),
            f"Throughput per GPU against the speed that a user sees.{ends}",
        ),
        "percentiles": (
            pictures.percentile_figure(plan),
            "Median, 90th and 99th percentile against the requests per second of one replica, for "
            "the first choices; the tables below each choice hold the figures.",
        ),
        "step-time": (
            pictures.step_time_figure(plan),
            "Share of the engine's time by part of a step, for the first choices; the table below "
            "holds the figures.",
        ),
    }


def _verdict(plan: Plan) -> str:
    """The answer in a sentence."""
    if not plan.choices:
        return (
            f"None of {plan.candidates} candidates serves this within the limits; below is why "
            "each was left out."
        )
    first = plan.choices[0]
    text = f"Rent {first.gpus} × {short(first.gpu)} as {_servers(first)}"
    return text if first.cost_per_hour is None else f"{text}, {first.cost_per_hour:.2f} per hour"


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


def _confidence(plan: Plan) -> str:
    """How much of the first choice is used, and how sure it is."""
    if not plan.choices:
        return ""
    first = plan.choices[0]
    burst = first.seen.burst_warning
    if plan.ask.rate_per_s is None:
        return f"Each replica holds up to {first.fleet_rate.per_s:.3g} requests/s. {burst}"
    text = f"Together they hold {_rate(first).text} requests/s"
    text += f", {FLEET_HOLDS_MORE}" if first.fleet_holds_more else ""
    text += f"; at {plan.ask.rate_per_s:g} they are {_percent(first.utilization).text} used"
    text += f", limited by {first.limited_by}."
    if first.chance is not None:
        text += f" The chance that the limits are held is {_chance(first.chance).text}"
        text += ", also at the bad end of the prediction's interval" if first.safe else ""
        text += "." if first.pools is None else f"; {POOLS_UNSURE}."
    return f"{text} {burst}"


def _asked(plan: Plan) -> list[tuple[str, str]]:
    """What was asked for, term by term."""
    ask = plan.ask
    prices = ", ".join(f"{short(g)} {p:g}" for g, p in ask.prices_per_gpu_hour.items())
    most = "" if ask.max_gpus is None else f", at most {ask.max_gpus}"
    rate = "" if ask.rate_per_s is None else f" at {ask.rate_per_s:g} requests/s"
    return [
        ("Model", ask.model),
        ("Load", f"{ask.requests} requests of {Path(ask.workload).name}{rate}; "
         f"{ask.prompt_tokens:.0f} tokens in and {ask.output_tokens:.0f} out in the mean, "
         f"{ask.longest_tokens} at most together"),
        ("Limits", "; ".join(ask.limits) or "none"),
        ("GPUs", ", ".join(map(short, ask.gpus)) + most),
        ("Price per GPU and hour", prices or "not given: GPUs are counted"),
    ]  # fmt: skip


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
    if any(choice.coefficients != candidates.NETWORK for choice in plan.choices):
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
    spread = choice.flags.get("enable_expert_parallel") or (choice.flags.get("ep_size") or 1) > 1
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
