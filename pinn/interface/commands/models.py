"""``pinn models``."""

from __future__ import annotations

import typer

from pinn.common.screen import say
from pinn.errors import PinnError
from pinn.interface.commands.options import JsonPath
from pinn.interface.commands.outputs import write_json
from pinn.specs.catalog import list_models, load_model
from pinn.specs.model import mixer_names

app = typer.Typer()


@app.command()
def models(
    contains: str = typer.Argument("", help="Show only names with this text, in any case."),
    mixers: bool = typer.Option(False, "--mixers", help="Show the kinds of layers, too."),
    json_path: JsonPath = None,
) -> None:
    """List the models known by name, one a line.

    Others are read from the path of their config.json, from the local Hugging Face cache, or
    from the hub where there is a network.

    Example: pinn models qwen3
    """
    names = [name for name in list_models() if contains.lower() in name.lower()]
    if not names:
        raise PinnError(
            f"no known name has {contains!r:.80} in it: 'pinn models' lists all; others are taken "
            "from the path of their config.json"
        )
    if not mixers:
        write_json(names, json_path)
        for name in names:
            typer.echo(name)
        return
    plans = {name: mixer_names(load_model(name)) for name in names}
    write_json(plans, json_path)
    for name, plan in plans.items():
        say(f"{name:52}  {plan}")
