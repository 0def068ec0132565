"""``pinn gpus``."""

from pinn.api.score_requests import NamesRequest
from pinn.cli import options, outputs


@options.asked
def gpus(asked: NamesRequest, sources: bool = False, json_path: options.JsonPath = None) -> None:
    """List the GPUs known by name with their datasheets; TFLOP/s are dense.

    Measured says what predictions for a GPU rest on: serving runs on it that the checkpoint
    learned from, kernels timed on it, or neither (-): then they are extrapolated from other GPUs.

    A GPU of your own needs a JSON file like those in data/gpus and no code: --gpu my_gpu.json.

    Example: pinn gpus h100

    Options:
        sources: Say where the figures come from.
    """
    from pinn.api import names

    found = names.gpus(**vars(asked))
    outputs.write_json(found.to_json(), json_path)
    found.show(sources)
