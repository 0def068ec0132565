"""``pinn calibrate``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinn.common.screen import say
from pinn.engines.recipe import reference_version
from pinn.errors import PinnError
from pinn.interface.commands.options import Details, engine_flags, named, output
from pinn.interface.commands.requests import CalibrationRequest
from pinn.server.benchmarks.benchmark_run import GivenLoad, split_flags
from pinn.simulator.engine_spec import EngineSpec
from pinn.specs.flags import flags_apart
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    from pinn.engines.deployment import Deployment
    from pinn.server.benchmarks.benchmark_run import BenchmarkRun
    from pinn.server.calibration.fit import Fit
    from pinn.server.calibration.prior import Start


@engine_flags(ServingSpec, EngineSpec, GivenLoad)
def calibrate(
    asked: CalibrationRequest,
    more: Annotated[list[Path] | None, typer.Argument(hidden=True)] = None,
    out: Annotated[
        Path, output("--out", "Coefficient set to write, a JSON file.", ".json", short="-o")
    ] = Path("coefficients.json"),
    details: Details = False,
    *,
    flags: dict[str, Any],
) -> None:
    """Fit the coefficients to your own server.

    The network's coefficients and their intervals are the prior; step times of traces, whole steps
    that were measured, or figures of benchmarks whose loads are simulated, move a handful of
    scalars (step constant, bytes, arithmetic, attention, ...) and, less, single coefficients. What
    the measurements do not show keeps its value and its interval. The result is judged on later
    time, loads or batches that were left out; if it is not better there, nothing is written.

    Examples:
      pinn calibrate --benchmarks results/*.json --model Llama-3.1-8B --gpu H100
        --max-num-seqs 256 -o server.json

      pinn ingest vllm traces.json -o run1 --model Llama-3.1-8B --gpu H100

      pinn calibrate --observations run1 --append server.json -o server.json

      pinn simulate --coefficients server.json --workload profile.yaml
    """
    from pinn.coefficients.coefficients import write_coefficient_set
    from pinn.interface.commands.calibration_report import print_fit

    asked = replace(asked, benchmarks=[*(asked.benchmarks or []), *(more or [])])
    fit, notes = fit_measurements(asked, flags)
    print_fit(fit, notes, asked.append is not None, details)
    if not fit.kept:
        say(
            "nothing written: the calibration is not better than what was before on "
            "what it has not seen; measure more, or other loads"
        )
        raise typer.Exit(1)  # a script that goes on would use a file that is not there
    write_coefficient_set(fit.coefficients, out)
    typer.echo(f"wrote {out}")


def fit_measurements(asked: CalibrationRequest, flags: dict[str, Any]) -> tuple[Fit, list[str]]:
    """The fit to a folder of observations, to files of benchmarks, or to measured steps.

    Returns:
        The fit, and notes of what was left out, assumed or does not match.
    """
    from pinn.server.calibration.prior import Start

    folder, steps = asked.observations, asked.steps
    if (folder is not None) + bool(asked.benchmarks) + (steps is not None) != 1:
        raise PinnError(
            "give --observations FOLDER of 'pinn ingest', --benchmarks FILES, or --steps FOLDER of "
            "'pinn measure', whose folder 'serving' is taken along"
        )
    start = Start(asked.append, asked.base, asked.checkpoint, asked.force)
    if folder is not None:
        fit = _fit_traces(folder, asked, start, flags)
    elif steps is not None:
        fit = _fit_steps(steps, asked, start, flags)
    else:
        fit = _fit_benchmarks(asked, start, flags)
    return fit, start.notes


def _fit_traces(
    folder: Path, asked: CalibrationRequest, start: Start, flags: dict[str, Any]
) -> Fit:
    """The fit to whatever an ingested folder holds: traces, steps or benchmarks."""
    from pinn.server.calibration import fit
    from pinn.server.calibration.calibrate import BetaSettings
    from pinn.server.traces.measured_steps import MEASURED, ingested_steps
    from pinn.server.traces.trace_tables import read_trace_tables

    engine, server = flags_apart(EngineSpec, flags)
    if server or asked.model or asked.gpu:
        raise PinnError("--observations names its server already: flags belong to 'pinn ingest'")
    traces = read_trace_tables(folder)
    deployment = traces.deployment()
    _note_release(deployment, start.notes)
    names = _named(traces.manifest.get("deployment") or {})
    if traces.manifest["tables"].get("cycles", {}).get("rows"):
        settings = BetaSettings(asked.intervals, asked.budget or None, asked.seed)
        return fit.fit_traces(traces, names, start, settings)
    if MEASURED in traces.manifest["tables"]:
        return fit.fit_measured_steps(ingested_steps(traces), deployment, names, start)
    runs = fit.benchmark_runs(traces)
    return fit.fit_benchmarks(runs, deployment, names, start, EngineSpec(**engine))


def _fit_benchmarks(asked: CalibrationRequest, start: Start, flags: dict[str, Any]) -> Fit:
    """The fit to files of benchmarks, of the server that ``--append`` knows or that is given."""
    from pinn.server.calibration.fit import fit_benchmarks
    from pinn.server.traces.ingestion import benchmark_target

    engine, flags = flags_apart(EngineSpec, flags)
    given = _earlier(asked.append) | named(asked.model, asked.gpu) | flags
    model, gpu = given.pop("model", None), given.pop("gpu", None)
    server, load = split_flags(given)
    runs = _read_runs(asked.benchmarks or [], load, start.notes)
    target = benchmark_target(runs, model, gpu, server)
    deployment, names = target.deployment(), _named(vars(target))
    _note_release(deployment, start.notes)
    return fit_benchmarks(runs, deployment, names, start, EngineSpec(**engine))


def _fit_steps(steps: Path, asked: CalibrationRequest, start: Start, flags: dict[str, Any]) -> Fit:
    """The fit to measured steps, and to benchmarks that were made beside them."""
    from pinn.server.calibration.fit import fit_measured_steps
    from pinn.server.traces.measured_steps import read_measured_steps

    engine, flags = flags_apart(EngineSpec, flags)
    measured = read_measured_steps(steps)
    refused = measured.report.refused
    start.notes += [f"{count:8} left out: {why}" for why, count in refused.items()]
    server, load = split_flags(flags)
    target = measured.target(asked.model, asked.gpu, server)
    deployment, names = target.deployment(), _named(vars(target))
    _note_release(deployment, start.notes)
    runs = _read_runs(measured.serving, load, start.notes) if measured.serving else []
    of_engine = measured.engine(engine)
    return fit_measured_steps(measured, deployment, names, start, runs, of_engine)


def _earlier(file: Path | None) -> dict[str, Any]:
    """Model, GPU and flags of an earlier calibration; nothing without one."""
    from pinn.coefficients.coefficients import read_coefficient_set

    if file is None:
        return {}
    found = read_coefficient_set(file).configuration()
    defaults = vars(ServingSpec())
    kept = {name: value for name, value in found.items() if value != defaults.get(name)}
    return {name: kept[name] for name in ("model", "gpu", "precision", *defaults) if name in kept}


def _note_release(deployment: Deployment, notes: list[str]) -> None:
    """Say which release's defaults stand for one that no file and no flag names."""
    serving = deployment.serving
    if not serving.engine_version:
        default = reference_version(serving.engine).value
        notes.append(
            f"release not stated: assumed {serving.engine} {default} (--engine-version names it)"
        )


def _read_runs(paths: list[Path], load: GivenLoad, notes: list[str]) -> list[BenchmarkRun]:
    from pinn.server.benchmarks.read import read_benchmarks

    runs, report = read_benchmarks(paths, load)
    notes += [f"{count:8} left out: {reason}" for reason, count in report.refused.items()]
    assumed = dict.fromkeys(text for run in runs for text in run.assumed)
    notes += [f"assumed: {text}" for text in assumed]
    return runs


def _named(entry: Any) -> dict[str, str]:
    from pinn.coefficients.coefficients import NAMED

    return {name: entry[name] for name in NAMED if entry.get(name)}
