"""Calibration of a deployment to measurements of any type."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd

from pinn.calibration import calibrated
from pinn.calibration.benchmarks import BenchmarkCalibration, Runs, calibrate_to_benchmarks
from pinn.calibration.calibrate import BetaSettings, error_table, is_kept, read_intervals
from pinn.calibration.checks import check_engine, check_traces, refuse
from pinn.calibration.checks_benchmarks import benchmark_warnings, check_benchmarks
from pinn.calibration.held_out import warnings_of
from pinn.calibration.load_range import joined_range
from pinn.calibration.overloaded import check_some_left, without_overloaded
from pinn.calibration.prior import Prior, Start, served_prior
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun
from pinn.measurements.benchmarks.loads import benchmark_figures, benchmark_workload
from pinn.measurements.traces.ingestion import BENCHMARKS, read_benchmark_table
from pinn.measurements.traces.measured_steps import MeasuredSteps
from pinn.measurements.traces.trace_tables import TraceTables
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import map_runs, measured_job
from pinn.surrogate.coefficient_set import CoefficientSet, read_coefficient_set
from pinn.surrogate.coefficients import Coefficients

# Evaluation of coefficients on an ingested run: steps of traces, or simulated benchmark loads.

Named = Mapping[str, Coefficients]


def score_steps(traces: TraceTables, deployment: Deployment, coefficients: Named) -> pd.DataFrame:
    """Return relative errors of step times, see :func:`pinn.calibration.calibrate.error_table`.

    Args:
        traces: Ingested trace tables with steps.
        deployment: Deployment that was traced.
        coefficients: Coefficients of the deployment, by name.

    Raises:
        PinnError: If no step in the tables can be evaluated.
    """
    betas = {name: found.beta[0] for name, found in coefficients.items()}
    tables = [
        error_table(read_intervals(traces, deployment, beta), {name: beta})
        for name, beta in betas.items()
    ]
    return pd.concat(tables).sort_index(kind="stable", ignore_index=True)


def score_benchmarks(
    runs: Runs, deployment: Deployment, coefficients: Named, engine: EngineSpec | None = None
) -> pd.DataFrame:
    """Simulate each load and return errors of the metrics that its client measured.

    Returns:
        One row per run, metric and coefficients: ``coefficients``, ``run``, ``load``,
        ``failed_share``, ``overload`` (why the server is overloaded, else empty), ``figure``,
        ``measured``, ``predicted`` (seconds or per second) and ``error_percent``.
    """
    rows = []
    for name, found in coefficients.items():
        latency = LinearLatency(deployment, found.beta[0], found.alpha[0])
        jobs = [measured_job(deployment, benchmark_workload(run), latency, engine) for run in runs]
        simulated = map_runs(lambda _, run: benchmark_figures(run), jobs)
        for run, figures in zip(runs, simulated, strict=True):
            of_run = (name, run.name, run.load.text, run.failed_share, run.overload or "")
            rows += [(*of_run, each, got, figures[each]) for each, got in run.figures.items()]
    facts = ["coefficients", "run", "load", "failed_share", "overload"]
    table = pd.DataFrame(rows, columns=[*facts, "figure", "measured", "predicted"])
    return table.assign(error_percent=100 * (table["predicted"] / table["measured"] - 1))


def benchmark_runs(traces: TraceTables) -> list[BenchmarkRun]:
    """Return the benchmark runs of an ingested folder.

    Raises:
        PinnError: If the folder has neither benchmark runs nor steps.
    """
    if BENCHMARKS not in traces.manifest["tables"]:
        held = ", ".join(f"{e['rows']} {name}" for name, e in traces.manifest["tables"].items())
        raise PinnError(
            f"{traces.folder} has neither steps nor benchmark runs (it has "
            f"{held}): ingest traces with step summaries, or benchmark files with "
            "'pinn ingest benchmarks'"
        )
    return read_benchmark_table(traces)


# Calibration to measurements of one server: checks, fit and evaluation.

Names = dict[str, str]
AnyCalibration = calibrated.Calibration | calibrated.StepCalibration | BenchmarkCalibration


@dataclass(frozen=True)
class Fit:
    """Result of a calibration.

    Attributes:
        found: Calibration: coefficients before and after the fit, and changes in held-out error.
        coefficients: Coefficients that ``pinn calibrate`` writes.
        kept: Whether the held-out error improved.
        first: Preceding fit to measured steps of the same server; None if there is none.
    """

    found: AnyCalibration
    coefficients: CoefficientSet
    kept: bool
    first: "Fit | None" = None


def _checked(
    start: Start, deployment: Deployment, check: Callable[..., list[str]]
) -> tuple[CoefficientSet, Prior]:
    """Check measurements against a deployment; return its coefficients and prior before the fit."""
    before = start.coefficients(deployment)
    findings = list(check_engine(deployment))
    findings += check(deployment, start.of_network(deployment, before))
    start.notes += [f"WARNING: {text}" for text in refuse(findings, start.force)]
    return before, start.prior(deployment, before)


def fit_benchmarks(
    runs: Runs, deployment: Deployment, named: Names, start: Start, engine: EngineSpec | None = None
) -> Fit:
    """Fit coefficients to metrics of benchmarks.

    Args:
        runs: Benchmark runs of one server.
        deployment: Deployment that was measured.
        named: Model, GPU and weight format as named by the user.
        start: Files or checkpoint with the coefficients and prior before the fit.
        engine: Scheduler settings of the server; None for the engine's defaults.

    Raises:
        PinnError: If measurements cannot be fitted, or do not match the deployment and ``force`` is
            not set.
    """
    check_some_left(runs, start.force)
    runs, notes = without_overloaded(runs, start.force)
    start.notes += notes
    start.notes += [f"WARNING: {text}" for text in benchmark_warnings(runs, deployment)]

    _check_new(runs, start)
    before, prior = _checked(start, deployment, partial(check_benchmarks, runs))
    found = _fit(calibrate_to_benchmarks(runs, deployment, prior, engine), named, before)
    return found if start.append is None else _with_earlier(found, before)


def _check_new(runs: Runs, start: Start) -> None:
    """Refuse runs to which the calibration that is continued was already fitted.

    Raises:
        PinnError: If there are such runs; with ``force``, they are named in a note instead.
    """
    if start.append is None:
        return
    rows = read_coefficient_set(start.append).calibration.get("figures") or ()
    fitted = {(row["load"], row["figure"], row["measured"]) for row in rows}
    again = [
        run.name
        for run in runs
        if any((run.load.text, name, value) in fitted for name, value in run.figures.items())
    ]
    if not again:
        return
    fault = f"{start.append} was already fitted to {', '.join(again)}, which then counts twice"
    if not start.force:
        raise PinnError(f"{fault}: omit it, or give --force")
    start.notes.append(f"WARNING: {fault}")


def _with_earlier(found: Fit, before: CoefficientSet) -> Fit:
    """Add the runs and the range of loads of the calibration that is continued to a fit's facts."""
    earlier, now = before.calibration, found.coefficients.calibration
    facts: dict[str, Any] = {
        name: [*(earlier.get(name) or ()), *(now.get(name) or ())]
        for name in ("sources", "figures")
    }
    if loads := joined_range(earlier.get("loads") or {}, now.get("loads") or {}):
        facts["loads"] = loads
    return replace(found, coefficients=replace(found.coefficients, calibration={**now, **facts}))


