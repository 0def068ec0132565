"""Time of a vision encoder as the sum of its kernels' times.

An encoder layer is computed like a layer of a bidirectional model without an output head, with the
products, attention and all-reduces of ``composition``. The patch embedding and the projector are
added. Sources: vLLM 0.33.0's v1/worker/gpu_model_runner.py (_execute_mm_encoder: all images of a
step at once), models/qwen2_5_vl.py (Qwen2_5_VisionBlock, Qwen2_5_VisionPatchMerger).
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

#: Number format of encoders: 16 bits, because checkpoints do not quantize them.
_FORMAT = "bf16"


@dataclass(frozen=True)
class EncodedImages:
    """Images of one size that an encoder processes at once.

    Attributes:
        count: Number of images.
        merged: Number of patches per image after merging.
        merge: Number of patches along the edge of a merged patch.
    """

    count: int
    merged: int
    merge: int

    @property
    def patches(self) -> int:
        """Return the number of patches of one image, before merging."""
        return self.merged * self.merge**2


def layer_steps(
    encoder: EncoderSpec, gpu: GpuSpec, tensor_parallel_size: int, images: EncodedImages
) -> list[tuple[Deployment, UniformBatches]]:
    """Return an encoder's layers as deployments, each with the batch that its layers process.

    Layers with windows are a separate deployment, in which each window is a sequence. In a
    bidirectional prompt, every token sees the whole prompt. The pairs that causal attention lacks
    are added by counting half of the prompt as cached tokens.
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
    """Return a model of an encoder's layers, with a minimal vocabulary."""
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
        gpu: GPU that runs the encoder.
        tensor_parallel_size: Number of GPUs that share the encoder.
        images: Images that the step encodes.
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
