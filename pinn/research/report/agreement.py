"""Predicted against measured times, with the 10 % band."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from pinn.export.plot_style import markers, new_figure, short

_NAMES = {"tpot": "time per output token", "ttft": "time to first token"}


def agreement_figure(rows: pd.DataFrame, metric: str) -> Figure | None:
    """One panel per left-out part, one marker per GPU; None where nothing was predicted.

    Args:
        rows: With ``held_out``, ``model``, ``gpu``, and for the metric ``tpot_s`` and
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
        low = 1e3 * of_part[[f"{metric}_measured_s", f"{metric}_s"]].min().min()
        high = 1e3 * of_part[[f"{metric}_measured_s", f"{metric}_s"]].max().max()
        ends = [low / 1.2, high * 1.2]
        ax.plot(ends, ends, color="black", linewidth=0.8)
        ax.fill_between(ends, [0.9 * e for e in ends], [1.1 * e for e in ends], color="0.88")
        ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        ticks = _ticks(*ends)
        ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
        ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
        ax.minorticks_off()
        ax.set_title(f"{short(part)} left out", fontsize=9)
        ax.set_xlabel("measured, ms", fontsize=8)
    for ax in list(axes.flat)[len(parts) :]:
        ax.set_visible(False)
    axes[0, 0].set_ylabel(f"predicted {_NAMES[metric]}, ms", fontsize=8)
    for name, (marker, colour) in looks.items():
        axes[0, 0].plot([], [], marker, color=colour, label=short(name))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False,
                  fontsize=8)  # fmt: skip
    return figure


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two, at most six unless the decades alone are more."""
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**power for power in range(-2, 7) for digit in digits]
        found = [tick for tick in ticks if low <= tick <= high]
        if len(found) <= 6:
            break
    return found
