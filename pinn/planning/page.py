"""Plan as a self-contained HTML page, and its plots as PNG files.

Colours also differ in lightness; markers, dashes and hatches distinguish series without colour.
"""

import base64
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from pinn.common import files, pages
from pinn.common.numbers import amount
from pinn.common.plots import log_scale, new_figure, png, short, svg
from pinn.planning.manifest import length_limit
from pinn.planning.plan import POOLS_UNSURE, Choice, Plan, Point, has_gaps
from pinn.planning.search_extent import probability_gap, unfinished
from pinn.simulator.slo import parse_slo, written_s

#: Maximum number of a plan's recommendations to plot, best first.
SHOWN = 4

#: Colours and markers, assigned to GPUs in this order. Colours are from the palette of Okabe and
#: Ito (2008); dark and light colours alternate.
_LOOKS = (
    ("#0072b2", "o"), ("#e69f00", "s"), ("#004d40", "^"), ("#cc79a7", "D"), ("#56b4e9", "v"),
    ("#7a3b00", "P"), ("#9a9a9a", "X"),
)  # fmt: skip

#: Colour, marker and dashes of lines, by latency percentile.
_LINES = {"p50": ("#56b4e9", "o", "-"), "p90": ("#0072b2", "s", "--"), "p99": ("#12263f", "^", ":")}
#: Colour, marker and dashes of a statistic that occurs only in an SLO limit.
_ASKED = ("#a3480f", "D", "-.")

#: Colours and hatches, assigned to the parts of a step in this order; neighbouring parts differ in
#: lightness.
_FILLS = (
    ("#12436d", ""), ("#8fc1e3", ""), ("#28a197", "//"), ("#f4d58d", ""), ("#a3480f", ""),
    ("#f2a65a", "\\\\"), ("#5b5b66", ""), ("#d5d5dc", ".."), ("#7d6b91", ""), ("#c9e4ca", "xx"),
)  # fmt: skip

#: Offsets (x, y), in points, of the labels of the rings. They are used in turn from left to right,
#: so that neighbouring labels do not overlap.
_BESIDE = ((-17, 7), (9, -15), (-4, 11), (9, 7))

_OUTLINE = [withStroke(linewidth=2.5, foreground="white")]


def frontier_figure(plan: Plan) -> Figure:
    """Plot output tokens/s per GPU against tokens/s per user (1 / mean TPOT)."""
    figure, axes = new_figure(4.6)
    ax = axes[0, 0]
    gpus = list(dict.fromkeys([*plan.ask.gpus, *(p.gpu for p in plan.frontier)]))
    looks = {gpu: _LOOKS[i % len(_LOOKS)] for i, gpu in enumerate(gpus)}
    for gpu, (colour, marker) in looks.items():
        for best in (False, True):
            at = [p for p in plan.frontier if p.gpu == gpu and p.best == best]
            ax.plot([p.user_tokens_per_s for p in at], [p.output_tokens_per_gpu_s for p in at],
                    marker, color=colour, linestyle="", markersize=8 if best else 5.5,
                    alpha=1.0 if best else 0.75, label=short(gpu) if best else None,
                    markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip
    steps = sorted((p for p in plan.frontier if p.best), key=lambda p: p.user_tokens_per_s)
    ax.step([p.user_tokens_per_s for p in steps], [p.output_tokens_per_gpu_s for p in steps],
            where="pre", color="#12263f", linewidth=1.6, zorder=1, label="best of all")  # fmt: skip
    ranked = list(enumerate((choice.at_rate for choice in plan.choices[:SHOWN]), start=1))
    ranked.sort(key=lambda each: each[1].user_tokens_per_s or 0.0)
    for place, (rank, point) in enumerate(ranked):
        _mark(ax, point, rank, _BESIDE[place % len(_BESIDE)])
    ax.set_xlabel("output tokens/s per request (1 / mean TPOT)")
    ax.set_ylabel("output tokens/s per GPU")
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.grid(color="0.92")
    figure.legend(loc="outside upper right", ncols=len(looks) + 1, frameon=False, fontsize=9)
    return figure


def _mark(ax: Axes, point: Point, rank: int, beside: tuple[int, int]) -> None:
    """Draw a ring around the point of one row of a plan, labelled with the row's rank."""
    if point.user_tokens_per_s is None:
        return
    at = (point.user_tokens_per_s, point.output_tokens_per_gpu_s)
    ax.plot(*at, "o", markersize=14, fillstyle="none", color="black", markeredgewidth=1.4)
    ax.annotate(str(rank), at, xytext=beside, textcoords="offset points", fontsize=11,
                fontweight="bold", path_effects=_OUTLINE)  # fmt: skip


def percentile_figure(plan: Plan) -> Figure:
    """Plot percentiles of each metric in the SLO against the request rate of one replica."""
    choices = plan.choices[:SHOWN]
    limits = parse_slo(plan.ask.slo).each if plan.ask.slo else []
    metrics = list(dict.fromkeys(metric for metric, _, _ in limits)) or ["ttft", "tpot"]
    figure, axes = new_figure(
        2.3 * len(metrics) + 0.7, len(metrics), len(choices), sharey="row", sharex="col"
    )
    for column, choice in enumerate(choices):
        for row, metric in enumerate(metrics):
            ax = axes[row, column]
            _percentiles(ax, choice, metric, plan.ask.slo)
            for limited, name, seconds in limits:
                if limited == metric:
                    ax.axhline(1e3 * seconds, color="#a3480f", linewidth=1.1)
                    ax.annotate(f"limit of {name}", (0, 1e3 * seconds), (3, 2),
                                xycoords=("axes fraction", "data"), textcoords="offset points",
                                fontsize=7.5, color="#a3480f", path_effects=_OUTLINE)  # fmt: skip
            if column == 0:
                ax.set_ylabel(f"{metric.upper()}, ms")
        title = f"{column + 1}: {short(choice.gpu)}, {amount(choice.gpus_per_replica, 'GPU')}"
        axes[0, column].set_title(title, fontsize=10, fontweight="bold", loc="left")
        axes[-1, column].set_xlabel("requests/s of one replica")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False,
                  fontsize=9)  # fmt: skip
    return figure


