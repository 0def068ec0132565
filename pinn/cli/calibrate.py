"""``pinn calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import numpy as np

    from pinn.calibration.run import Calibration
    from pinn.coefficients.coefficient_set import CoefficientSet
    from pinn.coefficients.coefficients import Coefficients
    from pinn.observations.trace_tables import TraceTables
    from pinn.specs.deployment import Deployment

app = typer.Typer()


@app.command()
def calibrate(
    observations: Annotated[
        Path, typer.Option("--observations", help="Folder that 'pinn ingest' wrote.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Coefficient set to write, a JSON file.")
    ] = Path("coefficients.json"),
    budget: Annotated[
        int, typer.Option("--budget", help="Intervals to fit to; 0 for all there are.", min=0)
    ] = 500,
    select: Annotated[
        str,
        typer.Option("--select", help="active (most informative first) or random."),
    ] = "active",
    intervals: Annotated[
        str,
        typer.Option(
            "--intervals",
            help="Fit to windows (means of 5 to 15 steps), singles (one step) or both.",
        ),
    ] = "both",
    seed: Annotated[int, typer.Option("--seed", help="Of the random selection.")] = 0,
    base: Annotated[
        Path | None,
        typer.Option("--base", help="Coefficient set to start from, in place of the network."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            help="Trained network. [default: PINN_CHECKPOINT, else checkpoints/pinn.safetensors]",
        ),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(
            "--study",
            help="Folder for error against budget (table and plot) and a table of baselines.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Fit although the file does not match the flags.")
    ] = False,
) -> None:
    """Fit the coefficients to your own server.

    The network's coefficients stay frozen; each gets one offset, fitted by ridge to step times of
    the first 60 % of the run's time, so that what the traces do not show stays as the network has
    it. Prints the error before and after on later time, and which coefficients the traces
    determine.

    Examples:
      pinn ingest vllm traces.json -o run1 --model meta-llama/Llama-3.1-8B --gpu H100

      pinn calibrate --observations run1 --budget 500 -o run1.json

      pinn simulate --coefficients run1.json --workload profile.yaml
    """
    from pinn.calibration.calibrate import BetaSettings
    from pinn.calibration.run import run_calibration
    from pinn.cli.calibration_report import print_calibration
    from pinn.coefficients.coefficient_set import write_coefficient_set
    from pinn.observations.trace_tables import read_trace_tables

    traces = read_trace_tables(observations)
    deployment = traces.deployment()
    start = _base(deployment, base, checkpoint)
    _check(traces, deployment, start, checkpoint, force)
    settings = BetaSettings(intervals, budget or None, select, seed)
    found = run_calibration(traces, deployment, start.coefficients, settings)
    write_coefficient_set(found.coefficient_set(start.taught), out)
    print_calibration(found)
    typer.echo(f"wrote {out}")
    if study is not None:
        _study(found, study)


def _check(
    traces: TraceTables,
    deployment: Deployment,
    start: CoefficientSet,
    checkpoint: Path | None,
    force: bool,
) -> None:
    """Refuse traces that do not match the flags; with --force, say what does not."""
    from pinn.calibration.checks import refuse
    from pinn.calibration.checks_traces import check_traces
    from pinn.calibration.intervals import read_intervals
    from pinn.coefficients.checkpoint_search import find_checkpoint
    from pinn.latency.surrogate import Surrogate

    def coefficients_of(other: Deployment) -> Coefficients:
        if other == deployment:
            return start.coefficients
        return Surrogate.load(find_checkpoint(checkpoint)).coefficients([other])

    intervals = read_intervals(traces, deployment)
    for text in refuse(check_traces(traces, deployment, intervals, coefficients_of), force):
        typer.echo(f"WARNING: {text}")


def _base(deployment: Deployment, base: Path | None, checkpoint: Path | None) -> CoefficientSet:
    """What the calibration starts from."""
    from pinn.coefficients.checkpoint_search import find_checkpoint
    from pinn.coefficients.coefficient_set import (
        CoefficientSet,
        deployment_facts,
        read_coefficient_set,
    )

    if base is not None:
        found = read_coefficient_set(base)
        found.check_deployment(deployment, str(base))
        return found
    from pinn.latency.surrogate import Surrogate

    surrogate = Surrogate.load(find_checkpoint(checkpoint))
    coefficients = surrogate.coefficients([deployment])
    return CoefficientSet(deployment_facts(deployment), coefficients, surrogate.taught_alphas())


def _study(found: Calibration, folder: Path) -> None:
    from pinn.calibration.baselines import baseline_table, baselines
    from pinn.calibration.calibrate import candidates
    from pinn.calibration.study import budget_errors, budget_plot, budget_table
    from pinn.cli.calibration_report import print_study

    kind = "singles" if found.settings.kind == "singles" else "windows"
    beta: np.ndarray = found.beta.base
    errors = budget_errors(found.intervals, beta, kind)
    folder.mkdir(parents=True, exist_ok=True)
    errors.to_csv(folder / "budget.csv", index=False)
    before = found.errors.query(
        f"part == 'last 20 %' and kind == '{kind}' and coefficients == 'before'"
    )
    budget_plot(errors, float(before["median"].iloc[0]), folder / "budget.png")
    methods = baselines(found.deployment, beta, _donors())
    others = baseline_table(methods, candidates(found.intervals, kind), found.intervals)
    others.to_csv(folder / "baselines.csv", index=False)
    print_study(budget_table(errors), others)
    typer.echo(f"wrote {folder}/budget.csv, budget.png and baselines.csv")


def _donors() -> np.ndarray:
    """The two-stage baseline's coefficients from the measured deployments that come along."""
    from pinn.evaluation.donors import donor_coefficients
    from pinn.sources.silicon import read_silicon

    return donor_coefficients(read_silicon()[0])
