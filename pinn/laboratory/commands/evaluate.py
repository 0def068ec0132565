"""``pinn evaluate``: predictions against measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pinn.common.files import cache_folder, conf_file, find_checkpoint, json_text
from pinn.errors import PinnError
from pinn.interface.commands.options import Checkpoint, JsonPath, PredictionsPath, output
from pinn.interface.commands.outputs import records, write_json
from pinn.laboratory.commands.evaluate_measured import coefficients, decisions, panel, speculation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinn.training.data.measured_runs import MeasuredRun


app = typer.Typer()
app.command("decisions")(decisions)


@app.callback(invoke_without_command=True)
def evaluate(
    context: typer.Context,
    fast: Annotated[
        bool, typer.Option("--fast", help="Fit nothing: score what is on disk and was published.")
    ] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Value of conf/experiment/suite.yaml, such as workers.backend=ray or "
            "'evaluation.splits=[leave-one-gpu-out]'. Repeatable.",
        ),
    ] = None,
) -> None:
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
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from hydra.utils import get_method
    from omegaconf import OmegaConf

    from pinn.common.workers import stopping_at_once

    conf = conf_file("train.yaml").parent
    # A look writes nothing where it is taken.
    place = [f"output_dir='{cache_folder() / 'evaluate'}'"] if fast else []
    given = ["+experiment=suite", f"fast={str(fast).lower()}", *place, *(overrides or [])]
    try:
        with initialize_config_dir(str(conf), version_base="1.3"):
            config = compose("train", overrides=given)
    except HydraException as error:
        raise PinnError(f"--set: {' '.join(str(error).split())}") from error
    kept = Path(config.output_dir) / ".hydra" / "config.yaml"
    kept.parent.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, kept)
    with stopping_at_once("finished fits are kept, and the same command goes on"):
        summary = get_method(config.entry)(config)
    if not fast:
        typer.echo(json_text(summary))


@app.command("serving-runs")
def serving_runs(
    path: Annotated[
        Path,
        typer.Argument(
            help="CSV of serving runs, or a folder that inference-perf wrote (or of such folders)."
        ),
    ],
    model_configs: Annotated[
        Path | None,
        typer.Option(
            "--model-configs", help="Folder of MODEL/config.json for models pinn does not know."
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", help="GPU of inference-perf's runs, whose files do not name it."),
    ] = None,
    checkpoint: Checkpoint = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of arrival times and lengths.")] = 0,
    out: Annotated[Path | None, output("--out", "Also write every figure, as CSV.", ".csv")] = None,
    json_path: JsonPath = None,
) -> None:
    """Simulate measured serving runs and score what their clients see.

    Per run and stage the errors of E2E, TTFT (mean, p90, p99) and mean ITL, a summary over runs,
    and the pairs of runs whose p99 E2E comes out in the wrong order. With --json or --out the
    network's figures have the ends of their 90 % intervals (low_s, high_s), for two more
    simulations a run.

    Example: pinn evaluate serving-runs runs.csv --model-configs configs --json s.json
    """
    from pinn.coefficients.trained_network import load_checkpoint
    from pinn.common.screen import doing
    from pinn.common.tables import write_frame
    from pinn.laboratory import serving_runs as scoring

    runs = _read(path, gpu, model_configs, seed)
    doing(f"simulating {len(runs):,} runs")
    path_of = find_checkpoint(checkpoint)
    latencies = scoring.network_latencies(load_checkpoint(path_of).network, runs)
    scores = scoring.score_runs(runs, latencies, scoring.NETWORK)
    without = None
    if json_path is not None or out is not None:
        try:
            scores = scoring.with_intervals(scores, runs, latencies, path_of)
        except PinnError as error:
            without = str(error)
    summary = scoring.summarize_runs(scores)
    inversions = {scoring.NETWORK: scoring.ranking_inversions(scores)}
    scoring.print_scores(scores)
    scoring.print_summary(summary, inversions)
    if without is not None:
        typer.echo(f"No intervals: {without}")
    if out is not None:
        write_frame(scores, out)
    document = {"scores": records(scores), "summary": records(summary)}
    write_json(document | {"ranked_wrongly": inversions}, json_path)


@app.command("engines")
def engines(checkpoint: Checkpoint = None, out: PredictionsPath = None) -> None:
    """Score measured SGLang and TensorRT-LLM deployments, each model left out.

    Prints median / mean absolute percentage error and bias of TPOT and TTFT by engine, model, GPU
    and number format, beside AIConfigurator where it has an answer.

    Example: pinn evaluate engines --out engines.csv
    """
    from pinn.common.tables import write_frame
    from pinn.laboratory import engines as other_engines

    scores = other_engines.score_engines(
        other_engines.engine_rows(), *other_engines.networks(checkpoint)
    )
    for line in other_engines.engine_lines(other_engines.engine_table(scores)):
        typer.echo(line)
    if out is not None:
        write_frame(scores, out)


def _read(
    path: Path, gpu: str | None, model_configs: Path | None, seed: int
) -> Sequence[MeasuredRun]:
    """Runs of a CSV, or of one or more folders of inference-perf."""
    from pinn.training.data.measured_runs import (
        is_load_report,
        read_load_report,
        read_measured_runs,
    )

    folders = [path] if is_load_report(path) else []
    if path.is_dir() and not folders:
        folders = sorted(folder for folder in path.iterdir() if is_load_report(folder))
    if not folders:
        return read_measured_runs(path, model_configs, seed)[0]
    if gpu is None:
        raise PinnError(f"{folders[0]} does not say which GPU served it: name it with --gpu")
    return [read_load_report(folder, gpu, model_configs, seed) for folder in folders]


app.command("coefficients")(coefficients)
app.command("panel")(panel)
app.command("speculation")(speculation)