def _percentiles(ax: Axes, choice: Choice, metric: str, slo: str) -> None:
    ladder = sorted(choice.ladder, key=lambda point: point.rate_per_s)
    rates = [point.rate_per_s for point in ladder]
    asked = dict.fromkeys(parse_slo(slo).asked_statistics if slo else ())
    lines = {**dict.fromkeys(asked, _ASKED), **_LINES}
    for name, (colour, marker, dashes) in lines.items():
        seconds = np.array([point.latency_s[metric].get(name) for point in ladder], dtype=float)
        ax.plot(rates, 1e3 * seconds, color=colour, marker=marker, linestyle=dashes,
                linewidth=1.8, markersize=4, label=name)  # fmt: skip
    highest = choice.highest_rate.per_s
    end = 1.03 * max(*rates, highest)
    ax.axvspan(highest, end, color="0.9", zorder=0, label="above the maximum rate")
    ax.set_xlim(0, end)
    ax.axvline(choice.at_rate.rate_per_s, color="0.35", linewidth=1.0, label="planned")
    log_scale(ax)
    ax.grid(axis="y", color="0.92")


def step_time_figure(plan: Plan) -> Figure:
    """Plot the share of the engine's time by part of a step, with one bar per row of the plan."""
    choices = plan.choices[:SHOWN]
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
    """Return the parts of a step that take time in at least one row of the plan."""
    names = dict.fromkeys(name for choice in choices for name in choice.step_time)
    return [name for name in names if any(choice.step_time.get(name, 0) > 0 for choice in choices)]


def write_page(plan: Plan, folder: Path) -> Path:
    """Write ``plan.html``, which is self-contained, and its plots as PNG files.

    Args:
        plan: Plan to show.
        folder: Folder to write the files to.

    Returns:
        Path of the page.
    """
    figures = {}
    if plan.frontier:
        figures["frontier"] = frontier_figure(plan)
    if plan.choices:
        figures |= {"percentiles": percentile_figure(plan), "step-time": step_time_figure(plan)}
    for name, figure in figures.items():
        files.write_whole(folder / f"{name}.png", png(figure))
    text = pages.template("pinn.planning", "plan.html.j2").render(
        plan=plan,
        pictures={name: base64.b64encode(svg(each)).decode() for name, each in figures.items()},
        parts=shown_parts(plan.choices),
        best=[point for point in plan.frontier if point.best],
        has_gaps=has_gaps(plan.choices),
        pools_unsure=POOLS_UNSURE,
        unfinished=unfinished(plan) if plan.choices else [],
        warnings=_warnings(plan),
        gap=probability_gap(plan, plan.choices[0]) if plan.choices else "",
        excluded="Rejected and untried candidates" if plan.untried else "Rejected candidates",
        short=short,
        time=_time,
    )
    files.write_whole(folder / "plan.html", text)
    return folder / "plan.html"


def _warnings(plan: Plan) -> list[str]:
    """Return sentences about the limits of the recommended row's predictions."""
    if not plan.choices:
        return []
    first = plan.choices[0]
    lines = [*length_limit(plan, first), *first.assumptions, plan.ask.unmeasured_warning]
    return list(filter(None, lines))


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else written_s(seconds)
