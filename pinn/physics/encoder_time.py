"""Roofline lower bound of a vision encoder, by the arithmetic of its layers."""

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.specs.images import ImageReader, parse_size
from pinn.specs.precision import precision


def encoder_seconds(deployment: Deployment, reader: ImageReader, size: str) -> float:
    """Return the roofline lower bound of encoding one image, in seconds.

    The encoder's layers are cut like those of the text (vLLM's ``--mm-encoder-tp-mode weights``,
    the default). Reading the weights, norms and the projector are not counted.

    Args:
        deployment: Deployment with the GPU and flags.
        reader: Reader that turns an image into tokens and work of the encoder.
        size: Size of the image in pixels, such as ``1024x768``.
    """
    rate = deployment.gpu.matmul_flop_per_s(precision("bf16"))
    flop = reader.encoder_flop(*parse_size(size))
    return flop / rate / deployment.recipe.tensor_parallel_size


def image_note(deployment: Deployment, size: str) -> str:
    """Return a sentence on an image of a size: its tokens, and the encoder time not counted.

    Raises:
        PinnError: If the model's handling of images is not known.
    """
    reader = deployment.model.images
    if reader is None:
        raise PinnError(f"what {deployment.model.name} makes of an image is not known")
    tokens = reader.tokens(*parse_size(size))
    least_ms = 1000 * encoder_seconds(deployment, reader, size)
    return (
        f"an image of {size} is {tokens:,} tokens of the prompt, if the preprocessor does not "
        f"resize it; its encoder takes at least {least_ms:.2g} ms on {deployment.gpu.name}, which "
        "is left out"
    )
