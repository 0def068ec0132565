"""``pinn evaluate``: predictions against measurements."""

from pathlib import Path
from typing import Annotated

import typer

from pinn.cli.evaluate_measured import coefficients, decisions, panel, speculation
from pinn.cli.options import Checkpoint, JsonPath, asked, output
from pinn.cli.outputs import records, write_csv, write_json
from pinn.common.files import cache_folder, find_checkpoint, json_text
from pinn.common.progress import doing
from pinn.common.workers import stopping_at_once
from pinn.errors import PinnError

app = typer.Typer()
app.command("decisions")(decisions)


@app.callback(invoke_without_command=True)
@asked
def evaluate(
    context: typer.Context,
    fast: bool = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
) -> None:
    """Every split x method x metric, in one table and one page.

    Without a subcommand: makes the fits that are missing (half an hour or more the first time;
    interrupted, the same command goes on), scores everything and writes results/suite:
    results.csv, ranking.csv, decisions.csv, report.html with its figures. The last
    line is one JSON document.
    The same as 'python train.py +experiment=suite', in a checkout. With --fast it fits nothing,
    prints one screen and writes into the user's cache folder.

    Example: pinn evaluate --fast

    Options:
        fast: Fit nothing: score what is on disk and was published.
        overrides: Value of conf/experiment/suite.yaml, such as workers.backend=ray or
            'evaluation.splits=[leave-one-gpu-out]'. Repeatable.
    """
    if context.invoked_subcommand is not None:
        return
    from hydra.utils import get_method
    from omegaconf import OmegaConf

    from pinn.evaluation.config import compose_config, typed

    # A look writes nothing where it is taken.
    place = [f"output_dir='{cache_folder() / 'evaluate'}'"] if fast else []
    given = ["+experiment=suite", f"fast={str(fast).lower()}", *place, *(overrides or [])]
    try:
        composed = compose_config(given)
        config = typed(composed)
        config.check()
    except PinnError as error:
        raise PinnError(f"--set: {error}") from error
    kept = Path(config.output_dir) / ".hydra" / "config.yaml"
    kept.parent.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(composed, kept)
    with stopping_at_once("finished fits are kept, and the same command goes on"):
        summary = get_method(config.entry)(config)
    if not fast:
        typer.echo(json_text(summary))


@app.command("serving-runs")
@asked
def serving_runs(
    path: Annotated[Path, typer.Argument()],
    model_configs: Path | None = None,
    gpu: str | None = None,
    checkpoint: Checkpoint = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[Path | None, output(".csv")] = None,
    json_path: JsonPath = None,
) -> None:
    """Simulate measured serving runs and score what their clients see.

    Per run and stage the errors of E2E, TTFT (mean, p90, p99) and mean ITL, a summary over runs,
    and the pairs of runs whose p99 E2E comes out in the wrong order. With --json or --out the
    network's figures have the ends of their 90 % intervals (low_s, high_s), for two more
    simulations a run.

    Example: pinn evaluate serving-runs runs.csv --model-configs configs --json s.json

    Options:
        path: CSV of serving runs, or a folder that inference-perf wrote (or of such folders).
        model_configs: Folder of MODEL/config.json for models pinn does not know.
        gpu: GPU of inference-perf's runs, whose files do not name it.
        seed: Of arrival times and lengths.
        out: Also write every figure, as CSV.
    """
    from pinn.evaluation import serving_runs as scoring
    from pinn.evaluation.tables import print_scores, print_summary

    runs = scoring.read_runs(path, gpu, model_configs, seed)
    doing(f"simulating {len(runs):,} runs")
    written = json_path is not None or out is not None
    found = scoring.score_checkpoint(runs, find_checkpoint(checkpoint), intervals=written)
    summary, inversions = found.summary(), found.ranked_wrongly()
    print_scores(found.scores)
    print_summary(summary, inversions)
    if found.no_intervals:
        typer.echo(f"No intervals: {found.no_intervals}")
    write_csv(found.scores, out)
    document = {"scores": records(found.scores), "summary": records(summary)}
    write_json(document | {"ranked_wrongly": inversions}, json_path)


@app.command("engines")
@asked
def engines(
    checkpoint: Checkpoint = None, out: Annotated[Path | None, output(".csv")] = None
) -> None:
    """Score measured SGLang and TensorRT-LLM deployments, each model left out.

    Prints median / mean absolute percentage error and bias of TPOT and TTFT by engine, model, GPU
    and number format, beside AIConfigurator where it has an answer.

    Example: pinn evaluate engines --out engines.csv

    Options:
        out: Also write every row's prediction, as CSV.
    """
    from pinn.evaluation.engines import engine_grids, engine_rows, networks, score_engines

    scores = score_engines(engine_rows(), networks(checkpoint))
    for apart, grid in engine_grids(scores):
        typer.echo(f"\n{apart or 'measured deployments, model left out'}\n\n{grid.markdown()}")
    write_csv(scores, out)


app.command("coefficients")(coefficients)
app.command("panel")(panel)
app.command("speculation")(speculation)
