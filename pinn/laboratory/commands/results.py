"""``pinn results``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pinn.common.files import file_sha256, find_checkpoint
from pinn.common.screen import Column, Grid, page, say
from pinn.errors import PinnError
from pinn.interface.commands.options import JsonPath
from pinn.interface.commands.outputs import records, write_json

if TYPE_CHECKING:
    import pandas as pd


app = typer.Typer()

#: Methods of the screen, as far as a table has them.
_METHODS = ("network", "aiconfigurator", "roofline")
#: Ending of a checkpoint's own table.
_KEPT = ".results.csv"


@app.command()
def results(
    path: Annotated[
        Path | None,
        typer.Argument(help="results.csv of an experiment. [default: that of the checkpoint]"),
    ] = None,
    metric: Annotated[str, typer.Option(help="tpot or ttft.")] = "tpot",
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Every method and part, as Markdown.")
    ] = False,
    models_only: Annotated[
        bool,
        typer.Option("--models-only", help="With --markdown: leave out named parts of the rows."),
    ] = False,
    measured: Annotated[
        bool,
        typer.Option("--measured", help="What was measured, by engine and release; no errors."),
    ] = False,
    json_path: JsonPath = None,
) -> None:
    """Errors on held-out models or GPUs: median / mean absolute percentage error per method.

    One row per held-out model or GPU: this project's network beside what else predicts it. A table
    beside a checkpoint has to be of that checkpoint's own folds.

    Example: pinn results results/lomo/results.csv --metric ttft
    """
    if measured:
        from pinn.training.data.released import released_measurements

        found = released_measurements()
        write_json(records(found), json_path)
        typer.echo(_measured(found).markdown())
        return
    from pinn.laboratory.metrics import read_results

    path = path or find_checkpoint().with_suffix(_KEPT)
    table = read_results(path)
    _check_checkpoint(table, path)
    chosen = table[table["metric"] == metric]
    if chosen.empty:
        known = ", ".join(sorted(table["metric"].unique()))
        raise PinnError(f"no results for --metric {metric}: known ones are {known}")
    write_json(records(chosen), json_path)
    for split, part in chosen.groupby("split", sort=False):
        say(f"{split}, {metric.upper()}: median / mean absolute percentage error\n")
        if markdown:
            methods = list(dict.fromkeys(part["method"]))
            typer.echo(_grid("held out", part, methods, models_only).markdown() + "\n")
        else:
            page().print(_screen(part))
            say("")
    if not markdown:
        say("More: --metric ttft, --markdown (every method and part), --json FILE, docs/trust.md.")


def _measured(table: pd.DataFrame) -> Grid:
    """The table of what was measured, as it is printed."""
    counts = ("rows", "configurations", "points")
    grid = Grid([Column(name, name not in counts) for name in table.columns])
    for line in table.itertuples(index=False):
        grid.add(*map(str, line))
    return grid


def _check_checkpoint(table: pd.DataFrame, path: Path) -> None:
    """Whether a table beside a checkpoint is that checkpoint's."""
    from pinn.laboratory.folds import CHECKPOINT_COLUMN

    checkpoint = path.with_name(path.name.removesuffix(_KEPT) + ".safetensors")
    if not path.name.endswith(_KEPT) or not checkpoint.is_file():
        return
    named = table[CHECKPOINT_COLUMN].unique() if CHECKPOINT_COLUMN in table else ()
    got = ", ".join(f"{str(mark)[:12]}..." for mark in named) or "no checkpoint"
    expected = file_sha256(checkpoint)
    if list(named) != [expected]:
        raise PinnError(
            f"{path} belongs to another checkpoint: it names {got}, expected "
            f"{expected[:12]}..., the SHA-256 of {checkpoint.name}: run 'python train.py "
            "+experiment=release', which writes both"
        )


def _screen(part: pd.DataFrame) -> Grid:
    """Held-out models or GPUs and all of them, by the methods that people know."""
    known = [method for method in _METHODS if method in set(part["method"])]
    methods = known or list(dict.fromkeys(part["method"]))[: len(_METHODS)]
    return _grid("left out", part, methods, models_only=True)


def _grid(heading: str, part: pd.DataFrame, methods: list[str], models_only: bool) -> Grid:
    """Median / mean errors: a line per held-out part, named groups of rows after the others."""
    from pinn.laboratory.metrics import GROUPS, is_shown

    named, counts = tuple(GROUPS), part.groupby("held_out")["n"].max()
    cells = {
        (row["held_out"], row["method"]): f"{row['median']:.1f} / {row['mean']:.1f}"
        for row in part.to_dict("records")
    }
    table = Grid.of(heading, "rows", *methods)
    for name in sorted(counts.index, key=lambda n: (n == "all", n.startswith(named), n)):
        if is_shown(name) and not (models_only and name.startswith(named)):
            table.add(name, str(counts[name]), *(cells.get((name, m), "-") for m in methods))
    return table
