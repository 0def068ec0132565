"""The least time of a vision encoder, by the arithmetic of its layers."""

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.specs.images import ImageReader, parse_size
from pinn.specs.precision import precision


def encoder_seconds(deployment: Deployment, reader: ImageReader, size: str) -> float:
    """Return the roofline lower bound of encoding one image, in seconds.

    Its layers are cut like those of the text (vLLM's ``--mm-encoder-tp-mode weights``, the
    default). Reading the weights, norms and the projector are left out.

    Args:
        deployment: GPU and flags.
        reader: What the model makes of an image.
        size: Of the image in pixels, such as ``1024x768``.
    """
    rate = deployment.gpu.matmul_flop_per_s(precision("bf16"))
    flop = reader.encoder_flop(*parse_size(size))
    return flop / rate / deployment.recipe.tensor_parallel_size


def image_note(deployment: Deployment, size: str) -> str:
    """Return what an image of a size comes to, and what of it is not timed.

    Raises:
        PinnError: If nothing is known of the model's images.
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
