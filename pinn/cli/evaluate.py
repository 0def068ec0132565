"""Command ``pinn evaluate``: scores of predictions against measurements."""

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
    """Score deployments that predictions choose by their measured throughput.

    For every held-out model or GPU, every prompt and output length, and five limits of the mean
    TPOT (10 to 50 ms), each prediction method picks the measured deployment with the best predicted
    throughput per GPU within the limit. The loss is 1 - measured throughput of the pick / best
    measured throughput within the limit. It is 1 if the method picks none, or if the measured TPOT
    of the pick exceeds the limit by more than 5 %.

    Example: pinn evaluate decisions

    Options:
        out: Also write every chosen deployment and its loss of throughput to this CSV file.
    """
    from pinn.api import evaluating

    _tell(evaluating.evaluate_decisions(**vars(which)), out)


@app.callback(invoke_without_command=True)
@asked
def evaluate(context: typer.Context, how: requests.SuiteRequest) -> None:
    """Score predictions on held-out data, or on measurements of your own.

    Without a subcommand, every prediction method is scored on every split into training data and
    held-out data, by every metric. Missing fits are computed first, which takes half an hour or
    more. An interrupted command continues when it is run again. Writes results/suite: results.csv,
    ranking.csv, decisions.csv, report.html and its pictures. The last line printed is one JSON
    document. In a checkout 'python train.py +experiment=suite' runs the same evaluation. With
    --fast nothing is fitted, one screen is printed, and files go to the user's cache folder.

    Example: pinn evaluate --fast
    """
    if context.invoked_subcommand is not None:
        return
    from pinn.api import evaluating

    with stopping_at_once("completed fits are saved; run the same command to continue"):
        found = evaluating.evaluate(**vars(how))
    if not how.fast:
        typer.echo(found)


@app.command("serving-runs")
@asked
def serving_runs(
    runs: requests.ServingRunsRequest, out: CsvPath = None, json_path: JsonPath = None
) -> None:
    """Simulate measured serving runs and score the latencies that clients see.

    Prints the errors of E2E latency, TTFT (mean, P90, P99) and mean ITL for each run and stage, a
    summary over runs, and the pairs of runs whose P99 E2E latencies are predicted in the wrong
    order. --json and --out also have the ends of the 90 % prediction intervals (low_s, high_s),
    which require two more simulations for each run.

    Example: pinn evaluate serving-runs runs.csv --model-configs configs --json s.json

    Options:
        out: CSV file to which the error of every metric is also written.
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

    Prints the median / mean absolute percentage error and the bias of TPOT and TTFT by engine,
    model, GPU and number format. If NVIDIA's AIConfigurator
    supports the deployment, its errors are printed, too.

    Example: pinn evaluate engines --out engines.csv

    Options:
        out: Also write the prediction for every measured row to this CSV file.
    """
    from pinn.api import evaluating

    _tell(evaluating.evaluate_engines(**vars(which)), out)


@app.command("coefficients")
@engine_flags(EngineSpec)
def coefficients(
    which: requests.FileScoresRequest, out: CsvPath = None, *, flags: dict[str, Any]
) -> None:
    """Score a coefficient file on measured steps or benchmark loads of a server.

    Prints the errors of the file's coefficients and, if the file has them, of the coefficients
    before its calibration. Traces are evaluated over their whole time, so a file that was
    calibrated to these traces is evaluated in part on its training data. Errors on runs of an
    overloaded server are printed, but excluded from the summary. Loads to which the file was
    calibrated are marked, and have a summary of their own. The server's flags are those given
    to 'pinn ingest'; the options below are further settings of its scheduler.

    Examples:
      pinn coefficients --model Llama-3.1-8B --gpu H100 --json base.json

      pinn evaluate coefficients base.json --observations run1

    Options:
        out: Also write the printed table to this CSV file.
    """
    from pinn.api import evaluating

    _tell(evaluating.evaluate_coefficients(**vars(which), **flags), out)
    if out is not None:
        typer.echo(f"wrote {out}")


@app.command("panel")
@asked
def panel(which: requests.PanelRequest, out: CsvPath = None) -> None:
    """Score a checkpoint on all evaluation data, in groups of one source and one model each.

    Prints the mean absolute log error of each group in percent, with 95 % bootstrap intervals over
    configurations. The network that predicts a group was trained without data on the group's model.
    With --against the command prints the differences from another checkpoint, and whether this
    checkpoint may replace the other. Takes half a minute on two idle cores.

    Example: pinn evaluate panel --out panel.csv

    Options:
        out: Also write the errors of every configuration to this CSV file.
    """
    from pinn.api import evaluating

    _tell(evaluating.evaluate_panel(**vars(which)), out)


@app.command("speculation")
@asked
def speculation(which: requests.DraftsRequest, out: CsvPath = None) -> None:
    """Score measured deployments with unrecorded multi-token prediction, each model held out.

    The measurements do not record the number of drafted tokens or the acceptance rate, so nothing
    is fitted. Prints the median / mean absolute percentage error and the bias of TPOT without
    drafts, and for assumed acceptance rates of 0.5 to 0.9.

    Example: pinn evaluate speculation --draft-tokens 1

    Options:
        out: Also write the prediction for every measured row to this CSV file.
    """
    from pinn.api import evaluating

    _tell(evaluating.evaluate_speculation(**vars(which)), out)


def _tell(found: "ScoreTable", out: Path | None) -> None:
    """Print a table of scores, and write it to the path given by ``--out``, if any."""
    typer.echo(found)
    if out is not None:
        found.save(out)
