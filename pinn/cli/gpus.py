"""Command ``pinn gpus``: GPUs known by name."""

from pinn.api.score_requests import NamesRequest
from pinn.cli import options, outputs


@options.asked
def gpus(asked: NamesRequest, sources: bool = False, json_path: options.JsonPath = None) -> None:
    """List the GPUs that can be given by name, with their datasheets.

    The column 'measured' shows which training data of a GPU the shipped checkpoint has: servers,
    kernels, or none (-). Predictions for a GPU without training data are extrapolated from other
    GPUs.

    Describe any other GPU in a JSON file like those in data/gpus, and give it as --gpu my_gpu.json.

    Example: pinn gpus h100

    Options:
        sources: Also print the source of each datasheet.
    """
    from pinn.api import names

    found = names.gpus(**vars(asked))
    outputs.write_json(found.to_json(), json_path)
    found.show(sources)
