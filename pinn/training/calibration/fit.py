"""A fit to one server's measurements: checked, fitted and judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pinn.coefficients.coefficient_set import CoefficientSet
from pinn.data.benchmarks.benchmark_run import BenchmarkRun
from pinn.data.traces.measured_steps import MeasuredSteps
from pinn.data.traces.trace_tables import TraceTables
from pinn.simulator.engine_spec import EngineSpec
from pinn.specs.deployment import Deployment
from pinn.training.calibration.benchmark_set import benchmark_set
from pinn.training.calibration.benchmarks import BenchmarkCalibration, calibrate_to_benchmarks
from pinn.training.calibration.calibrate import BetaSettings
from pinn.training.calibration.checks import refuse
from pinn.training.calibration.checks_benchmarks import check_benchmarks
from pinn.training.calibration.checks_traces import check_traces
from pinn.training.calibration.measured_steps import (
    StepCalibration,
    calibrate_steps,
    check_steps,
)
from pinn.training.calibration.prior import Prior, served_prior
from pinn.training.calibration.run import Calibration, run_calibration
from pinn.training.calibration.start import Start
from pinn.training.calibration.verdict import is_kept


@dataclass(frozen=True)
class Fit:
    """What a calibration found.

    Attributes:
        found: The fit itself.
        coefficients: What ``pinn calibrate`` writes.
        kept: Whether they are better than before on what was left out.
        first: What was fitted before it, to measured steps of the same server; None for nothing.
    """

    found: Calibration | BenchmarkCalibration | StepCalibration
    coefficients: CoefficientSet
    kept: bool
    first: Fit | None = None


def fit_benchmarks(
    runs: Sequence[BenchmarkRun],
    deployment: Deployment,
    named: dict[str, str],
    start: Start,
    force: bool,
    engine: EngineSpec | None = None,
) -> Fit:
    """Fit to figures of benchmarks.

    Args:
        runs: The benchmarks.
        deployment: What they ran on.
        named: Model, GPU and format as the user called them.
        start: What the fit starts from.
        force: Fit although the files do not match the flags.
        engine: How it schedules; None for the engine's defaults.

    Raises:
        PinnError: If they do not match, unless forced, or cannot be fitted.
    """
    before = start.coefficients(deployment)
    findings = check_benchmarks(runs, deployment, start.of_network(deployment, before))
    start.notes += [f"WARNING: {text}" for text in refuse(findings, force)]
    prior = start.prior(deployment, before)
    return _to_benchmarks(runs, deployment, named, prior, before, engine)


def _to_benchmarks(
    runs: Sequence[BenchmarkRun],
    deployment: Deployment,
    named: dict[str, str],
    prior: Prior,
    before: CoefficientSet,
    engine: EngineSpec | None,
) -> Fit:
    found = calibrate_to_benchmarks(runs, deployment, prior, engine)
    kept = not found.verdicts or is_kept(found.verdicts)
    return Fit(found, benchmark_set(found, named, before.taught), kept)


def fit_traces(traces: TraceTables, start: Start, settings: BetaSettings, force: bool) -> Fit:
    """Fit to step times of traces; arguments and errors as of :func:`fit_benchmarks`."""
    deployment = traces.deployment()
    before = start.coefficients(deployment)
    findings = check_traces(traces, deployment, start.of_network(deployment, before))
    start.notes += [f"WARNING: {text}" for text in refuse(findings, force)]
    found = run_calibration(traces, deployment, start.prior(deployment, before), settings)
    return Fit(found, found.coefficient_set(before.taught), is_kept(found.verdicts))


def fit_measured_steps(
    steps: MeasuredSteps,
    deployment: Deployment,
    named: dict[str, str],
    start: Start,
    force: bool,
    runs: Sequence[BenchmarkRun] = (),
    engine: EngineSpec | None = None,
) -> Fit:
    """Fit to whole steps that were measured, then to what a server of them was seen to do.

    The served fit stands where it is better on loads left out than the steps are alone; else that
    of the steps does. Arguments and errors as of :func:`fit_benchmarks`.
    """
    before = start.coefficients(deployment)
    findings = check_steps(steps, deployment, start.of_network(deployment, before))
    start.notes += [f"WARNING: {text}" for text in refuse(findings, force)]
    found = calibrate_steps(steps, deployment, start.prior(deployment, before))
    kept = not found.verdicts or is_kept(found.verdicts)
    first = Fit(found, found.coefficient_set(named, before.taught), kept)
    if not runs:
        return first
    prior = served_prior(Prior(found.posterior.mean, found.posterior.covariance))
    served = _to_benchmarks(runs, deployment, named, prior, before, engine)
    if served.kept:
        whole = replace(
            served.coefficients,
            base=first.coefficients.base,
            calibration=served.coefficients.calibration | {"steps": first.coefficients.calibration},
        )
        return Fit(found=served.found, coefficients=whole, kept=True, first=first)
    start.notes.append(
        "the loads that were served are no better predicted than by the steps alone: they are left "
        "out"
    )
    return first
