"""Where the time of a step goes: the network's parts beside those composed of kernels."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pinn.export.plot_style import new_figure
from pinn.research.report.tables import Tables
from pinn.training.teacher.breakdown import PARTS

#: Colour and hatch of each part of a step, alternating so that neighbours differ.
PART_LOOKS = dict(
    zip(
        PARTS,
        (
            ("#12436d", ""), ("#d5e6f2", "///"), ("#28a197", ""), ("#ffffff", "..."),
            ("#f2a65a", "xxx"), ("#5b5b66", ""), ("#f4ecd0", "\\\\\\"), ("#c77f9f", "++"),
            ("#d5d5dc", ""),
        ),
        strict=True,
    )
)  # fmt: skip


def anatomy_figure(tables: Tables) -> Figure | None:
    """Shares of each part, one panel per batch and two bars per deployment; None without any."""
    rows = tables.anatomy
    if rows.empty:
        return None
    batches = list(dict.fromkeys(rows["batch"]))
    deployments = list(dict.fromkeys(rows["deployment"]))
    figure, axes = new_figure(1.2 + 0.36 * len(deployments), 1, len(batches), sharey=True)
    for ax, batch in zip(axes[0], batches, strict=True):
        of_batch = rows[rows["batch"] == batch]
        for y, deployment in enumerate(deployments):
            _draw(ax, y, of_batch[of_batch["deployment"] == deployment])
        ax.set_title(batch, fontsize=9)
        ax.set_xlim(0, 122)
        ax.set_xticks([0, 25, 50, 75, 100])
        ax.set_xlabel("share of the step, %", fontsize=8)
    axes[0, 0].set_yticks(range(len(deployments)), deployments, fontsize=8)
    axes[0, 0].invert_yaxis()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    known = dict(zip(labels, handles, strict=True))
    figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=4,
                  frameon=False, fontsize=8)  # fmt: skip
    return figure


def _draw(ax: Axes, y: int, parts: pd.DataFrame) -> None:
    for shift, column in ((-0.19, "network_s"), (0.19, "composed_s")):
        whole = parts[column].sum()
        if not whole > 0:
            continue
        left = 0.0
        for row in parts.to_dict("records"):
            colour, hatch = PART_LOOKS[row["part"]]
            share = 100 * row[column] / whole
            ax.barh(y + shift, share, height=0.34, left=left, color=colour, hatch=hatch,
                    edgecolor="black", linewidth=0.5,
                    label=row["part"].replace("_", " "))  # fmt: skip
            left += share
        ax.text(101, y + shift, f"{1e3 * whole:.1f} ms", fontsize=6.5, va="center")
