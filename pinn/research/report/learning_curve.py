"""Error on left-out models against how much there is to learn from."""

from __future__ import annotations

import re

import pandas as pd
from matplotlib.figure import Figure

from pinn.export.plot_style import MARKERS, new_figure
from pinn.research.report.tables import METHOD, Tables

#: Axis label -> what the name of such a change looks like, with the amount in parentheses.
KINDS = {
    "synthetic and known deployments composed": r"(\d+) deployments",
    "share of the measured kernels, %": r"(\d+) % of the kernels",
}


def learning_figure(tables: Tables) -> Figure | None:
    """A panel per kind of amount, a line per metric; None where no amount was varied."""
    rows = tables.studies
    if rows.empty:
        return None
    found = {label: _amounts(rows, pattern) for label, pattern in KINDS.items()}
    found = {label: table for label, table in found.items() if not table.empty}
    if not found:
        return None
    figure, axes = new_figure(3.2, 1, len(found), sharey=True)
    for ax, (label, table) in zip(axes[0], found.items(), strict=True):
        for (name, part), (marker, colour) in zip(table.groupby("line"), MARKERS, strict=False):
            ordered = part.sort_values("amount")
            ax.plot(ordered["amount"], ordered["median"], marker=marker, color=colour, label=name)
            unchanged = ordered["unchanged"].iloc[0]
            ax.axhline(unchanged, color=colour, linewidth=0.8, linestyle="--")
        ax.set_xlabel(label, fontsize=8)
        ax.set_ylim(bottom=0)
        ax.legend(fontsize=8, frameon=False)
    axes[0, 0].set_ylabel("median absolute error, %", fontsize=8)
    return figure


def _amounts(rows: pd.DataFrame, pattern: str) -> pd.DataFrame:
    amount = rows["change"].str.extract(re.compile(f"^{pattern}$"), expand=False).astype(float)
    known = rows.assign(amount=amount)[amount.notna()]
    known = known[known["method"].str.startswith((METHOD, "teacher"))]
    return known.assign(line=known["method"] + ", " + known["metric"].str.upper())
