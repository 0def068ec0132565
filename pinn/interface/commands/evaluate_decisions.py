"""``pinn evaluate decisions``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pinn.errors import PinnError
from pinn.interface.commands.options import output

if TYPE_CHECKING:
    import pandas as pd


def decisions(
    path: Annotated[
        Path | None,
        typer.Argument(help="predictions.csv of an experiment. [default: that of the checkpoint]"),
    ] = None,
    out: Annotated[
        Path | None, output("--out", "Also write every decision, as CSV.", ".csv")
    ] = None,
) -> None:
    """What choosing deployments by predictions costs, priced by what was measured.

    For every left-out model or GPU, prompt and output length, and five limits of the mean TPOT (10
    to 50 ms): each method picks the measured deployment with the best predicted throughput per GPU
    within the limit. The loss is 1 - measured throughput of the pick / the best measured one within
    the limit; a pick whose TPOT is more than 5 % beyond the limit, or none, loses everything.

    Example: pinn evaluate decisions
    """
    from pinn.data.silicon import read_silicon
    from pinn.evaluation.decisions import decide, decision_table
    from pinn.evaluation.printing import print_decisions
    from pinn.specs.data_folder import find_checkpoint
    from pinn.specs.files.csv_cells import write_frame

    predictions = _read(path or find_checkpoint().with_suffix(".predictions.csv"))
    observations, _ = read_silicon()
    decided = decide(predictions, observations)
    if decided.empty:
        raise PinnError("no decisions: the file predicts no measured deployments of left-out parts")
    print_decisions(decision_table(decided))
    if out is not None:
        write_frame(decided, out)


def _read(path: Path) -> pd.DataFrame:
    from pinn.specs.files.csv_cells import read_frame

    needed = {"split", "held_out", "row_id", "method"}
    needed |= {f"{metric}{end}" for metric in ("tpot", "ttft") for end in ("_s", "_measured_s")}
    table = read_frame(path, "run an experiment first")
    if not needed <= set(table.columns):
        missing = ", ".join(sorted(needed - set(table.columns)))
        raise PinnError(f"{path} holds no predictions: it lacks {missing}")
    return table
