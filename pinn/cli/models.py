"""Command ``pinn models``: models known by name."""

from pinn.api.score_requests import NamesRequest
from pinn.cli import options, outputs


@options.asked
def models(asked: NamesRequest, mixers: bool = False, json_path: options.JsonPath = None) -> None:
    """List the models that can be given by name, one per line.

    For any other model, give --model the path of its config.json or its Hugging Face name. The name
    is looked up in the local cache and then on the hub.

    Example: pinn models qwen3

    Options:
        mixers: Also print the types of attention or recurrent layers of each model.
    """
    from pinn.api import names

    found = names.models(**vars(asked))
    outputs.write_json(found.mixers() if mixers else found.to_json(), json_path)
    found.show(mixers)
