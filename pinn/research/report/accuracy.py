"""Errors of every left-out model and GPU as dots: one dot a deployment, a bar across their median.

A median of rows hides that rows of a deployment share their error; a deployment is one dot.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pinn.export.plot_style import Looks, markers, new_figure, short
from pinn.research.report.tables import Tables

#: Methods that are shown side by side, where they are there.
METHODS = (
    "network", "teacher", "network, no kernels", "global vector", "BLIS, published",
    "gradient-boosted trees", "roofline, constant efficiencies", "aiconfigurator",
)  # fmt: skip

#: Errors beyond are drawn at the edge, in percent.
EDGE = 100.0


def accuracy_figure(tables: Tables, split: str, metric: str) -> Figure | None:
    """Absolute percentage errors by left-out part and method; None where nothing was predicted."""
    of_split = tables.predictions[
        (tables.predictions["split"] == split) & tables.predictions["model"].notna()
    ]
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
        ax.set_title(f"{short(part)} left out", loc="left", fontsize=9, pad=2)
        ax.axvline(10, color="0.6", linewidth=0.8, linestyle=":")
        ax.set_xlim(-1, EDGE + 3)
    axes[-1, 0].set_xlabel(f"absolute percentage error of {metric.upper()}", fontsize=8)
    for gpu, (marker, colour) in looks.items():
        axes[0, 0].plot([], [], marker, color=colour, markersize=5, label=short(gpu))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False,
                  fontsize=8)  # fmt: skip
    return figure


def _draw(ax: Axes, y: int, rows: pd.DataFrame, metric: str, looks: Looks) -> None:
    rows = rows[rows[f"{metric}_s"].notna()]
    if rows.empty:
        return
    error = 100 * (rows[f"{metric}_s"] / rows[f"{metric}_measured_s"] - 1).abs()
    for gpu, of_gpu in error.groupby(rows["gpu"]):
        marker, colour = looks[str(gpu)]
        shift = np.linspace(-0.22, 0.22, len(looks))[list(looks).index(str(gpu))]
        at = np.minimum(of_gpu, EDGE)
        ax.plot(at, np.full(len(at), y + shift), marker, color=colour, markersize=2.2, alpha=0.5)
    ax.plot([min(error.median(), EDGE)] * 2, [y - 0.38, y + 0.38], color="black", linewidth=2.2)
