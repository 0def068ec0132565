"""Do intervals cover what they promise? Nested coverage against the level asked for."""

from __future__ import annotations

from matplotlib.figure import Figure

from pinn.export.plot_style import markers, new_figure, short
from pinn.research.report.tables import Tables


def calibration_figure(tables: Tables) -> Figure | None:
    """A panel per split and metric: all rows as a line, left-out parts as markers."""
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
