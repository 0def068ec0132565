"""Result of a server's calibration, and its report, either on one screen or in full."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.calibration import benchmarks, calibrate, calibrated, fit, posterior
from pinn.calibration.fit import AnyCalibration
from pinn.calibration.held_out import metric_errors, percentile_errors, warnings_of
from pinn.calibration.overloaded import EXCLUDED
from pinn.calibration.prior import IN_TRAINING
from pinn.common.numbers import amount, number
from pinn.common.run_names import short_names
from pinn.common.screen import WIDEST, WIDTH, Column, Grid, page, printed, say
from pinn.engines.labels import server_label
from pinn.errors import PinnError
from pinn.measurements.benchmarks.run_table import metric_name
from pinn.measurements.benchmarks.taken_flags import TAKEN
from pinn.surrogate.coefficient_set import set_to_json, write_coefficient_set
from pinn.surrogate.request_features import REQUEST_FEATURES, RequestFeature
from pinn.surrogate.step_features import STEP_FEATURES, StepFeature
from pinn.surrogate.uncertainty.quantiles import NORMAL_QUANTILE
from pinn.units import MICROSECOND, MILLISECOND

#: Maximum numbers of rows that are printed without --details, in this order: errors, parameters,
#: notes, and verdicts (changes in held-out error).
_ERRORS, _QUANTITIES, _NOTES, _VERDICTS = 3, 3, 2, 5
#: First words of notes that are always printed.
_ALWAYS = ("WARNING", EXCLUDED, TAKEN, IN_TRAINING)


@dataclass(frozen=True)
class CalibratedServer:
    """Result of a server's calibration.

    Attributes:
        fit: Fit to the measurements.
        appended: Whether the calibration continues an earlier one.
        notes: Notes on skipped data, assumptions and mismatches.
        left_out: Number of benchmark files, runs and lines that could not be read.
        accepted: Whether to write the coefficient file even if the error of a metric is large.
    """

    fit: fit.Fit
    appended: bool
    notes: tuple[str, ...]
    left_out: int = 0
    accepted: bool = False

    @property
    def kept(self) -> bool:
        """Whether held-out data is predicted more accurately than before the calibration."""
        return self.fit.kept

    @property
    def warnings(self) -> list[str]:
        """Return warnings about held-out error remaining after calibration, with likely causes."""
        return warnings_of(self.fit.found)

    @property
    def refusal(self) -> str | None:
        """Reason why no coefficient file is written; None if one is written."""
        if not self.kept:
            return f"{_not_kept(self.fit.found.verdicts)}: {_remedy(self.fit.found)}"
        large = [each.metric for each in metric_errors(self.fit.found) if each.warning is not None]
        if large and not self.accepted:
            return (
                f"the error of {' and '.join(large)} is still large: check its likely causes, or "
                "write the file with --accept"
            )
        return None

    def to_json(self) -> dict[str, object]:
        """Return the coefficient file's content, which ``coefficients=`` of functions accepts."""
        return dict(set_to_json(self.fit.coefficients))

    def save(self, path: str | Path) -> None:
        """Write the coefficient file, which ``coefficients=`` of functions accepts.

        Raises:
            PinnError: If the held-out error did not improve, or the error of a metric is large and
                was not accepted. Also if the file's folder does not exist, or its suffix is not
                ``.json``.
        """
        if self.refusal is not None:
            raise PinnError(self.refusal)
        write_coefficient_set(self.fit.coefficients, Path(path))

    def print_report(self, details: bool = False) -> None:
        """Print errors, parameters and changes in held-out error; in full with ``details``."""
        print_fit(self.fit, self.notes, self.appended, details)

    def __str__(self) -> str:
        """Return the text that ``pinn calibrate`` prints."""
        return printed(self.print_report)


def _not_kept(verdicts: Sequence[calibrate.Verdict]) -> str:
    """Return the reason why a fit is rejected, such as a likelihood that decreased."""
    fallen = [each for each in verdicts if each.is_worse and each.before is None]
    if not fallen or len(fallen) < sum(each.is_worse for each in verdicts):
        return "the calibration does not reduce the held-out error"
    return f"the held-out measurements are less probable than before ({fallen[0].figures[1]})"


