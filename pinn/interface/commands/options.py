"""Options that several commands have, each declared once, and the outputs that commands write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from pinn.interface.commands.output_paths import check_suffix

MODEL = typer.Option("--model", help="Name, or path of a config.json or its folder.")
GPU = typer.Option("--gpu", help="Name, or path of a datasheet's JSON file.")

Model = Annotated[str | None, MODEL]
Gpu = Annotated[str | None, GPU]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        help="Trained network. [default: PINN_CHECKPOINT, else checkpoints/pinn.safetensors]",
    ),
]
WorkloadSeed = Annotated[
    int | None, typer.Option("--seed", help="Of random draws. [default: the file's, else 0]")
]


def output(option: str, help: str, *suffixes: str, short: str = "", **more: Any) -> Any:
    """An option that names a file to write, with the suffixes of the formats that it may have.

    With one suffix the name may have none; with none it names a folder.
    """
    names = (option, short) if short else (option,)
    return typer.Option(*names, help=help, callback=_suffix_check(option, suffixes), **more)


def _suffix_check(option: str, suffixes: tuple[str, ...]) -> Callable[[Path | None], Path | None]:
    def check(path: Path | None) -> Path | None:
        if path is not None and (len(suffixes) > 1 or (suffixes and path.suffix)):
            check_suffix(path, suffixes, option)
        return path

    return check


JsonPath = Annotated[
    Path | None,
    output("--json", "Also write it as JSON; - prints JSON in place of all else.", ".json"),
]
PredictionsPath = Annotated[
    Path | None, output("--out", "Also write every row's prediction, as CSV.", ".csv")
]
