"""``pinn models``."""

from typing import Annotated

import typer

from pinn.cli import options, outputs
from pinn.common.screen import say
from pinn.errors import PinnError
from pinn.specs import catalog, model


@options.asked
def models(
    contains: Annotated[str, typer.Argument()] = "",
    mixers: bool = False,
    json_path: options.JsonPath = None,
) -> None:
    """List the models known by name, one a line.

    Others are read from the path of their config.json, from the local Hugging Face cache, or
    from the hub where there is a network.

    Example: pinn models qwen3

    Options:
        contains: Show only names with this text, in any case.
        mixers: Show the kinds of layers, too.
    """
    names = [name for name in catalog.list_models() if contains.lower() in name.lower()]
    if not names:
        raise PinnError(
            f"no known name has {contains!r:.80} in it: 'pinn models' lists all; others are taken "
            "from the path of their config.json"
        )
    if not mixers:
        outputs.write_json(names, json_path)
        for name in names:
            typer.echo(name)
        return
    plans = {name: model.mixer_names(catalog.load_model(name)) for name in names}
    outputs.write_json(plans, json_path)
    for name, plan in plans.items():
        say(f"{name:52}  {plan}")
