"""Time that images or audio in prompts add to engine steps: the run time of their encoder.

vLLM encodes an item in the step that computes the item's first token, before the layers of the
language model, so that all requests in the batch wait (0.33.0 v1/core/sched/scheduler.py:
_try_schedule_encoder_inputs; v1/worker/gpu_model_runner.py: _execute_mm_encoder). SGLang encodes an
image in the step of the prompt (0.5.23 managers/mm_utils.py: general_mm_embed_routine). This time
was not measured. It is predicted as the sum of kernel times, with prior estimates for small kernels
and launches.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pinn.common import JsonObject, files
from pinn.common.store import remembered_value
from pinn.engines.deployment import Deployment
from pinn.engines.encoder_ranks import EncoderRanks, encoder_ranks, ignores_data_mode
from pinn.engines.recipe import served_release
from pinn.errors import PinnError, warn_user
from pinn.physics.costs import step_costs
from pinn.specs.batch import Batch
from pinn.specs.encoder import EncoderSpec
from pinn.specs.gpu import GpuSpec
from pinn.specs.media import MediaItem, Unread
from pinn.specs.precision import precision
from pinn.specs.request_media import (
    AUDIO,
    IMAGE,
    OPTIONS,
    MediaFlags,
    RequestMedia,
    request_media,
)  # fmt: skip
from pinn.surrogate.step_features import STEP_FEATURES, step_features

#: Log half-width of the 90 % interval of an encoder's time: 1.645 times the standard deviation for
#: prefill attention (0.4), the widest prior of a similar kernel
#: (``data/features/step_features.csv``).
HALF_WIDTH = 1.645 * 0.4
#: Number of groups of items (images or audio clips) in an example step. The items of a group are
#: encoded together. The time of a further group is the time of this step minus that of a step with
#: one item, divided by the number of further groups.
_MANY = 8
#: Step features whose overheads are not part of an encoder's work: encoders are not scheduled, and
#: launches are timed separately because they overlap GPU work.
_APART = ("step", "request", "launched_layer")


@dataclass(frozen=True)
class EncoderTime:
    """Time in seconds that an encoder adds to an engine's steps.

    Attributes:
        media: Images or audio clips of each request.
        first_s: Time in seconds of the first item in a step.
        further_s: Time in seconds of each further group of ``together`` items; at most ``first_s``.
        floor_s: Roofline lower bound of one item, in seconds.
        together: Number of items in a group, which several GPUs encode at the same time.
    """

    media: RequestMedia
    first_s: float
    further_s: float
    floor_s: float
    together: int = 1

    def seconds(self, count: int) -> float:
        """Return the time in seconds for one step to encode ``count`` items; 0 without items."""
        return step_encoder_seconds(count, self.first_s, self.further_s, self.together)

    def begun_in(self, batch: Batch) -> int:
        """Return the number of images or audio clips that a step with this batch encodes."""
        rows = zip(
            batch.entry_counts, batch.new_tokens, batch.cached_tokens, batch.is_prefill, strict=True
        )
        return sum(n * self.media.begun_in(c, new) for n, new, c, prefill in rows if prefill)

    def of_batch(self, batch: Batch) -> float:
        """Return the time that the encoder adds to a step with this batch, in seconds."""
        return self.seconds(self.begun_in(batch))

    def scaled(self, log_factor: float) -> "EncoderTime":
        """Return a copy with both encoding times multiplied by exp(``log_factor``)."""
        factor = math.exp(log_factor)
        first_s, further_s = self.first_s * factor, self.further_s * factor
        return replace(self, first_s=first_s, further_s=further_s)

    @property
    def ends(self) -> tuple[float, float]:
        """Return the ends of the 90 % interval of encoder time, relative to the prediction."""
        return math.exp(-HALF_WIDTH), math.exp(HALF_WIDTH)

    def to_json(self) -> JsonObject:
        """Return the JSON object under the key ``encoder``: media, and times with interval ends."""
        low, high = self.ends
        kind = self.media.kind
        size = {"image_size": self.media.size} if kind == IMAGE else {}
        return {
            f"{kind}s_per_request": self.media.count,
            **(size or {"audio_seconds": float(self.media.size)}),
            f"tokens_per_{kind}": self.media.tokens,
            f"first_{kind}_s": self.first_s,
            f"further_{kind}_s": self.further_s / self.together,
            f"first_{kind}_low_s": self.first_s * low,
            f"first_{kind}_high_s": self.first_s * high,
            "measured": False,
        }

    @property
    def sentence(self) -> str:
        """Return a sentence about the time that an encoder adds, which was not measured."""
        low, high = (1000 * self.first_s * end for end in self.ends)
        image = {IMAGE: "image", AUDIO: "clip"}[self.media.kind]
        an_image = {IMAGE: "an image", AUDIO: "a clip"}[self.media.kind]
        further_image = image if self.together == 1 else f"{self.together} {image}s"
        first_ms, further_ms = 1000 * self.first_s, 1000 * self.further_s
        return (
            f"{media_notice(self.media)}: {first_ms:.3g} ms ({low:.3g} to {high:.3g}) in the step "
            f"of {an_image}'s first token, {further_ms:.3g} ms for each further {further_image} of "
            f"the step"
        )


def asked_encoder(
    deployment: Deployment, flags: MediaFlags, checkpoint: Path | None = None
) -> EncoderTime | None:
    """Return the encoder time for the images or audio that the flags describe; None if none.

    Args:
        deployment: Model, GPU and engine configuration.
        flags: Number and size of images, or of audio clips.
        checkpoint: Path of the network, whose folder has the kernel surrogates; None for the
            default.

    Raises:
        PinnError: If the tokens of the model's images or audio, or their encoder, are unknown.
    """
    model = deployment.model
    media = request_media(model.images, model.audio, model.name, flags)
    return encoder_time(deployment, media, checkpoint)


def media_notice(media: RequestMedia) -> str:
    """Return a clause about a request's images or audio, whose time was not measured."""
    as_is = " if the preprocessor does not resize them" if media.kind == IMAGE else ""
    encoder = {IMAGE: "vision", AUDIO: "audio"}[media.kind]
    return (
        f"each request has {media.title}, {media.tokens:,} tokens each{as_is}; "
        f"the time of the {encoder} encoder is a sum of kernel times and was never measured as a "
        f"whole"
    )


