"""Time of a vision encoder, composed of the kernels that it runs.

A layer of an encoder is one of a bidirectional model without an output head, so its products, its
attention and its all-reduces are those of ``composition``. The embedding of patches and the
projector are added. Sources: vLLM 0.33.0's v1/worker/gpu_model_runner.py (_execute_mm_encoder: all
images of a step at once), models/qwen2_5_vl.py (Qwen2_5_VisionBlock, Qwen2_5_VisionPatchMerger).
"""

from dataclasses import dataclass

import numpy as np

from pinn.engines.deployment import Deployment
from pinn.kernels.composition import compose
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.batch_sums import UniformBatches
from pinn.specs.encoder import EncoderSpec
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import AttentionSpec, DenseFfnSpec, LayerGroup, ModelSpec
from pinn.specs.precision import ACTIVATION_BYTES
from pinn.specs.serving import ServingSpec

#: Number format of encoders: 16 bits, since checkpoints do not quantize them.
_FORMAT = "bf16"


@dataclass(frozen=True)
class EncodedImages:
    """Images of one size that an encoder takes at once.

    Attributes:
        count: Number of images.
        merged: Patches of one after merging.
        merge: Patches of a merged one's edge.
    """

    count: int
    merged: int
    merge: int

    @property
    def patches(self) -> int:
        """Return the patches of one image."""
        return self.merged * self.merge**2


def layer_steps(
    encoder: EncoderSpec, gpu: GpuSpec, tensor_parallel_size: int, images: EncodedImages
) -> list[tuple[Deployment, UniformBatches]]:
    """Return an encoder's layers as deployments, each with the batch that passes them.

    Layers that attend within windows are apart: each window is a sequence of theirs. A token of a
    bidirectional prompt sees all of it. Half of the prompt as cached tokens makes up for the pairs
    that a causal one lacks.
    """
    patches, window = images.patches, min(encoder.window_patches, images.patches)
    windowed = encoder.layers - encoder.full_layers
    serving = ServingSpec(tensor_parallel_size=tensor_parallel_size, enforce_eager=True)
    found = []
    for layers, tokens in ((encoder.full_layers, patches), (windowed, window)):
        if layers and tokens:
            model = _as_model(encoder, layers)
            sizes = (0.0, 0.0, images.count * patches / tokens, tokens, tokens / 2)
            batch = UniformBatches(*(np.array([float(size)]) for size in sizes))
            found.append((Deployment(model, gpu, serving, force=True), batch))
    return found


def _as_model(encoder: EncoderSpec, layers: int) -> ModelSpec:
    """Return layers of an encoder as a model with a minimal vocabulary."""
    attention = AttentionSpec(encoder.heads, encoder.heads, encoder.width // encoder.heads)
    group = LayerGroup(layers, attention, DenseFfnSpec(encoder.ffn_width, encoder.gated))
    return ModelSpec(
        name="the vision encoder",
        model_type="vision encoder",
        hidden_size=encoder.width,
        vocab_size=1,
        layer_groups=(group,),
        pooled=True,
        bidirectional=True,
    )


def kernel_seconds(
    kernels: KernelSurrogates,
    encoder: EncoderSpec,
    gpu: GpuSpec,
    tensor_parallel_size: int,
    images: EncodedImages,
) -> float:
    """Return the seconds of an encoder's matrix products, attention and all-reduces.

    Args:
        kernels: Fitted operator surrogates.
        encoder: Sizes of the encoder.
        gpu: GPU that runs it.
        tensor_parallel_size: GPUs that share it.
        images: Images of the step.
    """
    steps = layer_steps(encoder, gpu, tensor_parallel_size, images)
    total = sum(float(compose(kernels, *step).sum()) for step in steps)
    rows, tokens = images.count * images.patches, images.count * images.merged
    total += float(kernels.gemm.seconds(gpu, _FORMAT, rows, encoder.width, encoder.patch_values))
    for inputs, outputs, divided, copies in encoder.projector:
        n = outputs // tensor_parallel_size if divided == "output" else outputs
        k = inputs // tensor_parallel_size if divided == "input" else inputs
        total += copies * float(kernels.gemm.seconds(gpu, _FORMAT, tokens, n, k))
        if divided == "input":
            message = tokens * outputs * ACTIVATION_BYTES
            total += copies * float(kernels.all_reduce.seconds(gpu, tensor_parallel_size, message))
    return total
