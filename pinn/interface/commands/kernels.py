"""``pinn kernels``: how well the kernel surrogates predict what they were not fitted on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pinn.common.documents import read_json
from pinn.common.files import find_checkpoint, find_kernels
from pinn.common.screen import Grid
from pinn.errors import PinnError
from pinn.interface.commands.options import output
from pinn.specs.gpu import load_gpu

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Errors of the kernel surrogates on measured kernels they were not fitted on.",
)

_NAME = "held_out.csv"
#: Whose code a fit carries the digest of.
_FITTED_BY = "pinn.kernels.surrogates"


@app.callback()
def _root() -> None:
    """Subcommands to measure the errors, to show them, and to show what the surrogates are."""


@app.command()
def score(
    out: Annotated[Path, output("--out", "CSV file to write.", ".csv")],
    operator: Annotated[
        list[str] | None,
        typer.Option("--operator", help="gemm, moe, ... Repeatable. [default: all]"),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", help="GPU to leave out. Repeatable. [default: those reported]"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of folds and fits.")] = 0,
) -> None:
    """Fit surrogates without some measured kernels and predict those; 10 to 15 minutes on a core.

    Left out are a fifth of the kernel shapes, then one GPU after the other. Errors are fractions,
    by operator, GPU and number format.

    Example: pinn kernels score --out checkpoints/kernels/held_out.csv
    """
    import torch

    from pinn.common.tables import write_frame
    from pinn.kernels.heldout import REPORTED_GPUS, held_out_table
    from pinn.kernels.surrogates import OPERATORS
    from pinn.kernels.tables.tables import read_kernel_tables

    torch.set_num_threads(1)
    known = {o.name: o for o in OPERATORS}
    unknown = set(operator or ()) - set(known)
    if unknown:
        raise PinnError(f"unknown operators {sorted(unknown)}: known ones are {', '.join(known)}")
    gpus = [load_gpu(name).name for name in gpu or REPORTED_GPUS]
    table = held_out_table(
        read_kernel_tables(),
        gpus,
        operators=[known[name] for name in operator or known],
        seed=seed,
        progress=lambda text: print(text, file=sys.stderr, flush=True),
    )
    write_frame(table, out, float_format="%.4f")
    typer.echo(f"{len(table)} errors written to {out}")


@app.command()
def errors(
    path: Annotated[
        Path | None,
        typer.Argument(help="Table of 'pinn kernels score'. [default: that of the checkpoint]"),
    ] = None,
    by_format: Annotated[
        bool, typer.Option("--by-format", help="One row per GPU and number format.")
    ] = False,
) -> None:
    """Median / mean absolute percentage error of each operator on kernels left out.

    A Markdown table.

    Example: pinn kernels errors --by-format
    """
    typer.echo(_markdown(_read(path or _beside_checkpoint()), by_format))


@app.command()
def show(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder of surrogates. [default: that of the checkpoint]"),
    ] = None,
) -> None:
    """What fitted surrogates rest on: measured rows, what was left out, the seed and the code.

    Other code than the present one does not make them wrong; fitting again may give others.

    Example: pinn kernels show checkpoints/kernels/without-minimax-m2.5
    """
    from pinn.common.store import code_digest

    found = find_kernels(folder, None if folder else find_checkpoint())
    if found is None:
        raise PinnError("no kernel surrogates found: fit them with 'python train.py kernels=on'")
    structure = read_json(found / "kernels.json")
    about = structure["metadata"]
    rows = ", ".join(f"{name} {count:,}" for name, count in about["rows"].items())
    excluded = [*about["excluded"]["models"], *about["excluded"]["gpus"]]
    code = about.get("code")
    same = code == code_digest(_FITTED_BY)
    since = "as it is now" if same else "as it was then; it has changed since"
    typer.echo(f"surrogates  {found}, sha256 {structure['sha256'][:16]}")
    typer.echo(f"rows        {rows}")
    typer.echo(f"left out    {', '.join(excluded) or 'nothing'}")
    typer.echo(f"seed        {about['seed']}")
    typer.echo(f"code        {f'{code[:16]}, {since}' if code else 'unknown'}")


@app.command()
def mixers(
    operator: Annotated[
        list[str] | None,
        typer.Option("--operator", help="Such as 'KDA scan'. Repeatable. [default: all]"),
    ] = None,
) -> None:
    """Errors of the roofline fits of linear and sparse attention on measured kernels left out.

    Median / mean absolute percentage error without a fifth of the shapes at a time, and without
    one GPU, as a Markdown table; a minute.

    Example: pinn kernels mixers --operator 'gated delta decode'
    """
    from pinn.kernels.mixer_fits import error_grid, mixer_errors
    from pinn.kernels.mixer_operators import MIXER_OPERATORS

    unknown = set(operator or ()) - set(MIXER_OPERATORS)
    if unknown:
        known = ", ".join(MIXER_OPERATORS)
        raise PinnError(f"unknown operators {sorted(unknown)}: known ones are {known}")
    typer.echo(error_grid(mixer_errors(operator)).markdown())


def _beside_checkpoint() -> Path:
    return find_checkpoint().parent / "kernels" / _NAME


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    from pinn.kernels.heldout import TABLE_COLUMNS

    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise PinnError(f"{path}: no such table: run 'pinn kernels score --out {path}'") from error
    if tuple(table.columns) != TABLE_COLUMNS:
        raise PinnError(f"{path} is no table of kernel errors: needs {', '.join(TABLE_COLUMNS)}")
    return table


def _markdown(table: pd.DataFrame, by_format: bool) -> str:
    shown = table if by_format else table[table["precision"] == "all"]
    if by_format:
        shown = shown[shown["gpu"] != "all"]
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for row in shown.to_dict("records"):
        key = (row["left_out"], row["gpu"], row["precision"]) if by_format else (row["left_out"],)
        cell = f"{100 * row['median']:.1f} / {100 * row['mean']:.1f}" if row["rows"] else "-"
        rows.setdefault(key, {})[row["operator"]] = cell
    heads = ["left out", "GPU", "format"] if by_format else ["left out"]
    operators = list(dict.fromkeys(table["operator"]))
    grid = Grid.of(*heads, *operators, text=len(heads))
    for named, cells in rows.items():
        grid.add(*named, *(cells.get(name, "-") for name in operators))
    return grid.markdown()
