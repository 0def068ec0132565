"""Figures on an evaluation's page."""

from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pinn.common.plots import Looks, markers, new_figure, short
from pinn.evaluation.metrics import percent_errors
from pinn.evaluation.report.contents import Tables
from pinn.training.data.released import PEERS

# Plots of errors by held-out model or GPU: one dot per row, and a bar at the median.

#: Prediction methods whose errors are plotted side by side, if they have predictions.
METHODS = (
    "network", "teacher", "network, no kernels", "global vector", "BLIS, published",
    "gradient-boosted trees", "roofline, constant efficiencies", *PEERS,
)  # fmt: skip

#: Position of the legend relative to the axes of a figure.
_Place = Literal["outside upper right", "outside lower center", "outside upper center"]
#: Maximum error on the axis, in percent. Larger errors are plotted at the edge.
EDGE = 100.0


def accuracy_figure(tables: Tables, split: str, metric: str) -> Figure | None:
    """Plot a metric's absolute percentage errors, one plot per held-out model or GPU.

    Without predictions, the figure is None.
    """
    of_split = tables.of_split(split)
    there = [name for name in METHODS if (of_split["method"] == name).any()]
    if not there:
        return None
    parts = sorted(of_split["held_out"].unique())
    figure, axes = new_figure(0.75 + 0.2 * len(there) * len(parts), len(parts), sharex=True)
    looks = markers(of_split["gpu"])
    for ax, part in zip(axes[:, 0], parts, strict=True):
        rows = of_split[of_split["held_out"] == part]
        for y, method in enumerate(there):
            _draw(ax, y, rows[rows["method"] == method], metric, looks)
        ax.set_yticks(range(len(there)), there, fontsize=7)
        ax.set_ylim(len(there) - 0.4, -0.6)
        ax.set_title(f"{short(part)} held out", loc="left", fontsize=9, pad=2)
        ax.axvline(10, color="0.6", linewidth=0.8, linestyle=":")
        ax.set_xlim(-1, EDGE + 3)
    axes[-1, 0].set_xlabel(f"absolute percentage error of {metric.upper()}", fontsize=8)
    return _with_legend(figure, looks, "outside upper right", size=5)


def _with_legend(figure: Figure, looks: Looks, place: _Place, size: float = 6) -> Figure:
    """Add a legend for a figure's markers outside its axes."""
    first = figure.axes[0]
    handles = [
        first.plot([], [], marker, color=colour, label=short(name), markersize=size)[0]
        for name, (marker, colour) in looks.items()
    ]
    figure.legend(handles=handles, loc=place, ncols=len(looks), frameon=False, fontsize=8)
    return figure


def _draw(ax: Axes, y: int, rows: pd.DataFrame, metric: str, looks: Looks) -> None:
    rows = rows[rows[f"{metric}_s"].notna()]
    if rows.empty:
        return
    error = percent_errors(rows, metric).abs()
    for gpu, of_gpu in error.groupby(rows["gpu"]):
        marker, colour = looks[str(gpu)]
        shift = np.linspace(-0.22, 0.22, len(looks))[list(looks).index(str(gpu))]
        at = np.minimum(of_gpu, EDGE)
        ax.plot(at, np.full(len(at), y + shift), marker, color=colour, markersize=2.2, alpha=0.5)
    ax.plot([min(error.median(), EDGE)] * 2, [y - 0.38, y + 0.38], color="black", linewidth=2.2)


# Plots of predicted against measured times, with a band of 10 % around the measured time.

_NAMES = {"tpot": "time per output token", "ttft": "time to first token"}


def agreement_figure(rows: pd.DataFrame, metric: str) -> Figure | None:
    """Plot predicted against measured times per held-out model or GPU; None without predictions.

    Args:
        rows: Table with ``held_out``, ``model``, ``gpu``, and for the metric ``tpot_s`` and
            ``tpot_measured_s`` in seconds.
        metric: ``tpot`` or ``ttft``.
    """
    if rows.empty:
        return None
    parts = sorted(rows["held_out"].unique())
    columns = min(len(parts), 4)
    lines = -(-len(parts) // columns)
    figure, axes = new_figure(2.7 * lines + 0.4, lines, columns)
    by = "model" if rows["gpu"].isin(parts).any() else "gpu"
    looks = markers(rows[by])
    for ax, part in zip(axes.flat, parts, strict=False):
        of_part = rows[rows["held_out"] == part]
        for name, of_name in of_part.groupby(by):
            marker, colour = looks[str(name)]
            ax.plot(1e3 * of_name[f"{metric}_measured_s"], 1e3 * of_name[f"{metric}_s"], marker,
                    color=colour, markersize=3.2, alpha=0.7)  # fmt: skip
        times = 1e3 * of_part[[f"{metric}_measured_s", f"{metric}_s"]]
        ends = [times.min().min() / 1.2, times.max().max() * 1.2]
        ax.plot(ends, ends, color="black", linewidth=0.8)
        ax.fill_between(ends, [0.9 * e for e in ends], [1.1 * e for e in ends], color="0.88")
        ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        ticks = _ticks(*ends)
        ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
        ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
        ax.minorticks_off()
        ax.set_title(f"{short(part)} held out", fontsize=9)
        ax.set_xlabel("measured, ms", fontsize=8)
    for ax in list(axes.flat)[len(parts) :]:
        ax.set_visible(False)
    axes[0, 0].set_ylabel(f"predicted {_NAMES[metric]}, ms", fontsize=8)
    return _with_legend(figure, looks, "outside lower center")


def _ticks(low: float, high: float) -> list[float]:
    """Return axis ticks from low to high: at most six round numbers, else powers of ten."""
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**power for power in range(-2, 7) for digit in digits]
        found = [tick for tick in ticks if low <= tick <= high]
        if len(found) <= 6:
            break
    return found