def _remedy(found: AnyCalibration) -> str:
    """Return the remedy for a fit that does not reduce the held-out error."""
    if not isinstance(found, benchmarks.BenchmarkCalibration):
        return "measure more steps or different loads"
    if found.overloaded:
        return "omit --force to exclude the runs of an overloaded server"
    return "measure other loads"


def print_fit(fitted: fit.Fit, notes: Sequence[str], appended: bool, details: bool = False) -> None:
    """Print the result of a fit, and whether the fit reduces the held-out error.

    Args:
        fitted: Fit to traces, step timings or benchmark results. A fit to benchmarks that follows a
            fit to steps includes that fit.
        notes: Notes on skipped data, assumptions and mismatches.
        appended: Whether the calibration continues an earlier one.
        details: Whether to print everything instead of a single screen.
    """
    # Warnings, and notes that concern the fit itself, are always printed in full.
    shown = [note for note in notes if note.startswith(_ALWAYS)]
    others = [note for note in notes if not note.startswith(_ALWAYS)]
    shown += others if details else [_shortened(note) for note in others[:_NOTES]]
    for note in shown:
        say(note)
    say(server_label(fitted.found.deployment))
    for found in [fitted.found] if fitted.first is None else [fitted.first.found, fitted.found]:
        say(_heading(found))
        if details or found is fitted.found:
            _print_tables(found, appended, details)
        if found.verdicts:
            page().print(_judged(found.verdicts, details))
        else:
            say(f"WARNING: the calibration was not evaluated: {_few(found)}")
        if found is fitted.found:
            for warning in warnings_of(found):
                say(f"WARNING: {warning}")
        if not details and len(found.verdicts) > _VERDICTS:
            say(f"... and {len(found.verdicts) - _VERDICTS} more")
    if not details:
        hidden = len(notes) - len(shown)
        noted = f"note; {hidden} are not shown" if hidden else "note"
        say(f"More: --details (every metric, parameter and {noted}).")


def _shortened(text: str, most: int = 2 * WIDTH) -> str:
    """Truncate a note to ``most`` characters, by default two lines of the screen."""
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def _print_tables(found: AnyCalibration, appended: bool, details: bool) -> None:
    known = [quantity for quantity in found.quantities if quantity.is_determined]
    if details:
        every = _quantities(found.quantities, appended, "all parameters")
        caption = (
            "parameters: value +- standard error, or (90 % interval) if the interval includes 0"
        )
        tables = [*_detail_tables(found), replace(every, caption=caption)]
        if isinstance(found, calibrated.Calibration) and not found.alpha.taught.any():
            say(
                "alpha (request latency outside engine steps) is unchanged, because the traces "
                "have no complete requests"
            )
    else:
        best = sorted(known, key=lambda q: q.after_error / abs(q.after))[:_QUANTITIES]
        shown = [quantity for quantity in known if quantity in best]
        tables = [
            _error_table(found, details),
            _quantities(shown, appended, "best-constrained parameters"),
        ]
    for table in tables:
        page(WIDEST if details else WIDTH).print(table)
        if details:
            print()
    unknown = len(found.quantities) - len(known)
    if unknown:
        say(
            f"poorly constrained (standard error above 10 %): {unknown} of "
            f"{len(found.quantities)} parameters"
        )


def _heading(found: AnyCalibration) -> str:
    facts = found.facts
    if isinstance(found, calibrated.Calibration):
        names = ", ".join(Path(source["path"]).name for source in facts["sources"])
        return (
            f"fitted to {facts['used']} intervals ({facts['kind']}) of {names}; "
            f"residual {100 * facts['noise']:.1f} %"
        )
    if isinstance(found, calibrated.StepCalibration):
        return (
            f"fitted to {facts['used']} batches of {found.steps.report.accepted} steps; "
            f"residual {100 * facts['noise']:.1f} %"
        )
    metrics, runs = amount(len(found.errors), "metric"), amount(len(facts["sources"]), "run")
    return f"fitted to {metrics} of {runs}"


