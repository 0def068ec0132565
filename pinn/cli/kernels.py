"""Command ``pinn kernels``: errors of the kernel surrogates on held-out kernels."""

from pathlib import Path
from typing import Annotated

import typer

from pinn.api.score_requests import KernelErrorsRequest
from pinn.cli.options import asked, output

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Score the kernel surrogates (fits to measured kernel times) on held-out kernels.",
)


@app.command()
@asked
def score(out: Annotated[Path, output(".csv")]) -> None:
    """Fit the kernel surrogates without held-out kernels, and score them on the held-out kernels.

    First each fifth of the kernel shapes is held out, then each GPU. Errors are
    fractions (0.1 is 10 %), by operator, GPU and number format. Takes 10 to 15 minutes on a core.

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
    """Print the median / mean absolute percentage error of each operator on held-out kernels.

    The output is a Markdown table; the CSV file has errors by GPU and number format.

    Example: pinn kernels errors
    """
    from pinn.api import scores

    typer.echo(scores.kernels_errors(**vars(which)))


@app.command()
def mixers() -> None:
    """Print the errors of the roofline fits of linear and sparse attention on held-out kernels.

    Prints the median / mean absolute percentage error as a Markdown table, once with each fifth of
    the shapes held out, and once with each GPU held out. Takes a minute.

    Example: pinn kernels mixers
    """
    from pinn.api import scores

    typer.echo(scores.kernels_mixers())
