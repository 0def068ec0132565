"""``pinn calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinn.cli.options import Checkpoint, output
from pinn.cli.serving_flags import engine_flags
from pinn.data.benchmarks.given_load import GivenLoad, split_flags
from pinn.errors import PinnError
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    import numpy as np

    from pinn.coefficients.coefficient_set import CoefficientSet
    from pinn.coefficients.coefficients import Coefficients
    from pinn.data.benchmarks.benchmark_run import BenchmarkRun
    from pinn.data.traces.trace_tables import TraceTables
    from pinn.specs.deployment import Deployment
    from pinn.training.calibration.calibrate import BetaSettings
    from pinn.training.calibration.prior import Prior
    from pinn.training.calibration.run import Calibration

app = typer.Typer()

_TRACES = "Traces"


@app.command()
@engine_flags(ServingSpec, GivenLoad)
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
            help="Go on from the posterior of an earlier calibration, and say its drift.",
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

    The network's coefficients and their intervals are the prior; step times of traces, or figures
    of benchmarks whose loads are simulated, move a handful of scalars (step constant, bytes,
    arithmetic, attention, ...) and, less, single coefficients. What the measurements do not show
    keeps its value and its interval. The result is judged on later time and on loads left out; if
    it is not better there, nothing is written.

    Examples:
      pinn calibrate --benchmarks results/*.json --model meta-llama/Llama-3.1-8B --gpu H100
        --max-num-seqs 256 -o server.json

      pinn ingest vllm traces.json -o run1 --model meta-llama/Llama-3.1-8B --gpu H100

      pinn calibrate --observations run1 --append server.json -o server.json

      pinn simulate --coefficients server.json --workload profile.yaml
    """
    from pinn.training.calibration.calibrate import BetaSettings

    paths = [*(benchmarks or []), *(more or [])]
    if (observations is None) == (not benchmarks):
        raise PinnError("give --observations FOLDER of 'pinn ingest', or --benchmarks FILES")
    start = _Start(append, base, checkpoint)
    if observations is None:
        runs, deployment, named = _read_files(paths, model, gpu, flags)
        _benchmarks(runs, deployment, named, start, out, force)
        return
    if flags or model or gpu:
        raise PinnError("--observations names its server already: flags belong to 'pinn ingest'")
    from pinn.data.traces.trace_tables import read_trace_tables

    traces = read_trace_tables(observations)
    if traces.manifest["tables"].get("cycles", {}).get("rows"):
        settings = BetaSettings(intervals, budget or None, select, seed)
        _traces(traces, start, settings, out, study, force)
        return
    from pinn.evaluation.coefficient_files import benchmark_runs

    named = _named(traces.manifest.get("deployment") or {})
    _benchmarks(benchmark_runs(traces), traces.deployment(), named, start, out, force)


class _Start:
    """What a calibration starts from: a file, or a checkpoint."""

    def __init__(self, append: Path | None, base: Path | None, checkpoint: Path | None) -> None:
        if append is not None and base is not None:
            raise PinnError("--append goes on from a posterior, --base from coefficients: give one")
        self.append, self.base, self.checkpoint = append, base, checkpoint

    def coefficients(self, deployment: Deployment) -> CoefficientSet:
        """The coefficients before."""
        from pinn.coefficients.checkpoint_search import find_checkpoint
        from pinn.coefficients.coefficient_set import (
            CoefficientSet,
            deployment_facts,
            read_coefficient_set,
        )
        from pinn.coefficients.surrogate import Surrogate

        file = self.append or self.base
        if file is not None:
            found = read_coefficient_set(file)
            found.check_deployment(deployment, str(file))
            return found
        surrogate = Surrogate.load(find_checkpoint(self.checkpoint))
        coefficients = surrogate.coefficients([deployment])
        return CoefficientSet(deployment_facts(deployment), coefficients, surrogate.taught_alphas())

    def of_network(self, deployment: Deployment, start: CoefficientSet) -> Any:
        """Coefficients of a deployment, or of another that might have run."""
        from pinn.coefficients.checkpoint_search import find_checkpoint
        from pinn.coefficients.surrogate import Surrogate

        def coefficients_of(other: Deployment) -> Coefficients:
            if other == deployment:
                return start.coefficients
            return Surrogate.load(find_checkpoint(self.checkpoint)).coefficients([other])

        return coefficients_of

    def prior(self, deployment: Deployment, start: CoefficientSet) -> Prior:
        """How far the coefficients before may be off."""
        from pinn.coefficients.checkpoint_search import find_checkpoint
        from pinn.training.calibration.checkpoint_prior import checkpoint_prior
        from pinn.training.calibration.prior import prior_of_set

        if self.append is not None:
            return prior_of_set(start, str(self.append))
        used = find_checkpoint(self.checkpoint)
        prior, missing = checkpoint_prior(used, deployment, start.coefficients)
        if missing:
            typer.echo(f"the prior is an assumption: {missing}")
        return prior


