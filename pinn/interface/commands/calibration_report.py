"""A calibration, printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from pinn.common.screen import WIDEST, page
from pinn.physics.request import REQUEST_FEATURES
from pinn.physics.step import STEP_FEATURES
from pinn.server.calibration.benchmarks import BenchmarkCalibration
from pinn.server.calibration.calibrate import Likelihood, Verdict
from pinn.server.calibration.measured_steps import StepCalibration
from pinn.server.calibration.posterior import Quantity
from pinn.server.calibration.run import Calibration, sources_text
from pinn.units import MICROSECOND, MILLISECOND


def print_calibration(
    found: Calibration, appended: bool = False, console: Console | None = None
) -> None:
    """Print what was fitted, the errors before and after, and what the traces determine."""
    console = console or page(WIDEST)
    deployment = found.deployment
    console.print(
        f"{deployment.model.title} on {deployment.gpu.name}, {sources_text(found)}: fitted to "
        f"{len(found.beta.used)} intervals ({found.settings.kind}, {found.settings.select}) that "
        f"scatter by {100 * np.median(found.beta.posterior.noise):.1f} %\n"
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
    for table in [*tables, _quantities(found.quantities, appended)]:
        console.print(table)
        console.print()
    for verdict in found.alpha.worse:
        console.print(f"{verdict}: these alphas stay as they were\n")
    console.print(_verdicts(found.verdicts))


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


def _quantities(quantities: Sequence[Quantity], appended: bool) -> Table:
    """What the measurements determine, each with its standard error; drift where it goes on."""
    drift = ["drift"] if appended else []
    table = _table(
        "what was determined (standard errors)", "", "before", "after", "unit", "", *drift
    )
    for q in quantities:
        scale = 1.0 if q.unit == "x" else MICROSECOND
        cells = [
            f"{value / scale:.4g} +- {error / scale:.2g}"
            for value, error in ((q.before, q.before_error), (q.after, q.after_error))
        ]
        unit = q.unit if q.unit == "x" else f"u{q.unit}"
        moved = [f"{q.drift:+.1f} standard errors"] if appended else []
        known = "" if q.is_determined else "not determined"
        table.add_row(q.name, *cells, unit, known, *moved)
    return table


#: What is too few to leave any out.
_SINGLE = (
    "after a single load or stretch of time nobody knows whether others are predicted better; "
    "measure a second load"
)


def _verdicts(verdicts: Sequence[Verdict | Likelihood], few: str = _SINGLE) -> str:
    """How it was judged, in words."""
    if not verdicts:
        return f"WARNING: nothing was left out to judge by: {few}\n"
    return "\n".join(["on what was left out:", *(f"  {verdict}" for verdict in verdicts)]) + "\n"


def print_benchmarks(
    found: BenchmarkCalibration, appended: bool, console: Console | None = None
) -> None:
    """Print what was fitted to benchmarks, and what they determine."""
    console = console or page(WIDEST)
    deployment = found.deployment
    console.print(
        f"{deployment.model.title} on {deployment.gpu.name}: fitted to {len(found.errors)} figures "
        f"of {len(found.runs)} runs\n"
    )
    table = _table("figures (ms, or per second)", "run", "figure", "measured", "before", "after")
    for row in found.errors.to_dict("records"):
        scale = 1.0 if row["figure"].endswith("_per_s") else MILLISECOND
        cells = (f"{row[each] / scale:.4g}" for each in ("measured", "before", "after"))
        table.add_row(Path(row["run"]).name, row["figure"], *cells)
    for each in (table, _quantities(found.quantities, appended)):
        console.print(each)
        console.print()
    console.print(_verdicts(found.verdicts))


def print_steps(found: StepCalibration, appended: bool, console: Console | None = None) -> None:
    """Print what was fitted to measured steps, and what they determine."""
    console = console or page(WIDEST)
    deployment, steps = found.deployment, found.steps
    console.print(
        f"{deployment.model.title} on {deployment.gpu.name}: fitted to {len(steps)} batches of "
        f"{steps.report.accepted} steps; {100 * found.unexplained:.1f} % is not explained\n"
    )
    table = _table("median steps (ms)", "batch", "measured", "+-", "before", "after")
    rows = zip(steps.names, steps.seconds, steps.error, *found.predictions(), strict=True)
    for name, measured, error, *predicted in rows:
        cells = (f"{value / MILLISECOND:.4g}" for value in predicted)
        table.add_row(name, f"{measured / MILLISECOND:.4g}", f"{100 * error:.1f} %", *cells)
    for each in (table, _quantities(found.quantities, appended)):
        console.print(each)
        console.print()
    few = f"{len(steps)} batches are too few to tell whether others are predicted better; measure "
    console.print(_verdicts(found.verdicts, few + "longer"))
