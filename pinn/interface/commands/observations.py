"""``pinn observations``: from foreign files to tables to train on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pinn.interface.commands import kernel_observations
from pinn.interface.commands.options import output

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Write measurements as tables to train on."
)

Out = Annotated[Path, output("--out", "Parquet file; its manifest goes beside it.", ".parquet")]


@app.callback()
def _root() -> None:
    """One subcommand per source."""


@app.command()
def silicon(
    out: Out,
    source: Annotated[
        Path | None,
        typer.Option("--source", help="silicon_sample.csv; the installed package's by default."),
    ] = None,
) -> None:
    """Measured vLLM deployments of the package aiconfigurator-core.

    Prints what was read, refused with its reason, and accepted; the counts add up.

    Example: pinn observations silicon --out observations/silicon.parquet
    """
    from pinn.data.importers import import_silicon

    report = import_silicon(out, source)
    typer.echo(report.table())
    typer.echo(f"wrote {out}")


app.command("kernels")(kernel_observations.kernels)
