"""Time that images in prompts add to the engine's steps: the time of the vision encoder.

vLLM encodes an image in the step that computes the image's first token, before the layers of the
language model, so that all requests in the batch wait (0.33.0 v1/core/sched/scheduler.py:
_try_schedule_encoder_inputs; v1/worker/gpu_model_runner.py: _execute_mm_encoder). SGLang encodes it
in the step of the prompt (0.5.23 managers/mm_utils.py: general_mm_embed_routine). There are no
measurements of this time. It is the sum of kernel times, with the priors of small kernels and
launches.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pinn.common import JsonObject, files
from pinn.common.store import remembered_value
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.physics.costs import step_costs
from pinn.specs.batch import Batch
from pinn.specs.encoder import EncoderSpec
from pinn.specs.gpu import GpuSpec
from pinn.specs.images import RequestImages, request_images
from pinn.specs.precision import precision
from pinn.surrogate.step_features import STEP_FEATURES, step_features

#: Log half-width of the 90 % interval of an encoder's time: 1.645 times the spread of prefill
#: attention (0.4), the widest prior of a similar kernel (``data/features/step_features.csv``).
HALF_WIDTH = 1.645 * 0.4
#: Number of images in a step from which the time of each further image is computed.
_MANY = 8
#: Overheads that encoders lack (scheduling), or that are added separately from kernels (launches).
_APART = ("step", "request", "launched_layer")


@dataclass(frozen=True)
class EncoderTime:
    """Seconds that the vision encoder adds to an engine's steps.

    Attributes:
        images: Images of each request.
        first_s: Seconds of the first image in a step.
        further_s: Seconds of each further image in the step; at most ``first_s``.
        floor_s: Roofline lower bound of one image, in seconds.
    """

    images: RequestImages
    first_s: float
    further_s: float
    floor_s: float

    def seconds(self, count: int) -> float:
        """Return the seconds of encoding ``count`` images in one step; 0 without images."""
        return step_encoder_seconds(count, self.first_s, self.further_s)

    def begun_in(self, batch: Batch) -> int:
        """Return the number of images that a step with this batch encodes."""
        rows = zip(
            batch.entry_counts, batch.new_tokens, batch.cached_tokens, batch.is_prefill, strict=True
        )
        return sum(n * self.images.begun_in(c, new) for n, new, c, prefill in rows if prefill)

    def of_batch(self, batch: Batch) -> float:
        """Return the seconds that images add to a step with this batch."""
        return self.seconds(self.begun_in(batch))

    def scaled(self, log_factor: float) -> "EncoderTime":
        """Return the encoder time with all seconds multiplied by exp(``log_factor``)."""
        factor = math.exp(log_factor)
        first_s, further_s = self.first_s * factor, self.further_s * factor
        return replace(self, first_s=first_s, further_s=further_s)

    @property
    def ends(self) -> tuple[float, float]:
        """Return the ends of the 90 % interval, relative to the predicted time."""
        return math.exp(-HALF_WIDTH), math.exp(HALF_WIDTH)

    def to_json(self) -> JsonObject:
        """Return the value of the JSON key ``encoder``: counts, and seconds with their interval."""
        low, high = self.ends
        return {
            "images_per_request": self.images.count,
            "image_size": self.images.size,
            "tokens_per_image": self.images.tokens,
            "first_image_s": self.first_s,
            "further_image_s": self.further_s,
            "first_image_low_s": self.first_s * low,
            "first_image_high_s": self.first_s * high,
            "measured": False,
        }

    @property
    def sentence(self) -> str:
        """Return a sentence on the time that images add, which states that it is unmeasured."""
        low, high = (1000 * self.first_s * end for end in self.ends)
        return (
            f"{images_notice(self.images)}: {1000 * self.first_s:.3g} ms ({low:.3g} to {high:.3g}) "
            f"in the step of an image's first token, {1000 * self.further_s:.3g} ms for each "
            "further image of the step"
        )


def asked_encoder(
    deployment: Deployment, count: int, size: str, checkpoint: Path | None = None
) -> EncoderTime | None:
    """Return the encoder time of images at the beginning of each prompt; None without images.

    Args:
        deployment: Model, GPU and engine configuration.
        count: Number of images per prompt.
        size: Size of each image in pixels, such as ``1024x768``.
        checkpoint: Network whose folder has the kernel surrogates; None for the default.

    Raises:
        PinnError: If the model's images or their encoder are unknown.
    """
    model = deployment.model
    return encoder_time(
        deployment, request_images(model.images, model.name, count, size), checkpoint
    )


def images_notice(images: RequestImages) -> str:
    """Return a clause on a request's images, which states that their time was not measured."""
    what = "image" if images.count == 1 else "images"
    return (
        f"each request has {images.count} {what} of {images.size}, "
        f"{images.tokens:,} tokens each if the preprocessor does not resize them; "
        "the time of the vision encoder is a sum of kernel times; it was "
        "never measured as a whole"
    )


