"""``pinn evaluate speculation``."""

from __future__ import annotations

from typing import Annotated

import typer

from pinn.interface.commands.options import Checkpoint, PredictionsPath


def speculation(
    checkpoint: Checkpoint = None,
    draft_tokens: Annotated[
        int, typer.Option("--draft-tokens", min=1, max=8, help="Taken to be drafted in a step.")
    ] = 3,
    out: PredictionsPath = None,
) -> None:
    """Score the measured deployments that hide multi-token prediction, each model left out.

    Nothing tells what they drafted or how much was accepted, so nothing is fitted: median / mean
    absolute percentage error and bias of TPOT without drafts, and for an acceptance of 0.5 to 0.9.

    Example: pinn evaluate speculation --draft-tokens 1
    """
    from pinn.data.engine_deployments import read_speculating
    from pinn.evaluation.engines import networks
    from pinn.evaluation.speculating import score_speculating, speculating_lines
    from pinn.specs.files.csv_cells import write_frame

    rows, counts = read_speculating()
    for reason, refused in counts.refused.items():
        typer.echo(f"{refused:8,} {reason}")
    typer.echo(f"{len(rows):8,} rows left, taken to draft {draft_tokens} tokens in a step\n")
    scores = score_speculating(rows, *networks(checkpoint), draft_tokens)
    for line in speculating_lines(scores):
        typer.echo(line)
    if out is not None:
        write_frame(scores, out)
