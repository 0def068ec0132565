"""Parts of pinn evaluate: coefficient files, decisions, speculation, the panel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinn.cli.options import Checkpoint, asked, engine_flags, output
from pinn.cli.outputs import write_csv
from pinn.common.files import find_checkpoint
from pinn.common.screen import Grid
from pinn.errors import PinnError
from pinn.simulator.engine_spec import EngineSpec

if TYPE_CHECKING:
    import pandas as pd


# ``pinn evaluate coefficients``.

#: Figures that are printed; the JSON and the CSV have all.
_PRINTED = ("ttft_mean_s", "tpot_mean_s", "itl_mean_s", "e2e_mean_s", "output_tokens_per_s")


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
    from pinn.calibration.fit import benchmark_runs, score_benchmarks, score_steps
    from pinn.measurements.traces.trace_tables import read_trace_tables
    from pinn.surrogate.coefficient_set import read_coefficient_set

    found, traces = read_coefficient_set(file), read_trace_tables(observations)
    deployment = traces.deployment()
    found.check_deployment(deployment, str(file))
    sets = {file.name: found.coefficients}
    if found.base is not None:
        sets = {"before": found.base, **sets}
    if traces.manifest["tables"].get("cycles", {}).get("rows"):
        table = score_steps(traces, deployment, sets)
        lines = _steps(table)
    else:
        table = score_benchmarks(
            benchmark_runs(traces), deployment, sets, engine=EngineSpec(**flags)
        )
        lines = _benchmarks(table)
    typer.echo("\n".join(lines))
    if out is not None:
        write_csv(table, out)
        typer.echo(f"wrote {out}")


def _steps(table: pd.DataFrame) -> list[str]:
    names = list(dict.fromkeys(table["coefficients"]))
    lines = ["errors of mean step times (%): median / mean / bias"]
    lines.append(f"{'':24s} {'n':>6s} " + " ".join(f"{name:>24s}" for name in names))
    for (part, kind), rows in table.groupby(["part", "kind"], sort=False):
        if rows["n"].iloc[0]:
            cells = [
                " / ".join(f"{100 * row[f]:.2f}" for f in ("median", "mean", "bias"))
                for row in rows.to_dict("records")
            ]
            head = f"{f'{part}, {kind}':24s} {rows['n'].iloc[0]:>6d} "
            lines.append(head + " ".join(f"{cell:>24s}" for cell in cells))
    return lines


def _benchmarks(table: pd.DataFrame) -> list[str]:
    from pinn.evaluation.serving_runs import OVERLOADED

    shown = table[table["figure"].isin(_PRINTED)]
    names = list(dict.fromkeys(table["coefficients"]))
    lines = []
    for (run, load), rows in shown.groupby(["run", "load"], sort=False):
        lines.append(f"{run}: {load}")
        for figure, of_figure in rows.groupby("figure", sort=False):
            errors = of_figure.set_index("coefficients")["error_percent"]
            cells = ", ".join(f"{name} {errors[name]:+.1f} %" for name in names)
            lines.append(f"  {figure:20s} {of_figure['measured'].iloc[0]:10.4g}  {cells}")
    overloaded = shown["failed_share"] >= OVERLOADED
    lines.append("\nabsolute errors (%): median / mean / worst")
    for (name, what), rows in shown[~overloaded].groupby(["coefficients", "figure"], sort=False):
        size = rows["error_percent"].abs()
        figures = f"{size.median():.1f} / {size.mean():.1f} / {size.max():.1f}"
        lines.append(f"  {name:24s} {what:20s} n {len(size):<4d} {figures}")
    if overloaded.any():
        count = shown.loc[overloaded, "run"].nunique()
        lines.append(f"left out of these: {count} run(s) whose server failed requests")
    return lines


# ``pinn evaluate decisions``.


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
    from pinn.evaluation.decisions import decide, decision_table
    from pinn.evaluation.metrics import print_decisions
    from pinn.training.data.silicon import read_silicon

    predictions = _read(path or find_checkpoint().with_suffix(".predictions.csv"))
    observations, _ = read_silicon()
    decided = decide(predictions, observations)
    if decided.empty:
        raise PinnError("no decisions: the file predicts no measured deployments of left-out parts")
    print_decisions(decision_table(decided))
    write_csv(decided, out)


def _read(path: Path) -> pd.DataFrame:
    from pinn.common.tables import read_frame

    needed = {"split", "held_out", "row_id", "method"}
    needed |= {f"{metric}{end}" for metric in ("tpot", "ttft") for end in ("_s", "_measured_s")}
    table = read_frame(path, "run an experiment first")
    if not needed <= set(table.columns):
        missing = ", ".join(sorted(needed - set(table.columns)))
        raise PinnError(f"{path} holds no predictions: it lacks {missing}")
    return table


# ``pinn evaluate speculation``.


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
    from pinn.evaluation.engines import networks, score_speculating, speculating_table
    from pinn.training.data.engine_deployments import read_speculating

    rows, counts = read_speculating()
    for reason, refused in counts.refused.items():
        typer.echo(f"{refused:8,} {reason}")
    typer.echo(f"{len(rows):8,} rows left, taken to draft {draft_tokens} tokens in a step\n")
    scores = score_speculating(rows, *networks(checkpoint), draft_tokens)
    typer.echo(speculating_table(scores))
    write_csv(scores, out)


# ``pinn evaluate panel``.


@asked
def panel(
    checkpoint: Checkpoint = None,
    against: Path | None = None,
    judges: Annotated[Path | None, typer.Option(envvar="PINN_JUDGE_RUNS")] = None,
    steps: Annotated[Path | None, typer.Option(envvar="PINN_WHOLE_STEPS")] = None,
    ledger: Annotated[str | None, typer.Option(metavar="WHAT")] = None,
    out: Annotated[Path | None, output(".csv")] = None,
) -> None:
    """Score a checkpoint on its panel: groups of one source and one model each.

    Prints mean absolute log errors in percent by group, models left out, with 95 % intervals over
    configurations; with --against every group's difference and whether the checkpoint may take the
    other's place. Two minutes on two cores.

    Example: pinn evaluate panel --out panel.csv

    Options:
        against: Another panel, written by --out: compare.
        judges: CSV of serving runs that nothing was fitted to.
        steps: CSV of measured whole steps.
        ledger: Add a line to the ledger.csv of the shipped one.
        out: Also write errors by configuration, as CSV.
    """
    import pinn.evaluation.panel as scoring
    from pinn.common.tables import read_frame

    path = find_checkpoint(checkpoint)
    other = None if against is None else read_frame(against, "write one with --out")
    if steps is not None and scoring.learned_steps(path, steps):
        typer.echo(f"{path} learned from {steps}: whole steps do not judge it", err=True)
    found = scoring.sum_up(scoring.panel_rows(path, judges, steps))
    scores = scoring.group_scores(found)
    write_csv(found, out, float_format="%.6g")
    if other is None:
        typer.echo(panel_table(scores))
    else:
        seeds = find_checkpoint().with_name(scoring.NOISE_FILE)
        noise = read_frame(seeds, "scripts/training_noise.py writes it").set_index("group")["score"]
        table, verdict = scoring.compare_panels(other, found, noise)
        typer.echo(f"{panel_table(table)}\n\nB is {verdict}.")
    if ledger is not None:
        ledger_path = find_checkpoint().with_name("ledger.csv")
        scoring.add_to_ledger(ledger_path, scoring.ledger_line(path, scores, ledger))


def panel_table(table: pd.DataFrame) -> str:
    """A table with counts whole and all else to two digits; what is not known is empty."""
    counts = ("group", "configurations", "rows")
    grid = Grid.of(*table.columns)
    for row in table.to_dict("records"):
        grid.add(
            *(
                str(value) if name in counts else "" if value != value else f"{value:.2f}"
                for name, value in row.items()
            )
        )
    return grid.markdown()
