"""``pinn models``."""

from __future__ import annotations

import typer

from pinn.cli.json_output import write_json
from pinn.cli.options import JsonPath
from pinn.specs.catalog import list_models

app = typer.Typer()


@app.command()
def models(
    contains: str = typer.Argument("", help="Show only names with this text, in any case."),
    json_path: JsonPath = None,
) -> None:
    """List the models known by name, one a line.

    Others are read from the path of their config.json, from the local Hugging Face cache, or
    from the hub where there is a network.

    Example: pinn models qwen3
    """
    names = [name for name in list_models() if contains.lower() in name.lower()]
    write_json(names, json_path)
    for name in names:
        typer.echo(name)
