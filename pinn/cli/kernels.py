"""``pinn kernels``: how well the kernel surrogates predict what they were not fitted on."""

from pathlib import Path
from typing import Annotated

import typer

from pinn.api.score_requests import KernelErrorsRequest
from pinn.cli.options import asked, output

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Errors of the kernel surrogates on measured kernels they were not fitted on.",
)


@app.command()
@asked
def score(out: Annotated[Path, output(".csv")]) -> None:
    """Fit surrogates without some measured kernels and predict those; 10 to 15 minutes on a core.

    Held out are a fifth of the kernel shapes, then one GPU after the other. Errors are fractions,
    by operator, GPU and number format.

    Example: pinn kernels score --out checkpoints/kernels/held_out.csv

    Options:
        out: CSV file to write.
    """
    from pinn.api import scores

    found = scores.kernels_score()
    found.save(out)
    typer.echo(f"{found} written to {out}")


@app.command()
@asked
def errors(which: KernelErrorsRequest) -> None:
    """Median / mean absolute percentage error of each operator on held-out kernels.

    A Markdown table; the file has every GPU and number format.

    Example: pinn kernels errors
    """
    from pinn.api import scores

    typer.echo(scores.kernels_errors(**vars(which)))


@app.command()
def mixers() -> None:
    """Errors of the roofline fits of linear and sparse attention on held-out measured kernels.

    Median / mean absolute percentage error without a fifth of the shapes at a time, and without
    one GPU, as a Markdown table; a minute.

    Example: pinn kernels mixers
    """
    from pinn.api import scores

    typer.echo(scores.kernels_mixers())
