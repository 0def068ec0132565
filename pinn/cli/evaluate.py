"""``pinn evaluate``: predictions against measurements."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from pinn.cli.options import Checkpoint, JsonPath, asked, engine_flags, output
from pinn.cli.outputs import records, write_csv, write_json
from pinn.common.files import cache_folder, find_checkpoint, json_text
from pinn.common.progress import doing
from pinn.common.screen import WIDEST, page
from pinn.common.workers import stopping_at_once
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError

CsvPath = Annotated[Path | None, output(".csv")]
app = typer.Typer()


@app.command("decisions")
@asked
def decisions(path: Annotated[Path | None, typer.Argument()] = None, out: CsvPath = None) -> None:
    """What choosing deployments by predictions costs, priced by what was measured.

    For every left-out model or GPU, prompt and output length, and five limits of the mean TPOT (10
    to 50 ms): each method picks the measured deployment with the best predicted throughput per GPU
    within the limit. The loss is 1 - measured throughput of the pick / the best measured one within
    the limit; a pick whose TPOT is more than 5 % beyond the limit, or none, loses everything.

    Example: pinn evaluate decisions

    Options:
        path: predictions.csv of an experiment. [default: that of the checkpoint]
        out: Also write every decision, as CSV.
    """
    from pinn.evaluation.decisions import decide, decision_table, read_predictions
    from pinn.evaluation.tables import print_decisions
    from pinn.training.data.silicon import read_silicon

    predictions = read_predictions(path or find_checkpoint().with_suffix(".predictions.csv"))
    decided = decide(predictions, read_silicon()[0])
    if decided.empty:
        raise PinnError("no decisions: the file predicts no measured deployments of left-out parts")
    print_decisions(decision_table(decided))
    write_csv(decided, out)


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
    out: CsvPath = None,
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
    scores, fault = scoring.score_checkpoint(runs, find_checkpoint(checkpoint), intervals=written)
    summary = scoring.summarize_runs(scores)
    inversions = {scoring.NETWORK: scoring.ranking_inversions(scores)}
    print_scores(scores)
    print_summary(summary, inversions)
    if fault:
        typer.echo(f"No intervals: {fault}")
    write_csv(scores, out)
    document = {"scores": records(scores), "summary": records(summary)}
    write_json(document | {"ranked_wrongly": inversions}, json_path)


@app.command("engines")
@asked
def engines(checkpoint: Checkpoint = None, out: CsvPath = None) -> None:
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


@app.command("coefficients")
@engine_flags(EngineSpec)
def coefficients(
    file: Annotated[Path, typer.Argument()],
    observations: Path,
    out: CsvPath = None,
    *,
    flags: dict[str, Any],
) -> None:
    """Score a coefficient file on a run: its steps, or the loads of its benchmarks.

    Beside the file's coefficients, those from before its calibration, where the file has them. On
    traces every part of the run's time is judged; a file calibrated to the same run has seen the
    first. Flags say how the engine schedules the loads, where that is not its default.

    Example: pinn evaluate coefficients run1.json --observations run2

    Options:
        file: Of 'pinn calibrate' or 'pinn coefficients --json'.
        observations: Folder that 'pinn ingest' wrote.
        out: Also write the table, as CSV.
    """
    from pinn.evaluation.coefficient_file import score_file

    table, grids = score_file(file, observations, EngineSpec(**flags))
    for grid in grids:
        page(WIDEST).print(grid)
    if out is not None:
        write_csv(table, out)
        typer.echo(f"wrote {out}")


@app.command("panel")
@asked
def panel(
    checkpoint: Checkpoint = None,
    against: Path | None = None,
    alone: Annotated[str | None, typer.Option(metavar="GROUP")] = None,
    judges: Annotated[list[Path] | None, typer.Option(envvar="PINN_JUDGE_RUNS")] = None,
    steps: Annotated[Path | None, typer.Option(envvar="PINN_WHOLE_STEPS")] = None,
    public: Annotated[list[Path] | None, typer.Option(envvar="PINN_PUBLIC_MEASUREMENTS")] = None,
    ledger: Annotated[str | None, typer.Option(metavar="WHAT")] = None,
    widths: bool = False,
    out: CsvPath = None,
) -> None:
    """Score a checkpoint on its panel: groups of one source and one model each.

    Prints mean absolute log errors in percent by group, models left out, with 95 % intervals over
    configurations; with --against every group's difference and whether the checkpoint may take the
    other's place. Half a minute on two idle cores.

    Example: pinn evaluate panel --out panel.csv

    Options:
        against: Another panel, written by --out: compare.
        alone: With --against, the group in which the one new mechanism stands alone.
        judges: CSV of serving runs that nothing was fitted to; may be repeated.
        steps: CSV of measured whole steps.
        public: Folder of public measurements; may be repeated.
        ledger: Add a line to the ledger.csv of the shipped one.
        widths: Fit the widths of its intervals to all groups, and keep them beside it.
        out: Also write errors by configuration, as CSV.
    """
    from pinn.common.tables import read_frame
    from pinn.evaluation import interval_widths
    from pinn.evaluation import panel as scoring
    from pinn.evaluation.panel_rows import learned_steps, panel_rows
    from pinn.surrogate.uncertainty.intervals import read_calibration

    if alone is not None and against is None:
        raise PinnError("--alone compares two panels: name the other one with --against")
    path = find_checkpoint(checkpoint)
    other = None if against is None else read_frame(against, "write one with --out")
    if widths:
        read_calibration(path)  # refused before anything is simulated
    if steps is not None and learned_steps(path, steps):
        typer.echo(f"{path} learned from {steps}: whole steps do not judge it", err=True)
    rows = panel_rows(path, judges or (), steps, public or ())
    try:
        judged = interval_widths.interval_rows(path, rows)
    except PinnError:  # no intervals
        judged = None
    found = scoring.sum_up(rows.assign(half=math.nan if judged is None else judged["nested"]))
    scores = scoring.group_scores(found)
    write_csv(found, out, float_format="%.6g")
    if other is None:
        typer.echo(scoring.panel_grid(scores).markdown())
    else:
        table, verdict = scoring.compare_panels(other, found, scoring.shipped_noise(), alone)
        typer.echo(f"{scoring.panel_grid(table).markdown()}\n\nB is {verdict}.")
        if left := scoring.uncompared_groups(other, found):
            typer.echo(f"No configuration is in both panels of: {', '.join(left)}.", err=True)
    if judged is not None:
        typer.echo(f"\n{interval_widths.judge_intervals(judged)}")
    if widths and judged is not None:
        interval_widths.write_widths(path, judged)
    if ledger is not None:
        ledger_path = find_checkpoint().with_name("ledger.csv")
        scoring.add_to_ledger(ledger_path, scoring.ledger_line(path, scores, ledger))


@app.command("speculation")
@asked
def speculation(
    checkpoint: Checkpoint = None,
    draft_tokens: Annotated[int, typer.Option(min=1, max=8)] = 3,
    out: CsvPath = None,
) -> None:
    """Score the measured deployments that hide multi-token prediction, each model left out.

    Nothing tells what they drafted or how much was accepted, so nothing is fitted: median / mean
    absolute percentage error and bias of TPOT without drafts, and for an acceptance of 0.5 to 0.9.

    Example: pinn evaluate speculation --draft-tokens 1

    Options:
        draft_tokens: Taken to be drafted in a step.
        out: Also write every row's prediction, as CSV.
    """
    from pinn.evaluation.engines import networks
    from pinn.evaluation.speculation import score_speculating, speculating_grid
    from pinn.training.data.engine_deployments import read_speculating

    rows, counts = read_speculating()
    for reason, refused in counts.refused.items():
        typer.echo(f"{refused:8,} {reason}")
    typer.echo(f"{len(rows):8,} rows left, taken to draft {draft_tokens} tokens in a step\n")
    scores = score_speculating(rows, networks(checkpoint), draft_tokens)
    typer.echo(speculating_grid(scores).markdown())
    write_csv(scores, out)
