"""Signed errors against concurrency and against prompt and output lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pinn.export.plot_style import Looks, markers, new_figure, short
from pinn.research.report.tables import Tables


def load_figure(tables: Tables, split: str) -> Figure | None:
    """TPOT above, TTFT below; concurrency left, lengths right; None where nothing was predicted."""
    rows = tables.split(split)
    if rows.empty:
        return None
    lengths = (
        rows["prompt_tokens"].astype(int).astype(str)
        + " / "
        + rows["output_tokens"].astype(int).astype(str)
    )
    order = rows.assign(lengths=lengths).sort_values(["prompt_tokens", "output_tokens"])
    places = {
        "concurrency": {str(c): c for c in sorted(rows["concurrency"].unique())},
        "lengths": {name: name for name in dict.fromkeys(order["lengths"])},
    }
    figure, axes = new_figure(5.6, 2, 2, sharey="row", sharex="col")
    looks = markers(rows["model"])
    for line, metric in zip(axes, ("tpot", "ttft"), strict=True):
        error = 100 * (order[f"{metric}_s"] / order[f"{metric}_measured_s"] - 1)
        for ax, (column, values) in zip(line, places.items(), strict=True):
            _draw(ax, order, error.clip(-100, 100), column, list(values.values()), looks)
            ax.set_xticks(range(len(values)), [_label(v) for v in values], fontsize=7,
                          rotation=0 if column == "lengths" else 90)  # fmt: skip
        line[0].set_ylabel(f"error of {metric.upper()}, %", fontsize=8)
    axes[1, 0].set_xlabel("requests in flight", fontsize=8)
    axes[1, 1].set_xlabel("prompt / output tokens", fontsize=8)
    for name, (marker, colour) in looks.items():
        axes[0, 0].plot([], [], marker, color=colour, label=short(name))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False,
                  fontsize=8)  # fmt: skip
    return figure


def _label(text: str) -> str:
    return text.removesuffix(".0")


def _draw(
    ax, rows: pd.DataFrame, error: pd.Series, column: str, values: list[Any], looks: Looks
) -> None:
    place = {value: i for i, value in enumerate(values)}
    at = rows[column].map(place).to_numpy(dtype=float)
    for i, (name, (marker, colour)) in enumerate(looks.items()):
        mine = (rows["model"] == name).to_numpy()
        shift = 0.6 * (i + 0.5) / len(looks) - 0.3
        ax.plot(at[mine] + shift, error[mine], marker, color=colour, markersize=2.2, alpha=0.55)
    medians = error.groupby(at).median()
    ax.plot(medians.index, medians, "_", color="black", markersize=16, markeredgewidth=2)
    ax.axhspan(-10, 10, color="0.92", zorder=0)
    ax.axhline(0, color="black", linewidth=0.6)
    ax.set_ylim(-np.ceil(error.abs().max() / 10) * 10, np.ceil(error.abs().max() / 10) * 10)