# Plots of the actual coverage of prediction intervals against their nominal coverage. The intervals
# for a held-out part are calibrated on all other data.


def calibration_figure(tables: Tables) -> Figure | None:
    """Plot the coverage of prediction intervals against their nominal level, per split and metric.

    A line shows the coverage over all rows; markers show that of each held-out model or GPU.
    """
    rows = tables.left_out_coverage()
    if rows.empty:
        return None
    splits, metrics = list(dict.fromkeys(rows["split"])), list(dict.fromkeys(rows["metric"]))
    figure, axes = new_figure(
        2.7 * len(splits) + 0.5, len(splits), len(metrics), sharex=True, sharey=True
    )
    for line, split in zip(axes, splits, strict=True):
        of_split = rows[rows["split"] == split]
        looks = markers(of_split.loc[of_split["part"] != "all", "name"])
        for ax, metric in zip(line, metrics, strict=True):
            of_metric = of_split[of_split["metric"] == metric]
            ax.plot([50, 100], [50, 100], color="0.6", linewidth=0.8, linestyle="--")
            for name in ("all", *looks):
                part = of_metric[of_metric["name"] == name]
                marker, colour = looks.get(name, ("", "black"))
                ax.plot(100 * part["level"], 100 * part["coverage"], marker=marker, color=colour,
                        linewidth=2.0 if name == "all" else 0, markersize=5,
                        label="all rows" if name == "all" else short(name))  # fmt: skip
            ax.set_title(f"{metric.upper()}, {split}", fontsize=9)
        line[0].set_ylabel("rows covered, %", fontsize=8)
        line[-1].legend(fontsize=7, frameon=False, loc="lower right")
    for ax in axes[-1]:
        ax.set_xlabel("level asked for, %", fontsize=8)
    return figure


# Plots of signed errors against concurrency and against prompt and output lengths.


def load_figure(rows: pd.DataFrame) -> Figure | None:
    """Plot errors of TPOT (top) and TTFT (bottom) against concurrency (left) and lengths (right).

    Without predictions, the figure is None.
    """
    if rows.empty:
        return None
    prompts, outputs = (rows[f"{of}_tokens"].astype(int).astype(str) for of in ("prompt", "output"))
    order = rows.assign(lengths=prompts + " / " + outputs)
    order = order.sort_values(["prompt_tokens", "output_tokens"])
    places = {"concurrency": sorted(rows["concurrency"].unique())}
    places["lengths"] = list(order["lengths"].unique())
    figure, axes = new_figure(5.6, 2, 2, sharey="row", sharex="col")
    looks = markers(rows["model"])
    for line, metric in zip(axes, ("tpot", "ttft"), strict=True):
        error = percent_errors(order, metric)
        for ax, (column, values) in zip(line, places.items(), strict=True):
            at = order[column].map(values.index).to_numpy(dtype=float)
            _draw_loads(ax, at, error.clip(-100, 100), order["model"], looks)
            ax.set_xticks(range(len(values)), [str(v).removesuffix(".0") for v in values],
                          fontsize=7, rotation=0 if column == "lengths" else 90)  # fmt: skip
        line[0].set_ylabel(f"error of {metric.upper()}, %", fontsize=8)
    axes[1, 0].set_xlabel("requests in flight", fontsize=8)
    axes[1, 1].set_xlabel("prompt / output tokens", fontsize=8)
    return _with_legend(figure, looks, "outside upper center")


def _draw_loads(
    ax: Axes, at: np.ndarray, error: pd.Series, models: pd.Series, looks: Looks
) -> None:
    for i, (name, (marker, colour)) in enumerate(looks.items()):
        mine = (models == name).to_numpy()
        shift = 0.6 * (i + 0.5) / len(looks) - 0.3
        ax.plot(at[mine] + shift, error[mine], marker, color=colour, markersize=2.2, alpha=0.55)
    medians = error.groupby(at).median()
    ax.plot(medians.index, medians, "_", color="black", markersize=16, markeredgewidth=2)
    ax.axhspan(-10, 10, color="0.92", zorder=0)
    ax.axhline(0, color="black", linewidth=0.6)
    most = np.ceil(error.abs().max() / 10) * 10
    ax.set_ylim(-most, most)
