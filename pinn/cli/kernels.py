"""``pinn kernels``: how well the kernel surrogates predict what they were not fitted on."""

from pathlib import Path
from typing import Annotated

import typer

from pinn.cli.options import asked, output
from pinn.cli.outputs import write_csv
from pinn.common.files import find_checkpoint
from pinn.common.progress import note
from pinn.common.screen import Grid
from pinn.errors import PinnError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Errors of the kernel surrogates on measured kernels they were not fitted on.",
)


@app.command()
@asked
def score(out: Annotated[Path, output(".csv")]) -> None:
    """Fit surrogates without some measured kernels and predict those; 10 to 15 minutes on a core.

    Left out are a fifth of the kernel shapes, then one GPU after the other. Errors are fractions,
    by operator, GPU and number format.

    Example: pinn kernels score --out checkpoints/kernels/held_out.csv

    Options:
        out: CSV file to write.
    """
    import torch

    from pinn.kernels.heldout import held_out_table
    from pinn.kernels.tables.tables import read_kernel_tables

    torch.set_num_threads(1)
    table = held_out_table(read_kernel_tables(), progress=note)
    write_csv(table, out, float_format="%.4f")
    typer.echo(f"{len(table)} errors written to {out}")


@app.command()
@asked
def errors(path: Annotated[Path | None, typer.Argument()] = None) -> None:
    """Median / mean absolute percentage error of each operator on kernels left out.

    A Markdown table; the file has every GPU and number format.

    Example: pinn kernels errors

    Options:
        path: Table of 'pinn kernels score'. [default: that of the checkpoint]
    """
    from pinn.common.tables import read_frame
    from pinn.kernels.heldout import TABLE_COLUMNS

    path = path or find_checkpoint().parent / "kernels" / "held_out.csv"
    table = read_frame(path, f"run 'pinn kernels score --out {path}'")
    if tuple(table.columns) != TABLE_COLUMNS:
        raise PinnError(f"{path} is no table of kernel errors: needs {', '.join(TABLE_COLUMNS)}")
    operators = table["operator"].unique()
    grid = Grid.of("left out", *operators)
    for left_out, rows in table[table["precision"] == "all"].groupby("left_out", sort=False):
        cells = {
            row["operator"]: f"{100 * row['median']:.1f} / {100 * row['mean']:.1f}"
            for row in rows.to_dict("records")
            if row["rows"]
        }
        grid.add(str(left_out), *(cells.get(name, "-") for name in operators))
    typer.echo(grid.markdown())


@app.command()
def mixers() -> None:
    """Errors of the roofline fits of linear and sparse attention on measured kernels left out.

    Median / mean absolute percentage error without a fifth of the shapes at a time, and without
    one GPU, as a Markdown table; a minute.

    Example: pinn kernels mixers
    """
    from pinn.kernels.heldout import error_grid, mixer_errors

    typer.echo(error_grid(mixer_errors()).markdown())
