"""``pinn evaluate``: predictions against measurements."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinn.api import score_requests as requests
from pinn.cli.options import JsonPath, asked, engine_flags, output
from pinn.cli.outputs import write_json
from pinn.common.workers import stopping_at_once
from pinn.engines.engine_spec import EngineSpec

if TYPE_CHECKING:
    from pinn.api.scores import ScoreTable

CsvPath = Annotated[Path | None, output(".csv")]
app = typer.Typer()


@app.command("decisions")
@asked
def decisions(which: requests.DecisionsRequest, out: CsvPath = None) -> None:
    """Score the choice of deployments by predictions, priced by measurements.

    For every held-out model or GPU, prompt and output length, and five limits of the mean TPOT (10
    to 50 ms): each method picks the measured deployment with the best predicted throughput per GPU
    within the limit. The loss is 1 - measured throughput of the pick / the best measured one within
    the limit; a pick whose TPOT is more than 5 % beyond the limit, or none, loses everything.

    Example: pinn evaluate decisions

    Options:
        out: Also write every decision, as CSV.
    """
    from pinn.api import evaluating

    _tell(evaluating.evaluate_decisions(**vars(which)), out)


@app.callback(invoke_without_command=True)
@asked
def evaluate(context: typer.Context, how: requests.SuiteRequest) -> None:
    """Every split x method x metric, in one table and one page.

    Without a subcommand: makes the fits that are missing (half an hour or more the first time;
    interrupted, the same command goes on), scores everything and writes results/suite:
    results.csv, ranking.csv, decisions.csv, report.html with its figures. The last
    line is one JSON document.
    The same as 'python train.py +experiment=suite', in a checkout. With --fast it fits nothing,
    prints one screen and writes into the user's cache folder.

    Example: pinn evaluate --fast
    """
    if context.invoked_subcommand is not None:
        return
    from pinn.api import evaluating

    with stopping_at_once("finished fits are kept, and the same command goes on"):
        found = evaluating.evaluate(**vars(how))
    if not how.fast:
        typer.echo(found)


@app.command("serving-runs")
@asked
def serving_runs(
    runs: requests.ServingRunsRequest, out: CsvPath = None, json_path: JsonPath = None
) -> None:
    """Simulate measured serving runs and score what their clients see.

    Per run and stage the errors of E2E, TTFT (mean, p90, p99) and mean ITL, a summary over runs,
    and the pairs of runs whose p99 E2E comes out in the wrong order. With --json or --out the
    network's figures have the ends of their 90 % intervals (low_s, high_s), for two more
    simulations a run.

    Example: pinn evaluate serving-runs runs.csv --model-configs configs --json s.json

    Options:
        out: Also write every figure, as CSV.
    """
    from pinn.api import evaluating

    written = json_path is not None or out is not None
    found = evaluating.evaluate_serving_runs(**vars(runs), intervals=written)
    _tell(found, out)
    write_json(found.to_json(), json_path)


@app.command("engines")
@asked
def engines(which: requests.EnginesRequest, out: CsvPath = None) -> None:
    """Score measured SGLang and TensorRT-LLM deployments, each model held out.

    Prints median / mean absolute percentage error and bias of TPOT and TTFT by engine, model, GPU
    and number format, beside AIConfigurator where it has an answer.

    Example: pinn evaluate engines --out engines.csv

    Options:
        out: Also write every row's prediction, as CSV.
    """
    from pinn.api import evaluating

    _tell(evaluating.evaluate_engines(**vars(which)), out)


@app.command("coefficients")
@engine_flags(EngineSpec)
def coefficients(
    which: requests.FileScoresRequest, out: CsvPath = None, *, flags: dict[str, Any]
) -> None:
    """Score a coefficient file on a run: its steps, or the loads of its benchmarks.

    Beside the file's coefficients, those from before its calibration, where the file has them. On
    traces every part of the run's time is evaluated; a file calibrated to the same run has seen the
    first. Flags say how the engine schedules the loads, where that is not its default.

    Example: pinn evaluate coefficients run1.json --observations run2

    Options:
        out: Also write the table, as CSV.
    """
    from pinn.api import evaluating

    _tell(evaluating.evaluate_coefficients(**vars(which), **flags), out)
    if out is not None:
        typer.echo(f"wrote {out}")


@app.command("panel")
@asked
def panel(which: requests.PanelRequest, out: CsvPath = None) -> None:
    """Score a checkpoint on all evaluation data, in groups of one source and one model each.

    Prints mean absolute log errors in percent by group, models held out, with 95 % intervals over
    configurations. With --against it prints the differences by group, and whether the checkpoint
    may replace the other. Takes half a minute on two idle cores.

    Example: pinn evaluate panel --out panel.csv

    Options:
        out: Also write errors by configuration, as CSV.
    """
    from pinn.api import evaluating

    _tell(evaluating.evaluate_panel(**vars(which)), out)


@app.command("speculation")
@asked
def speculation(which: requests.DraftsRequest, out: CsvPath = None) -> None:
    """Score the measured deployments that hide multi-token prediction, each model held out.

    Nothing tells what they drafted or how much was accepted, so nothing is fitted: median / mean
    absolute percentage error and bias of TPOT without drafts, and for an acceptance of 0.5 to 0.9.

    Example: pinn evaluate speculation --draft-tokens 1

    Options:
        out: Also write every row's prediction, as CSV.
    """
    from pinn.api import evaluating

    _tell(evaluating.evaluate_speculation(**vars(which)), out)


def _tell(found: "ScoreTable", out: Path | None) -> None:
    """Print a table of scores; write it where ``--out`` says."""
    typer.echo(found)
    if out is not None:
        found.save(out)
