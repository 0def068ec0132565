"""``pinn calibrate``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinn.common.screen import say
from pinn.engines.recipe import reference_version
from pinn.errors import PinnError
from pinn.interface.commands.options import Checkpoint, Details, engine_flags, output
from pinn.server.benchmarks.benchmark_run import GivenLoad, split_flags
from pinn.simulator.engine_spec import EngineSpec
from pinn.specs.flags import flags_of
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    from pinn.engines.deployment import Deployment
    from pinn.server.benchmarks.benchmark_run import BenchmarkRun
    from pinn.server.calibration.calibrate import BetaSettings
    from pinn.server.calibration.fit import Fit
    from pinn.server.calibration.prior import Start

app = typer.Typer()

_TRACES = "Traces"


@app.command()
@engine_flags(ServingSpec, EngineSpec, GivenLoad)
def calibrate(
    observations: Annotated[
        Path | None, typer.Option("--observations", help="Folder that 'pinn ingest' wrote.")
    ] = None,
    benchmarks: Annotated[
        list[Path] | None,
        typer.Option(
            "--benchmarks",
            help="Files or folders that a benchmark tool wrote, in place of traces; several in a "
            "row.",
        ),
    ] = None,
    more: Annotated[list[Path] | None, typer.Argument(hidden=True)] = None,
    steps: Annotated[
        Path | None,
        typer.Option("--steps", help="Folder that 'pinn measure' wrote, or a CSV file like it."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="What the benchmarks were of: a name, or a config.json."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="What they ran on: a name, or a datasheet.")
    ] = None,
    out: Annotated[
        Path, output("--out", "Coefficient set to write, a JSON file.", ".json", short="-o")
    ] = Path("coefficients.json"),
    append: Annotated[
        Path | None,
        typer.Option(
            "--append",
            help="Go on from the posterior of an earlier calibration, and say its drift; its "
            "model, GPU and flags hold where no other are given.",
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option("--base", help="Coefficient set to start from, in place of the network."),
    ] = None,
    checkpoint: Checkpoint = None,
    force: Annotated[
        bool, typer.Option("--force", help="Fit although the file does not match the flags.")
    ] = False,
    details: Details = False,
    budget: Annotated[
        int,
        typer.Option(
            "--budget",
            help="Intervals to fit to; 0 for all there are.",
            min=0,
            rich_help_panel=_TRACES,
        ),
    ] = 500,
    select: Annotated[
        str,
        typer.Option(
            "--select",
            help="random, or active (most informative first).",
            rich_help_panel=_TRACES,
        ),
    ] = "random",
    intervals: Annotated[
        str,
        typer.Option(
            "--intervals",
            help="Fit to windows (means of 5 to 15 steps), singles (one step) or both.",
            rich_help_panel=_TRACES,
        ),
    ] = "both",
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Of the random selection.", rich_help_panel=_TRACES)
    ] = 0,
    study: Annotated[
        Path | None,
        typer.Option(
            "--study",
            help="Folder for error against budget (table and plot) and a table of baselines.",
            rich_help_panel=_TRACES,
        ),
    ] = None,
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
    from pinn.interface.commands.calibration_report import print_fit
    from pinn.server.calibration.calibrate import BetaSettings
    from pinn.server.calibration.prior import Start
    from pinn.server.calibration.run import Calibration

    start = Start(append, base, checkpoint)
    settings = BetaSettings(intervals, budget or None, select, seed)
    paths = [*(benchmarks or []), *(more or [])]
    fit = fit_measurements(start, observations, paths, model, gpu, settings, force, flags, steps)
    print_fit(fit, start.notes, append is not None, details)
    _write(fit, out)
    if study is not None and isinstance(fit.found, Calibration):
        import_module("pinn.laboratory.calibration_study").write_study(fit.found, study)
    if not fit.kept:
        raise typer.Exit(1)  # a script that goes on would use a file that is not there


def fit_measurements(
    start: Start,
    observations: Path | None,
    benchmarks: list[Path],
    model: str | None,
    gpu: str | None,
    settings: BetaSettings,
    force: bool,
    flags: dict[str, Any],
    steps: Path | None = None,
) -> Fit:
    """The fit to a folder of observations, to files of benchmarks, or to measured steps.

    What was left out, assumed or does not match is added to the notes of ``start``.
    """
    from pinn.server.calibration.fit import (
        benchmark_runs,
        fit_benchmarks,
        fit_measured_steps,
        fit_traces,
    )
    from pinn.server.traces.measured_steps import (
        MEASURED,
        ingested_steps,
        read_measured_steps,
    )
    from pinn.server.traces.trace_tables import read_trace_tables

    if (observations is not None) + bool(benchmarks) + (steps is not None) != 1:
        raise PinnError(
            "give --observations FOLDER of 'pinn ingest', --benchmarks FILES, or --steps FOLDER of "
            "'pinn measure', whose folder 'serving' is taken along"
        )
    names = {flag.name for flag in flags_of(EngineSpec)}
    of_engine = {name: value for name, value in flags.items() if name in names}
    flags = {name: value for name, value in flags.items() if name not in names}
    engine = EngineSpec(**of_engine)
    if steps is not None:
        measured = read_measured_steps(steps)
        start.notes += [
            f"{count:8} left out: {why}" for why, count in measured.report.refused.items()
        ]
        server, load = split_flags(flags)
        target = measured.target(model, gpu, server)
        deployment = target.deployment()
        _note_release(deployment, start.notes)
        files = measured.serving
        runs = _read_runs(files, load, start.notes) if files else []
        return fit_measured_steps(measured, deployment, _named(vars(target)), start, force, runs,
                                  measured.engine(of_engine))  # fmt: skip
    if observations is None:
        of_server = _earlier(start.append) | flags
        model, gpu = model or of_server.get("model"), gpu or of_server.get("gpu")
        of_server = {n: value for n, value in of_server.items() if n not in ("model", "gpu")}
        runs, deployment, named = _read_files(benchmarks, model, gpu, of_server, start.notes)
        _note_release(deployment, start.notes)
        return fit_benchmarks(runs, deployment, named, start, force, engine)
    if flags or model or gpu:
        raise PinnError("--observations names its server already: flags belong to 'pinn ingest'")
    traces = read_trace_tables(observations)
    _note_release(traces.deployment(), start.notes)
    if traces.manifest["tables"].get("cycles", {}).get("rows"):
        return fit_traces(traces, start, settings, force)
    named = _named(traces.manifest.get("deployment") or {})
    if MEASURED in traces.manifest["tables"]:
        return fit_measured_steps(ingested_steps(traces), traces.deployment(), named, start, force)
    return fit_benchmarks(benchmark_runs(traces), traces.deployment(), named, start, force, engine)


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


def _read_files(
    paths: list[Path],
    model: str | None,
    gpu: str | None,
    flags: dict[str, Any],
    notes: list[str],
) -> tuple[list[BenchmarkRun], Deployment, dict[str, str]]:
    from pinn.server.traces.ingestion import benchmark_target

    of_server, load = split_flags(flags)
    runs = _read_runs(paths, load, notes)
    target = benchmark_target(runs, model, gpu, of_server)
    return runs, target.deployment(), _named(vars(target))


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


def _write(fit: Fit, out: Path) -> None:
    """Write what is better than before on what was left out."""
    from pinn.coefficients.coefficients import write_coefficient_set

    if not fit.kept:
        say(
            "nothing written: the calibration is not better than what was before on "
            "what it has not seen; measure more, or other loads"
        )
        return
    write_coefficient_set(fit.coefficients, out)
    typer.echo(f"wrote {out}")