def _detail_tables(found: AnyCalibration) -> list[Grid]:
    if isinstance(found, calibrated.StepCalibration):
        return [_steps(found)]
    if isinstance(found, benchmarks.BenchmarkCalibration):
        return [_figures(found)]
    beta = _offsets("beta", STEP_FEATURES, found.prior.beta, found.beta.beta)
    tables = [_error_table(found, details=True), beta]
    if found.alpha.taught.any():
        tables += [
            _offsets("alpha", REQUEST_FEATURES, found.alpha.prior.alpha, found.posterior.alpha),
            _requests(found.alpha.errors),
        ]
    if found.alpha.worse:
        tables.append(_judged(found.alpha.worse, True, "request phases whose fit was rejected"))
    return tables


# Tables of the one-screen report: errors before and after calibration, and parameters.


def _error_table(found: AnyCalibration, details: bool) -> Grid:
    """Return a table of step time errors, or of metric errors, before and after calibration.

    ``details`` adds parts of the trace and additional statistics.
    """
    table = Grid.of("error, %: median (largest)", "n", "before", "after")
    if isinstance(found, calibrated.Calibration):
        figures = ("median", "mean", "bias") if details else ("median",)
        table = Grid.of(f"error of step times, %: {' / '.join(figures)}", "n", "before", "after")
        shown = found.errors if details else found.errors[found.errors["part"] == calibrate.TEST]
        for (part, kind), rows in shown.groupby(["part", "kind"], sort=False):
            if rows["n"].iloc[0]:
                cells = (100 * rows[list(figures)]).map("{:.2f}".format).agg(" / ".join, axis=1)
                table.add(f"{part}, {kind}", str(rows["n"].iloc[0]), *cells)
    elif isinstance(found, calibrated.StepCalibration):
        errors = (predicted / found.steps.seconds - 1 for predicted in found.predictions())
        table.add("median steps", str(len(found.steps)), *map(_typical, errors))
    else:
        held = "held-out" if len(found.held_out) else "fitted"
        verdict = Column("", True)
        table = Grid.of(f"MAPE, {held} loads", "n", "before", "after", verdict)
        for each in [*metric_errors(found)[:_ERRORS], *percentile_errors(found)]:
            # The last column, such as ``better``, follows from the errors in the same row.
            table.add(each.metric, str(each.verdict.count), *each.verdict.figures[:2], each.word)
    return table


def _typical(errors: np.ndarray | pd.Series) -> str:
    size = 100 * np.abs(np.asarray(errors))
    return f"{np.median(size):.1f} ({size.max():.1f})"


def _judged(verdicts: Sequence[calibrate.Verdict], details: bool, heading: str = "") -> Grid:
    """Return a table of changes in held-out errors or likelihoods, worst first."""
    weighted = any(verdict.is_weighted for verdict in verdicts)
    heading = heading or f"{'weighted ' * weighted}MAPE on held-out data"
    more = ["change +- standard error"] * details
    table = Grid.of(heading, "n", "before", "after", *more, Column("", True))
    worse_first = sorted(verdicts, key=lambda each: not each.is_worse)
    for verdict in worse_first if details else worse_first[:_VERDICTS]:
        figures = verdict.figures if details else verdict.figures[:2]
        table.add(verdict.where, str(verdict.count), *figures, verdict.word)
    return table


# Tables that only ``--details`` prints.


def _offsets(
    part: str,
    registry: Mapping[str, StepFeature | RequestFeature],
    base: np.ndarray,
    total: np.ndarray,
) -> Grid:
    headings = ("name", "before", "offset", "calibrated", "unit")
    table = Grid.of(*headings, caption=f"{part}: change by the calibration")
    for feature, before, after in zip(registry.values(), base, total, strict=True):
        if before != after:
            seconds = feature.unit.split("/")[0] == "s"
            scale = MICROSECOND if seconds else 1.0
            unit = f"u{feature.unit}" if seconds else "x"
            cells = (before, after - before, after)
            table.add(feature.name, *(f"{v / scale:.3f}" for v in cells), unit)
    return table


