"""Parts of pinn evaluate: coefficient files, decisions, speculation, the panel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pinn.cli.options import Checkpoint, asked, engine_flags, output
from pinn.cli.outputs import write_csv
from pinn.common.files import find_checkpoint
from pinn.common.screen import WIDEST, page
from pinn.errors import PinnError
from pinn.simulator.engine_spec import EngineSpec


@engine_flags(EngineSpec)
def coefficients(
    file: Annotated[Path, typer.Argument()],
    observations: Path,
    out: Annotated[Path | None, output(".csv")] = None,
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

    scores = score_file(file, observations, EngineSpec(**flags))
    for grid in scores.grids():
        page(WIDEST).print(grid)
    if out is not None:
        write_csv(scores.table, out)
        typer.echo(f"wrote {out}")


@asked
def decisions(
    path: Annotated[Path | None, typer.Argument()] = None,
    out: Annotated[Path | None, output(".csv")] = None,
) -> None:
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


@asked
def speculation(
    checkpoint: Checkpoint = None,
    draft_tokens: Annotated[int, typer.Option(min=1, max=8)] = 3,
    out: Annotated[Path | None, output(".csv")] = None,
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


@asked
def panel(
    checkpoint: Checkpoint = None,
    against: Path | None = None,
    alone: Annotated[str | None, typer.Option(metavar="GROUP")] = None,
    judges: Annotated[list[Path] | None, typer.Option(envvar="PINN_JUDGE_RUNS")] = None,
    steps: Annotated[Path | None, typer.Option(envvar="PINN_WHOLE_STEPS")] = None,
    public: Annotated[list[Path] | None, typer.Option(envvar="PINN_PUBLIC_MEASUREMENTS")] = None,
    ledger: Annotated[str | None, typer.Option(metavar="WHAT")] = None,
    out: Annotated[Path | None, output(".csv")] = None,
) -> None:
    """Score a checkpoint on its panel: groups of one source and one model each.

    Prints mean absolute log errors in percent by group, models left out, with 95 % intervals over
    configurations; with --against every group's difference and whether the checkpoint may take the
    other's place. Four minutes on two cores.

    Example: pinn evaluate panel --out panel.csv

    Options:
        against: Another panel, written by --out: compare.
        alone: With --against, the group in which the one new mechanism stands alone.
        judges: CSV of serving runs that nothing was fitted to; may be repeated.
        steps: CSV of measured whole steps.
        public: Folder of public measurements; may be repeated.
        ledger: Add a line to the ledger.csv of the shipped one.
        out: Also write errors by configuration, as CSV.
    """
    from pinn.common.tables import read_frame
    from pinn.evaluation import panel as scoring
    from pinn.evaluation.panel_rows import learned_steps, panel_rows

    path = find_checkpoint(checkpoint)
    other = None if against is None else read_frame(against, "write one with --out")
    if steps is not None and learned_steps(path, steps):
        typer.echo(f"{path} learned from {steps}: whole steps do not judge it", err=True)
    found = scoring.sum_up(panel_rows(path, judges or (), steps, public or ()))
    scores = scoring.group_scores(found)
    write_csv(found, out, float_format="%.6g")
    if other is None:
        typer.echo(scoring.panel_grid(scores).markdown())
    else:
        table, verdict = scoring.compare_panels(other, found, scoring.shipped_noise(), alone)
        typer.echo(f"{scoring.panel_grid(table).markdown()}\n\nB is {verdict}.")
    if ledger is not None:
        ledger_path = find_checkpoint().with_name("ledger.csv")
        scoring.add_to_ledger(ledger_path, scoring.ledger_line(path, scores, ledger))
