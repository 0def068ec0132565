"""Calibration of coefficients to measurements of a user's own server."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pinn.api.arguments import read_request, with_arguments
from pinn.api.requests import CalibrationRequest, named
from pinn.calibration import fit as fitting
from pinn.calibration.calibrate import BetaSettings
from pinn.calibration.checks import check_memory_log, refuse
from pinn.calibration.host_link import fit_host_link
from pinn.calibration.prior import Start
from pinn.calibration.report import CalibratedServer
from pinn.common.screen import skipped_lines
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun
from pinn.measurements.benchmarks.read import read_benchmarks
from pinn.measurements.benchmarks.reading import GivenLoad, split_flags
from pinn.measurements.benchmarks.taken_flags import taken_lines
from pinn.measurements.kv_transfers import read_kv_transfers
from pinn.measurements.traces.ingestion import benchmark_target
from pinn.measurements.traces.measured_steps import MEASURED, ingested_steps, read_measured_steps
from pinn.measurements.traces.trace_tables import read_trace_tables
from pinn.memory.host_tier import tier_block_bytes
from pinn.memory.kv_layout import empty_layout
from pinn.memory.logged_cache import cache_sentence, with_log
from pinn.memory.startup_log import read_startup_log
from pinn.specs.flags import flags_apart
from pinn.specs.serving import ServingSpec
from pinn.surrogate.coefficient_set import NAMED, read_coefficient_set

_SPECIFICATIONS = (ServingSpec, EngineSpec, GivenLoad)


@with_arguments(*_SPECIFICATIONS, request=CalibrationRequest, serves=True)
def calibrate(
    benchmarks: str | Path | Sequence[str | Path] = (),
    model: str | Path | None = None,
    gpu: str | Path | None = None,
    **given: object,
) -> CalibratedServer:
    """Fit the step time coefficients to measurements of your own server, like ``pinn calibrate``.

    Args:
        benchmarks: Result files of a benchmark tool, or folders of them.
        model: Model of the measured server: a name, or a config.json.
        gpu: GPU of the measured server: a name, or a datasheet.
        **given: Keyword arguments listed below, flags of the server, and flags of the load if the
            files do not describe it.

    Raises:
        PinnError: If files cannot be read, do not match the flags, or have too few measurements.
    """
    own = {"benchmarks": benchmarks, "model": model, "gpu": gpu}
    asked, flags = read_request(CalibrationRequest, given, *_SPECIFICATIONS, **own)
    if sum(map(bool, (asked.observations, asked.benchmarks, asked.steps))) != 1:
        raise PinnError(
            "'pinn calibrate' needs exactly one kind of measurements: give --observations FOLDER "
            "of 'pinn ingest', --benchmarks FILES, or --steps FOLDER of 'pinn measure' (the "
            "folder's subfolder 'serving' is read, too)"
        )
    start = Start(asked.append, asked.base, asked.checkpoint, asked.force)
    if asked.observations is not None:
        found = _fit_traces(asked.observations, asked, start, flags)
    elif asked.steps is not None:
        found = _fit_steps(asked.steps, asked, start, flags)
    else:
        found = _fit_benchmarks(asked, start, flags)
    if asked.kv_events:
        found = _with_link(found, asked.kv_events, start)
    appended = asked.append is not None
    return CalibratedServer(found, appended, tuple(start.notes), start.left_out, asked.accept)


def _with_link(found: fitting.Fit, paths: Sequence[Path], start: Start) -> fitting.Fit:
    """Add the bandwidth of the link to host memory, fitted to KV transfers, to a calibration."""
    measured = read_kv_transfers(paths)
    start.notes += skipped_lines(measured.report.refused)
    layout = empty_layout(found.found.deployment)
    link = fit_host_link(measured, tier_block_bytes(layout))
    start.notes.append(link.sentence)
    held = found.coefficients.calibration | {"host_link": link.to_json()}
    return replace(found, coefficients=replace(found.coefficients, calibration=held))


def _fit_traces(
    folder: Path, asked: CalibrationRequest, start: Start, flags: Mapping[str, object]
) -> fitting.Fit:
    """Fit coefficients to a ``pinn ingest`` folder of traces, step timings or benchmark results."""
    engine, server = flags_apart(EngineSpec, flags)
    if server or asked.model or asked.gpu:
        raise PinnError(
            "--observations cannot be combined with flags of the server, which 'pinn ingest' "
            "recorded in the folder: ingest again with the right flags, or omit the flags"
        )
    traces = read_trace_tables(folder)
    deployment = traces.deployment()
    spec = _with_memory_log(EngineSpec(**engine), deployment, asked, start)
    names = _named(traces.manifest.get("deployment") or {})
    if traces.manifest["tables"].get("cycles", {}).get("rows"):
        settings = BetaSettings(asked.intervals, asked.budget or None, asked.seed)
        return fitting.fit_traces(traces, names, start, settings)
    if MEASURED in traces.manifest["tables"]:
        return fitting.fit_measured_steps(ingested_steps(traces), deployment, names, start)
    runs = fitting.benchmark_runs(traces)
    return fitting.fit_benchmarks(runs, deployment, names, start, spec)


def _fit_benchmarks(
    asked: CalibrationRequest, start: Start, flags: Mapping[str, object]
) -> fitting.Fit:
    """Fit coefficients to benchmark files of a server that ``--append`` or flags describe."""
    engine, flags = flags_apart(EngineSpec, flags)
    given = _earlier(asked.append) | named(asked.model, asked.gpu) | flags
    model, gpu = given.pop("model", None), given.pop("gpu", None)
    server, load = split_flags(given)
    runs = _read_runs(asked.benchmarks or [], load, start)
    target = benchmark_target(runs, model, gpu, server)
    start.notes += taken_lines(runs, target, server)
    deployment, names = target.deployment(), _named(vars(target))
    spec = _with_memory_log(EngineSpec(**engine), deployment, asked, start)
    return fitting.fit_benchmarks(runs, deployment, names, start, spec)


def _fit_steps(
    steps: Path, asked: CalibrationRequest, start: Start, flags: Mapping[str, object]
) -> fitting.Fit:
    """Fit coefficients to measured steps, then to serving benchmarks in the same folder."""
    engine, flags = flags_apart(EngineSpec, flags)
    measured = read_measured_steps(steps)
    start.notes += skipped_lines(measured.report.refused)
    server, load = split_flags(flags)
    target = measured.target(asked.model, asked.gpu, server)
    deployment, names = target.deployment(), _named(vars(target))
    runs = _read_runs(measured.serving, load, start) if measured.serving else []
    spec = measured.engine(engine)
    if asked.memory_log is not None:  # a start-up log overrides the folder's KV cache size
        spec = replace(spec, num_gpu_blocks_override=engine.get("num_gpu_blocks_override"))
    spec = _with_memory_log(spec, deployment, asked, start)
    return fitting.fit_measured_steps(measured, deployment, names, start, runs, spec)


def _with_memory_log(
    engine: EngineSpec, deployment: Deployment, asked: CalibrationRequest, start: Start
) -> EngineSpec:
    """Return engine settings with the KV cache size from the start-up log ``memory_log``.

    The log is also checked against the deployment.
    """
    if asked.memory_log is None:
        return engine
    log = read_startup_log(asked.memory_log)
    engine = with_log(engine, deployment, log)
    findings = refuse(list(check_memory_log(log, deployment)), start.force)
    start.notes[:0] = [cache_sentence(log), *(f"WARNING: {text}" for text in findings)]
    return engine


def _earlier(file: Path | None) -> dict[str, Any]:
    """Return model, GPU and flags of an earlier calibration; empty if there is none."""
    if file is None:
        return {}
    found = read_coefficient_set(file).configuration()
    defaults = vars(ServingSpec())
    kept = {name: value for name, value in found.items() if value != defaults.get(name)}
    return {name: kept[name] for name in ("model", "gpu", "precision", *defaults) if name in kept}


def _read_runs(paths: list[Path], load: GivenLoad, start: Start) -> list[BenchmarkRun]:
    runs, report = read_benchmarks(paths, load)
    assumed = dict.fromkeys(text for run in runs for text in run.assumed)
    start.notes += [*skipped_lines(report.located), *(f"assumed: {text}" for text in assumed)]
    start.left_out += report.read - report.accepted
    return runs


def _named(entry: Mapping[str, Any]) -> dict[str, str]:
    return {name: entry[name] for name in NAMED if entry.get(name)}
