"""A calibration, printed."""

from __future__ import annotations

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from pinn.physics.request import REQUEST_FEATURES
from pinn.physics.step import STEP_FEATURES
from pinn.research.calibration.study import LINE
from pinn.training.calibration.run import Calibration, sources_text
from pinn.training.calibration.selection import SELECTIONS
from pinn.units import MICROSECOND


def print_calibration(found: Calibration, console: Console | None = None) -> None:
    """Print what was fitted, the errors before and after, and what the traces determine."""
    console = console or Console(width=100, highlight=False, markup=False)
    deployment = found.deployment
    console.print(
        f"{deployment.model.name} on {deployment.gpu.name}, {sources_text(found)}: fitted to "
        f"{len(found.beta.used)} intervals ({found.settings.kind}, {found.settings.select}), ridge "
        f"strength {found.beta.strength:.1e}\n"
    )
    tables = [_errors(found.errors), _offsets("beta", STEP_FEATURES, found.beta.base,
                                              found.beta.beta)]  # fmt: skip
    if found.alpha.taught.any():
        tables += [
            _offsets("alpha", REQUEST_FEATURES, found.alpha.base, found.alpha.alpha),
            _requests(found.alpha.errors),
        ]
    else:
        console.print("no journeys of whole requests: alpha stays as it was\n")
    for table in tables:
        console.print(table)
        console.print()
    console.print(_groups(found))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right")
    return table


def _errors(errors: pd.DataFrame) -> Table:
    table = _table(
        "errors of mean step times (%): median / mean / bias", "", "n", "before", "calibrated"
    )
    for (part, kind), rows in errors.groupby(["part", "kind"], sort=False):
        if rows["n"].iloc[0]:
            cells = [
                " / ".join(f"{100 * row[f]:.2f}" for f in ("median", "mean", "bias"))
                for row in rows.to_dict("records")
            ]
            table.add_row(f"{part}, {kind}", str(rows["n"].iloc[0]), *cells)
    return table


def _offsets(part: str, registry: dict, base: np.ndarray, total: np.ndarray) -> Table:
    table = _table(f"{part}: what changed", "name", "before", "offset", "calibrated", "unit")
    for feature, before, after in zip(registry.values(), base, total, strict=True):
        if before != after:
            seconds = feature.unit.split("/")[0] == "s"
            scale = MICROSECOND if seconds else 1.0
            unit = f"u{feature.unit}" if seconds else "x"
            cells = (before, after - before, after)
            table.add_row(feature.name, *(f"{v / scale:.3f}" for v in cells), unit)
    return table


def _requests(errors: pd.DataFrame) -> Table:
    methods = list(dict.fromkeys(errors["method"])) if len(errors) else []
    table = _table(
        "requests of the last 20 %: median absolute error (ms)", "phase", "n", "measured", *methods
    )
    for phase, rows in errors.groupby("phase", sort=False) if len(errors) else ():
        figures = rows.set_index("method")["error_s"]
        table.add_row(
            str(phase),
            str(rows["n"].iloc[0]),
            f"{1e3 * rows['median_s'].iloc[0]:.3f}",
            *(f"{1e3 * figures[m]:.3f}" for m in methods),
        )
    return table


def _groups(found: Calibration) -> str:
    """What the traces determine, in words."""
    known = [g for g in found.groups if g.is_identified]
    lines = ["determined by the traces to within 1 % (together where several are named):"]
    lines += [f"  {' + '.join(g.names)}: {100 * g.share:.1f} % of the step" for g in known]
    if not known:
        lines.append("  no coefficient alone, only sums of several at the loads that were seen")
    unknown = [" + ".join(g.names) for g in found.groups if not g.is_identified]
    lines.append("not determined, so that their split rests on the base: " + "; ".join(unknown))
    seen = {name for g in found.groups for name in g.names}
    unseen = [name for name in STEP_FEATURES if name not in seen]
    lines.append("not seen at all: " + ", ".join(unseen))
    return "\n".join(lines) + "\n"


def print_study(budgets: pd.DataFrame, others: pd.DataFrame) -> None:
    """Print error against budget and the baselines."""
    console = Console(width=110, highlight=False, markup=False)
    methods = (*SELECTIONS, LINE)
    table = _table("median error (%), last 20 %: median / worst seed", "budget", *methods)
    for budget, rows in budgets.groupby("budget"):
        by_method = {row["method"]: row for row in rows.to_dict("records")}
        cells = (
            " / ".join(f"{100 * by_method[m][f]:.2f}" for f in ("median_seed", "worst_seed"))
            for m in methods
        )
        table.add_row(str(budget), *cells)
    console.print(table)
    console.print()
    table = _table(
        "fitted to all of the first 60 %: errors on the last 20 % (%)",
        "method", "kind", "n", "median", "mean", "bias", "Pearson r",
    )  # fmt: skip
    for row in others.to_dict("records"):
        figures = (f"{100 * row[f]:.2f}" for f in ("median", "mean", "bias"))
        table.add_row(
            row["method"], row["kind"], str(row["n"]), *figures, f"{row['pearson_r']:.2f}"
        )
    console.print(table)