def _fit(found: AnyCalibration, named: Names, before: CoefficientSet) -> Fit:
    """Return a calibration as a ``Fit``; ``kept`` is true if the held-out error improved.

    It is also true if no data was held out.
    """
    kept = not found.verdicts or is_kept(found.verdicts)
    written = found.coefficient_set(named, before.taught)
    if warnings := warnings_of(found):
        written = replace(written, calibration={**written.calibration, "warnings": warnings})
    return Fit(found, written, kept)


def fit_traces(traces: TraceTables, named: Names, start: Start, settings: BetaSettings) -> Fit:
    """Fit coefficients to step times of traces.

    Arguments and errors are those of :func:`fit_benchmarks`.
    """
    deployment = traces.deployment()
    before, prior = _checked(start, deployment, partial(check_traces, traces))
    found = calibrated.run_calibration(traces, deployment, prior, settings)
    coefficients = found.coefficient_set(named, before.taught | found.alpha.taught)
    return Fit(found, coefficients, is_kept(found.verdicts))


def fit_measured_steps(
    steps: MeasuredSteps,
    deployment: Deployment,
    named: Names,
    start: Start,
    runs: Runs = (),
    engine: EngineSpec | None = None,
) -> Fit:
    """Fit coefficients to measured engine steps, then to serving benchmarks of the same server.

    The fit to runs is kept if its error on held-out loads is below that of the fit to steps.
    Otherwise the fit to steps is kept. Arguments and errors are those of :func:`fit_benchmarks`.
    """
    before, prior = _checked(start, deployment, partial(calibrated.check_steps, steps))
    first = _fit(calibrated.calibrate_steps(steps, deployment, prior), named, before)
    runs, notes = without_overloaded(runs, start.force)
    start.notes += notes
    if not runs:
        return first
    prior = served_prior(first.found.posterior)
    served = _fit(calibrate_to_benchmarks(runs, deployment, prior, engine), named, before)
    if served.kept:
        found, alone = served.coefficients, first.coefficients
        calibration = found.calibration | {"steps": alone.calibration}
        whole = replace(found, base=alone.base, calibration=calibration)
        return Fit(served.found, whole, kept=True, first=first)
    start.notes.append(
        "the fit to benchmarks predicts held-out loads no better than the fit to steps alone: the "
        "benchmarks are not used"
    )
    return first