def step_encoder_seconds(count: int, first_s: float, further_s: float, together: int) -> float:
    """Return the time in seconds for one step to encode ``count`` images or audio clips."""
    return first_s + (-(-count // together) - 1) * further_s if count > 0 else 0.0


def encoder_time(
    deployment: Deployment, media: RequestMedia | None, checkpoint: Path | None = None
) -> EncoderTime | None:
    """Return the time that images or audio add to a deployment's steps; None without either.

    Args:
        deployment: Model, GPU and engine configuration.
        media: Images or audio clips of each request; None for none.
        checkpoint: Path of the network, whose folder has the kernel surrogates; None for the
            default.

    Raises:
        PinnError: If the encoder's sizes are not known, or there are no kernel surrogates.
    """
    if media is None:
        return None
    option, model = OPTIONS[media.kind][0], deployment.model
    reader = model.images if media.kind == IMAGE else model.audio
    if reader is None or isinstance(reader, Unread) or not reader.encoder.heads:
        fault = f"the size of the {media.kind} encoder of {model.name} is unknown"
        raise PinnError(f"{fault}: omit {option}, and count these tokens in --input-len")
    kernels = files.needed_kernels(
        checkpoint or files.find_checkpoint(), f"{option}: the time of an encoder"
    )
    ranks = encoder_ranks(deployment, reader.encoder)
    if ignores_data_mode(deployment, reader.encoder):
        serving = deployment.serving
        release = f"{serving.engine} {served_release(serving.engine, serving.engine_version)}"
        warn_user(
            f"{release} does not support --mm-encoder-tp-mode data for this model and ignores it"
        )
    first_s, further_s = remembered_value(
        _seconds, kernels, reader.encoder, deployment.gpu, ranks, media.item
    )
    rate = deployment.gpu.matmul_flop_per_s(precision("bf16"))
    floor_s = media.item.flop(reader.encoder) / rate / (ranks.layers * ranks.items)
    return EncoderTime(media, first_s, further_s, floor_s, together(ranks, media.item))


def _seconds(
    kernels: Path, encoder: EncoderSpec, gpu: GpuSpec, ranks: EncoderRanks, item: MediaItem
) -> list[float]:
    """Return the time of a step's first item, and of each further group of items, in seconds."""
    # Imported only when needed, because these modules load torch, which is slow.
    from pinn.kernels.encoder import EncodedItems, kernel_seconds, layer_steps
    from pinn.kernels.surrogates import KernelSurrogates

    surrogates = KernelSurrogates.load(kernels.parent)
    overheads = np.array(
        [
            f.overhead.prior if f.overhead and name not in _APART else 0.0
            for name, f in STEP_FEATURES.items()
        ]
    )

    def seconds(count: int) -> float:
        items = EncodedItems.of(count, item, ranks)
        work = kernel_seconds(surrogates, encoder, gpu, ranks, items)
        for deployment, batch in layer_steps(encoder, gpu, ranks.layers, items):
            work += float((step_features(step_costs([deployment]), batch.sums()) @ overheads)[0])
        return max(work, _launches_s(encoder))

    first = seconds(1)
    further = (seconds(_MANY * together(ranks, item)) - first) / (_MANY - 1)
    return [first, min(max(further, 0.0), first)]


def together(ranks: EncoderRanks, item: MediaItem) -> int:
    """Return how many items the GPUs encode at once; 1 if they share an image's tiles."""
    return ranks.items if item.patches == item.sequence else 1


def _launches_s(encoder: EncoderSpec) -> float:
    """Return the time in seconds for the host to launch an encoder's layers.

    By default, vLLM neither compiles encoders nor captures CUDA graphs of them (0.33.0
    config/compilation.py: compile_mm_encoder, cudagraph_mm_encoder).
    """
    overhead = STEP_FEATURES["launched_layer"].overhead
    return encoder.layers * (overhead.prior if overhead else 0.0)
