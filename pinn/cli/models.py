"""``pinn models``."""

from pinn.api.score_requests import NamesRequest
from pinn.cli import options, outputs


@options.asked
def models(asked: NamesRequest, mixers: bool = False, json_path: options.JsonPath = None) -> None:
    """List the models known by name, one a line.

    Others are read from the path of their config.json, from the local Hugging Face cache, or
    from the hub where there is a network.

    Example: pinn models qwen3

    Options:
        mixers: Show the kinds of layers, too.
    """
    from pinn.api import names

    found = names.models(**vars(asked))
    outputs.write_json(found.mixers() if mixers else found.to_json(), json_path)
    found.show(mixers)