def _requests(errors: pd.DataFrame) -> Grid:
    methods = list(dict.fromkeys(errors["method"])) if len(errors) else []
    caption = "last 20 % of the requests: median absolute error (ms)"
    table = Grid.of("phase", "n", "measured", *methods, caption=caption)
    for phase, rows in errors.groupby("phase", sort=False) if len(errors) else ():
        figures = rows.set_index("method")["error_s"]
        table.add(
            str(phase),
            str(rows["n"].iloc[0]),
            f"{1e3 * rows['median_s'].iloc[0]:.3f}",
            *(f"{1e3 * figures[m]:.3f}" for m in methods),
        )
    return table


def _quantities(quantities: Sequence[posterior.Quantity], appended: bool, heading: str) -> Grid:
    """Return a table of parameters with standard errors; ``appended`` adds each one's drift."""
    unknown = not all(q.is_determined for q in quantities)
    more = [*[""] * unknown, *["drift in errors"] * appended]
    table = Grid.of(Column(heading, True), "before", "after", "unit", *more)
    if appended:  # the drift column needs the space
        table = replace(table, gap=1)
    for q in quantities:
        scale, unit = (1.0, "x") if q.unit == "x" else (MICROSECOND, f"u{q.unit}")
        sides = ((q.before, q.before_error), (q.after, q.after_error))
        cells = (_with_error(value / scale, error / scale) for value, error in sides)
        known = ["" if q.is_determined else "poorly constrained"] * unknown
        table.add(q.name, *cells, unit, *known, *[f"{q.drift:+.1f}"] * appended)
    return table


def _with_error(value: float, error: float) -> str:
    """Return a value with its standard error, or with its 90 % interval if the interval includes 0.

    >>> _with_error(1.004, 0.098), _with_error(0.8448, 1.1)
    ('1.004 +- 0.098', '0.8448 (0 to 2.7)')
    """
    half = NORMAL_QUANTILE * error
    if half < value:
        return f"{number(value, 4)} +- {number(error, 2)}"
    return f"{number(value, 4)} (0 to {number(value + half, 2)})"


def _figures(found: benchmarks.BenchmarkCalibration) -> Grid:
    """Return a table of each run's metrics, with errors before the fit, held out and fitted."""
    key = ["run", "load", "figure"]
    held = found.held_out.set_index(key)["after"].rename("held out")
    rows = found.held_out if len(found.held_out) else found.errors
    if len(found.percentiles):
        rows = pd.concat([rows, found.percentiles], ignore_index=True)
        held = rows.set_index(key)["after"].rename("held out")
    fitted = found.errors.set_index(key)["after"].rename("fitted")
    table = rows.drop(columns="after").join(held, on=key).join(fitted, on=key)
    short = short_names(list(table["run"]))
    caption = "benchmark metrics (ms or 1/s) and their prediction errors"
    sides = ("before", "held out", "fitted")
    grid = Grid.of("run", "metric", "measured", *sides, caption=caption, text=2)
    for row in table.to_dict("records"):
        is_rate = row["figure"].endswith("_per_s")
        measured = number(row["measured"] / (1.0 if is_rate else MILLISECOND), 4)
        errors = (100 * (row[side] / row["measured"] - 1) for side in sides)
        cells = ("-" if np.isnan(error) else f"{error:+.1f} %" for error in errors)
        grid.add(short[row["run"]], metric_name(row["figure"]), measured, *cells)
    return grid


def _steps(found: calibrated.StepCalibration) -> Grid:
    headings = ("batch", "measured", "+-", "before", "after")
    table, steps = Grid.of(*headings, caption="median steps (ms)"), found.steps
    rows = zip(steps.names, steps.seconds, steps.error, *found.predictions(), strict=True)
    for name, measured, error, *predicted in rows:
        cells = (number(value / MILLISECOND, 4) for value in predicted)
        table.add(name, number(measured / MILLISECOND, 4), f"{100 * error:.1f} %", *cells)
    return table


def _few(found: AnyCalibration) -> str:
    """Return the reason why no data was held out, with a remedy."""
    if isinstance(found, calibrated.StepCalibration):
        return (
            f"{len(found.steps)} batches are too few to hold some out for evaluation: "
            "measure longer"
        )
    return "the only load or time window cannot be held out: measure a second load"
