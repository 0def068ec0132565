"""A plan as one self-contained page, and its pictures as PNG files.

Colours of the pictures differ in lightness too, and markers, dashes and hatches tell apart what
they tell apart.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from pinn.common import files, pages
from pinn.common.plots import new_figure, png, short, svg
from pinn.common.screen import Cell, Column, Grid
from pinn.planning import plan as plans
from pinn.planning.candidates import NETWORK
from pinn.planning.plan import Choice, Plan, Point

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
        parts=shown_parts(plan.choices),
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
            frontier_figure(plan),
            f"Throughput per GPU against the speed that a user sees.{ends}",
        ),
        "percentiles": (
            percentile_figure(plan),
            "Median, 90th and 99th percentile against the requests per second of one replica, for "
            "the first choices; the tables below each choice hold the figures.",
        ),
        "step-time": (
            step_time_figure(plan),
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
    text += f", {plans.FLEET_HOLDS_MORE}" if first.fleet_holds_more else ""
    text += f"; at {plan.ask.rate_per_s:g} they are {_percent(first.utilization).text} used"
    text += f", limited by {first.limited_by}."
    if first.chance is not None:
        text += f" The chance that the limits are held is {_chance(first.chance).text}"
        text += ", also at the bad end of the prediction's interval" if first.safe else ""
        text += "." if first.pools is None else f"; {plans.POOLS_UNSURE}."
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
    return _NONE if seconds is None else plans.written_s(seconds)


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
    parts += [plans.FLEET_HOLDS_MORE] * choice.fleet_holds_more
    parts += [plans.POOLS_UNSURE] * (choice.pools is not None)
    return "; ".join(parts)


# The pictures: its frontier, latency against rate, and where the step time goes.

#: How many of the choices are drawn, best first.
SHOWN = 4

#: Colour and marker of the GPUs in their order, from the palette of Okabe and Ito (2008), dark and
#: light in turn.
_LOOKS = (
    ("#0072b2", "o"), ("#e69f00", "s"), ("#004d40", "^"), ("#cc79a7", "D"), ("#56b4e9", "v"),
    ("#7a3b00", "P"), ("#9a9a9a", "X"),
)  # fmt: skip

#: Statistic -> colour, marker and dashes of its line.
_LINES = {"p50": ("#56b4e9", "o", "-"), "p90": ("#0072b2", "s", "--"), "p99": ("#12263f", "^", ":")}

#: Colour and hatch of the parts of a step in their order; neighbours differ in lightness.
_FILLS = (
    ("#12436d", ""), ("#8fc1e3", ""), ("#28a197", "//"), ("#f4d58d", ""), ("#a3480f", ""),
    ("#f2a65a", "\\\\"), ("#5b5b66", ""), ("#d5d5dc", ".."), ("#7d6b91", ""), ("#c9e4ca", "xx"),
)  # fmt: skip

#: Where ranks stand beside their rings from left to right, in points, so that neighbours do not
#: cover each other.
_BESIDE = ((-17, 7), (9, -15), (-4, 11), (9, 7))

_OUTLINE = [withStroke(linewidth=2.5, foreground="white")]


def frontier_figure(plan: Plan) -> Figure | None:
    """Throughput per GPU against the speed that a user sees; None where nothing was simulated."""
    if not plan.frontier:
        return None
    figure, axes = new_figure(4.6)
    ax = axes[0, 0]
    gpus = list(dict.fromkeys([*plan.ask.gpus, *(p.gpu for p in plan.frontier)]))
    looks = {gpu: _LOOKS[i % len(_LOOKS)] for i, gpu in enumerate(gpus)}
    for gpu, (colour, marker) in looks.items():
        for best in (False, True):
            at = [p for p in plan.frontier if p.gpu == gpu and p.best == best]
            ax.plot([p.user_tokens_per_s for p in at], [p.output_tokens_per_gpu_s for p in at],
                    marker, color=colour, linestyle="", markersize=8 if best else 4.5,
                    alpha=1.0 if best else 0.45, label=short(gpu) if best else None,
                    markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip
    steps = sorted((p for p in plan.frontier if p.best), key=lambda p: p.user_tokens_per_s)
    ax.step([p.user_tokens_per_s for p in steps], [p.output_tokens_per_gpu_s for p in steps],
            where="pre", color="#12263f", linewidth=1.6, zorder=1, label="best of all")  # fmt: skip
    ranked = list(enumerate((choice.at_rate for choice in plan.choices[:SHOWN]), start=1))
    ranked.sort(key=lambda each: each[1].user_tokens_per_s or 0.0)
    for place, (rank, point) in enumerate(ranked):
        _mark(ax, point, rank, _BESIDE[place % len(_BESIDE)])
    ax.set_xlabel("output tokens/s that a user sees (1 / mean TPOT)")
    ax.set_ylabel("output tokens/s per GPU")
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.grid(color="0.92")
    figure.legend(loc="outside upper right", ncols=len(looks) + 1, frameon=False, fontsize=9)
    return figure


def _mark(ax: Axes, point: Point, rank: int, beside: tuple[int, int]) -> None:
    """A ring and the rank of a choice."""
    if point.user_tokens_per_s is None:
        return
    at = (point.user_tokens_per_s, point.output_tokens_per_gpu_s)
    ax.plot(*at, "o", markersize=14, fillstyle="none", color="black", markeredgewidth=1.4)
    ax.annotate(str(rank), at, xytext=beside, textcoords="offset points", fontsize=11,
                fontweight="bold", path_effects=_OUTLINE)  # fmt: skip


def percentile_figure(plan: Plan) -> Figure | None:
    """Percentiles of the limited metrics against the rate of one replica; None without choices."""
    choices = [choice for choice in plan.choices[:SHOWN] if choice.ladder]
    if not choices:
        return None
    limits = plans.parse_limits(plan.ask.slo).each if plan.ask.slo else []
    metrics = list(dict.fromkeys(metric for metric, _, _ in limits)) or ["ttft", "tpot"]
    figure, axes = new_figure(
        2.3 * len(metrics) + 0.7, len(metrics), len(choices), sharey="row", sharex="col"
    )
    for column, choice in enumerate(choices):
        for row, metric in enumerate(metrics):
            ax = axes[row, column]
            _percentiles(ax, choice, metric)
            for limited, name, seconds in limits:
                if limited == metric:
                    ax.axhline(1e3 * seconds, color="#a3480f", linewidth=1.1)
                    ax.annotate(f"limit of {name}", (0, 1e3 * seconds), (3, 2),
                                xycoords=("axes fraction", "data"), textcoords="offset points",
                                fontsize=7.5, color="#a3480f", path_effects=_OUTLINE)  # fmt: skip
            if column == 0:
                ax.set_ylabel(f"{metric.upper()}, ms")
        title = f"{column + 1}: {short(choice.gpu)} x {choice.gpus_per_replica}"
        axes[0, column].set_title(title, fontsize=10, fontweight="bold", loc="left")
        axes[-1, column].set_xlabel("requests/s, one replica")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False,
                  fontsize=9)  # fmt: skip
    return figure


def _percentiles(ax: Axes, choice: Choice, metric: str) -> None:
    ladder = sorted(choice.ladder, key=lambda point: point.rate_per_s)
    rates = [point.rate_per_s for point in ladder]
    for name, (colour, marker, dashes) in _LINES.items():
        seconds = np.array([point.latency_s[metric][name] for point in ladder], dtype=float)
        ax.plot(rates, 1e3 * seconds, color=colour, marker=marker, linestyle=dashes,
                linewidth=1.8, markersize=4, label=name)  # fmt: skip
    highest = choice.highest_rate.per_s
    end = 1.03 * max(*rates, highest)
    ax.axvspan(highest, end, color="0.9", zorder=0, label="beyond the highest rate")
    ax.set_xlim(0, end)
    ax.axvline(choice.at_rate.rate_per_s, color="0.35", linewidth=1.0, label="planned")
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.grid(axis="y", color="0.92")


def step_time_figure(plan: Plan) -> Figure | None:
    """Where the engine's time goes, a bar for each choice; None without choices."""
    choices = plan.choices[:SHOWN]
    if not choices:
        return None
    fills = dict(zip(shown_parts(choices), cycle(_FILLS), strict=False))
    figure, axes = new_figure(1.3 + 0.55 * len(choices))
    ax = axes[0, 0]
    for y, choice in enumerate(choices):
        _stack(ax, y, choice, fills)
    names = [f"{i}: {short(c.gpu)} x {c.gpus_per_replica}" for i, c in enumerate(choices, 1)]
    ax.set_yticks(range(len(choices)), names, fontsize=10)
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the engine's time, %")
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _stack(ax: Axes, y: int, choice: Choice, fills: Mapping[str, tuple[str, str]]) -> None:
    left = 0.0
    for part, (colour, hatch) in fills.items():
        share = 100 * choice.step_time.get(part, 0.0)
        ax.barh(y, share, left=left, height=0.62, color=colour, hatch=hatch, edgecolor="white",
                linewidth=0.8, label=part.replace("_", " ") if y == 0 else None)  # fmt: skip
        if share >= 5:
            ax.text(left + share / 2, y, f"{share:.0f}", ha="center", va="center", fontsize=9,
                    path_effects=_OUTLINE)  # fmt: skip
        left += share


def shown_parts(choices: Sequence[Choice]) -> list[str]:
    """Parts of a step that take any time, in their order."""
    names = dict.fromkeys(name for choice in choices for name in choice.step_time)
    return [name for name in names if any(choice.step_time.get(name, 0) > 0 for choice in choices)]