def _read_files(
    paths: list[Path], model: str | None, gpu: str | None, flags: dict[str, Any]
) -> tuple[list[BenchmarkRun], Deployment, dict[str, str]]:
    from pinn.data.benchmarks.read import read_benchmarks
    from pinn.data.traces.benchmark_target import benchmark_target

    of_server, load = split_flags(flags)
    runs, report = read_benchmarks(paths, load)
    for reason, count in report.refused.items():
        typer.echo(f"{count:8} left out: {reason}")
    for text in dict.fromkeys(text for run in runs for text in run.assumed):
        typer.echo(f"assumed: {text}")
    target = benchmark_target(runs, model, gpu, of_server)
    return runs, target.deployment(), _named(vars(target))


def _named(entry: Any) -> dict[str, str]:
    from pinn.coefficients.coefficient_set import NAMED

    return {name: entry[name] for name in NAMED if entry.get(name)}


def _benchmarks(
    runs: list[BenchmarkRun],
    deployment: Deployment,
    named: dict[str, str],
    begin: _Start,
    out: Path,
    force: bool,
) -> None:
    from pinn.cli.calibration_report import print_benchmarks
    from pinn.training.calibration.benchmark_set import benchmark_set
    from pinn.training.calibration.benchmarks import calibrate_to_benchmarks
    from pinn.training.calibration.checks import refuse
    from pinn.training.calibration.checks_benchmarks import check_benchmarks
    from pinn.training.calibration.verdict import is_kept

    start = begin.coefficients(deployment)
    findings = check_benchmarks(runs, deployment, begin.of_network(deployment, start))
    for text in refuse(findings, force):
        typer.echo(f"WARNING: {text}")
    found = calibrate_to_benchmarks(runs, deployment, begin.prior(deployment, start))
    print_benchmarks(found, begin.append is not None)
    kept = not found.verdicts or is_kept(found.verdicts)
    _write(benchmark_set(found, named, start.taught), kept, out)


def _traces(
    traces: TraceTables,
    begin: _Start,
    settings: BetaSettings,
    out: Path,
    study: Path | None,
    force: bool,
) -> None:
    from pinn.cli.calibration_report import print_calibration
    from pinn.training.calibration.checks import refuse
    from pinn.training.calibration.checks_traces import check_traces
    from pinn.training.calibration.run import run_calibration
    from pinn.training.calibration.verdict import is_kept

    deployment = traces.deployment()
    start = begin.coefficients(deployment)
    findings = check_traces(traces, deployment, begin.of_network(deployment, start))
    for text in refuse(findings, force):
        typer.echo(f"WARNING: {text}")
    found = run_calibration(traces, deployment, begin.prior(deployment, start), settings)
    print_calibration(found, begin.append is not None)
    _write(found.coefficient_set(start.taught), is_kept(found.verdicts), out)
    if study is not None:
        _study(found, study)


def _write(found: CoefficientSet, kept: bool, out: Path) -> None:
    """Write what is better than before on what was left out."""
    from pinn.coefficients.coefficient_set import write_coefficient_set

    if not kept:
        typer.echo(
            "nothing written: the calibration is not better than what was before on "
            "what it has not seen; measure more, or other loads"
        )
        return
    write_coefficient_set(found, out)
    typer.echo(f"wrote {out}")


def _study(found: Calibration, folder: Path) -> None:
    from pinn.cli.calibration_report import print_study
    from pinn.files.write import replace_atomically
    from pinn.research.calibration.baselines import LEARNERS, baseline_table, baselines
    from pinn.research.calibration.study import budget_errors, budget_plot, budget_table
    from pinn.training.calibration.calibrate import candidates

    kind = "singles" if found.settings.kind == "singles" else "windows"
    prior = found.beta.prior
    errors = budget_errors(found.intervals, prior, kind)
    folder.mkdir(parents=True, exist_ok=True)
    replace_atomically(folder / "budget.csv", lambda path: errors.to_csv(path, index=False))
    before = found.errors.query(
        f"part == 'last 20 %' and kind == '{kind}' and coefficients == 'before'"
    )
    budget_plot(errors, float(before["median"].iloc[0]), folder / "budget.png")
    methods = baselines(found.deployment, prior, _donors())
    others = baseline_table(methods, candidates(found.intervals, kind), found.intervals)
    replace_atomically(folder / "baselines.csv", lambda path: others.to_csv(path, index=False))
    print_study(budget_table(errors), others)
    absent = [name for name in LEARNERS if name not in methods]
    if absent:
        typer.echo(f"left out {', '.join(absent)}: they need 'pip install scikit-learn'")
    typer.echo(f"wrote {folder}/budget.csv, budget.png and baselines.csv")


def _donors() -> np.ndarray:
    """The two-stage baseline's coefficients from the measured deployments that come along."""
    from pinn.data.silicon import read_silicon
    from pinn.research.donors import donor_coefficients

    return donor_coefficients(read_silicon()[0])