def step_encoder_seconds(count: int, first_s: float, further_s: float) -> float:
    """Return the seconds of encoding ``count`` images in one step."""
    return first_s + (count - 1) * further_s if count > 0 else 0.0


def encoder_time(
    deployment: Deployment, images: RequestImages | None, checkpoint: Path | None = None
) -> EncoderTime | None:
    """Return the encoder time that images add to a deployment's steps; None without images.

    Args:
        deployment: Model, GPU and engine configuration.
        images: Images of each request; None for no images.
        checkpoint: Network whose folder has the kernel surrogates; None for the default.

    Raises:
        PinnError: If the encoder's sizes are unknown, or there are no kernel surrogates.
    """
    if images is None:
        return None
    reader = deployment.model.images
    if reader is None or not reader.encoder.heads:
        fault = f"the vision encoder of {deployment.model.name} is unknown"
        raise PinnError(f"--images-per-request: {fault}: count its tokens in --input-len")
    folder = files.find_kernels(None, checkpoint or files.find_checkpoint())
    if folder is None:
        raise PinnError(
            "--images-per-request: the time of a vision encoder needs kernel "
            "surrogates, and there are none: fit them with 'python train.py "
            "kernels=on'"
        )
    # The JSON file has the hash of the tensor file, so the cache's key covers both files.
    ranks = deployment.recipe.tensor_parallel_size
    sizes = images.merged, reader.merge
    first_s, further_s = remembered_value(
        _seconds, folder / "kernels.json", reader.encoder, deployment.gpu, ranks, *sizes
    )
    rate = deployment.gpu.matmul_flop_per_s(precision("bf16"))
    floor_s = reader.encoder_flop(*images.pixels) / rate / ranks
    return EncoderTime(images, first_s, further_s, floor_s)


def _seconds(
    kernels: Path, encoder: EncoderSpec, gpu: GpuSpec, ranks: int, merged: int, merge: int
) -> list[float]:
    """Return the seconds of the first image in a step, and of each further image."""
    # Imported late, because it loads torch.
    from pinn.kernels.encoder import EncodedImages, kernel_seconds, layer_steps
    from pinn.kernels.surrogates import KernelSurrogates

    surrogates = KernelSurrogates.load(kernels.parent)
    overheads = np.array(
        [
            f.overhead.prior if f.overhead and name not in _APART else 0.0
            for name, f in STEP_FEATURES.items()
        ]
    )

    def seconds(count: int) -> float:
        images = EncodedImages(count, merged, merge)
        work = kernel_seconds(surrogates, encoder, gpu, ranks, images)
        for deployment, batch in layer_steps(encoder, gpu, ranks, images):
            work += float((step_features(step_costs([deployment]), batch.sums()) @ overheads)[0])
        return max(work, _launches_s(encoder))

    first = seconds(1)
    further = (seconds(_MANY) - first) / (_MANY - 1)
    return [first, min(max(further, 0.0), first)]


def _launches_s(encoder: EncoderSpec) -> float:
    """Return the seconds in which the host launches an encoder's layers, in parallel with the GPU.

    By default, vLLM neither compiles encoders nor captures CUDA graphs of them (0.33.0
    config/compilation.py: compile_mm_encoder, cudagraph_mm_encoder).
    """
    overhead = STEP_FEATURES["launched_layer"].overhead
    return encoder.layers * (overhead.prior if overhead else 0.0)
