"""A fit to one server's measurements: checked, fitted and judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pinn.coefficients.coefficient_set import CoefficientSet
from pinn.data.benchmarks.benchmark_run import BenchmarkRun
from pinn.data.traces.measured_steps import MeasuredSteps
from pinn.data.traces.trace_tables import TraceTables
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
    """

    found: Calibration | BenchmarkCalibration | StepCalibration
    coefficients: CoefficientSet
    kept: bool


def fit_benchmarks(
    runs: Sequence[BenchmarkRun],
    deployment: Deployment,
    named: dict[str, str],
    start: Start,
    force: bool,
) -> Fit:
    """Fit to figures of benchmarks.

    Args:
        runs: The benchmarks.
        deployment: What they ran on.
        named: Model, GPU and format as the user called them.
        start: What the fit starts from.
        force: Fit although the files do not match the flags.

    Raises:
        PinnError: If they do not match, unless forced, or cannot be fitted.
    """
    before = start.coefficients(deployment)
    findings = check_benchmarks(runs, deployment, start.of_network(deployment, before))
    start.notes += [f"WARNING: {text}" for text in refuse(findings, force)]
    found = calibrate_to_benchmarks(runs, deployment, start.prior(deployment, before))
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
    steps: MeasuredSteps, deployment: Deployment, named: dict[str, str], start: Start, force: bool
) -> Fit:
    """Fit to whole steps that were measured; arguments and errors as of :func:`fit_benchmarks`."""
    before = start.coefficients(deployment)
    findings = check_steps(steps, deployment, start.of_network(deployment, before))
    start.notes += [f"WARNING: {text}" for text in refuse(findings, force)]
    found = calibrate_steps(steps, deployment, start.prior(deployment, before))
    kept = not found.verdicts or is_kept(found.verdicts)
    return Fit(found, found.coefficient_set(named, before.taught), kept)
