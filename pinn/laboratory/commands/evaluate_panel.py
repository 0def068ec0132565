"""``pinn evaluate panel``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pinn.common.files import find_checkpoint
from pinn.common.screen import Grid
from pinn.interface.commands.options import Checkpoint, output

if TYPE_CHECKING:
    import pandas as pd


def panel(
    checkpoint: Checkpoint = None,
    against: Annotated[
        Path | None, typer.Option("--against", help="Another panel, written by --out: compare.")
    ] = None,
    judges: Annotated[
        Path | None,
        typer.Option(
            "--judges",
            envvar="PINN_JUDGE_RUNS",
            help="CSV of serving runs that nothing was fitted to.",
        ),
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option("--steps", envvar="PINN_WHOLE_STEPS", help="CSV of measured whole steps."),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            "--ledger", metavar="WHAT", help="Add a line to the ledger.csv of the shipped one."
        ),
    ] = None,
    out: Annotated[
        Path | None, output("--out", "Also write errors by configuration, as CSV.", ".csv")
    ] = None,
) -> None:
    """Score a checkpoint on its panel: groups of one source and one model each.

    Prints mean absolute log errors in percent by group, models left out, with 95 % intervals over
    configurations; with --against every group's difference and whether the checkpoint may take the
    other's place. Two minutes on two cores.

    Example: pinn evaluate panel --out panel.csv
    """
    from pinn.common.tables import read_frame, write_frame
    from pinn.laboratory.panel import (
        add_to_ledger,
        compare_panels,
        group_scores,
        ledger_line,
        sum_up,
    )
    from pinn.laboratory.panel_rows import Sources, learned_steps, panel_rows

    path = find_checkpoint(checkpoint)
    if steps is not None and learned_steps(path, steps):
        typer.echo(f"{path} learned from {steps}: whole steps do not judge it", err=True)
    found = sum_up(panel_rows(path, Sources(judges, steps)))
    scores = group_scores(found)
    if out is not None:
        write_frame(found, out, float_format="%.6g")
    if against is None:
        typer.echo(panel_table(scores))
    else:
        table, verdict = compare_panels(read_frame(against, "write one with --out"), found)
        typer.echo(f"{panel_table(table)}\n\nB is {verdict}.")
    if ledger is not None:
        ledger_path = find_checkpoint().with_name("ledger.csv")
        add_to_ledger(ledger_path, ledger_line(path, scores, ledger))


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
