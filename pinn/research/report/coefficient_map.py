"""Coefficients across models and GPUs, as multiples of their physical priors."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from pinn.export.plot_style import new_figure
from pinn.research.report.tables import Tables

#: Colour saturates where a coefficient is this many times its prior, or that part of it.
FACTOR = 4.0


def coefficient_figure(tables: Tables, part: str) -> Figure | None:
    """One cell per coefficient and deployment; None without coefficients.

    Numbers are value / prior; depth of colour tells how far from 1
    they are, on a logarithmic scale: orange below, purple above.

    Args:
        tables: With ``coefficients``; those that no step uses stay blank.
        part: ``beta`` or ``alpha``; coefficients whose prior is 0 have no multiple and are left
            out.
    """
    rows = tables.coefficients
    if rows.empty:
        return None
    rows = rows[(rows["part"] == part) & (rows["prior"] > 0)]
    ratios = (rows["value"] / rows["prior"]).where(rows["used"])
    ratio = rows.assign(ratio=ratios).pivot_table(
        index=["name", "prior", "unit"], columns="deployment", values="ratio", sort=False
    )
    figure, axes = new_figure(1.9 + 0.2 * len(ratio))
    ax = axes[0, 0]
    values = ratio.to_numpy()
    depth = np.clip(np.log(np.maximum(values, 1e-9)) / np.log(FACTOR), -1, 1)
    depth = np.nan_to_num(depth)
    ax.imshow(depth, cmap="PuOr", vmin=-1.4, vmax=1.4, aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        text = "" if np.isnan(value) else f"{value:.2f}" if value < 10 else f"{value:.0f}"
        ax.text(j, i, text, ha="center", va="center", fontsize=6.5,
                color="white" if abs(depth[i, j]) > 0.75 else "black")  # fmt: skip
    names = [f"{name}  (prior {_prior(prior, unit)})" for name, prior, unit in ratio.index]
    ax.set_yticks(range(len(names)), names, fontsize=7)
    ax.set_xticks(range(ratio.shape[1]), ratio.columns, fontsize=7, rotation=35, ha="left")
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return figure


def _prior(prior: float, unit: str) -> str:
    if unit == "1":
        return f"x {prior:g}"
    return f"{1e6 * prior:g} u{unit}" if unit.startswith("s") else f"{prior:g} {unit}"
