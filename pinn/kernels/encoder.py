"""Time of a multimodal model's encoder (images or audio) as the sum of its kernels' times.

An encoder layer is computed like a layer of a bidirectional model without an output head, with the
matrix products, attention and all-reduces of ``composition``. Patch embedding, convolutions and
projector are included. Sources: vLLM 0.33.0's v1/worker/gpu_model_runner.py (_execute_mm_encoder:
all items of a step at once), models/qwen2_5_vl.py (Qwen2_5_VisionBlock, Qwen2_5_VisionPatchMerger),
models/vision.py (run_dp_sharded_mrope_vision_model).
"""

from dataclasses import dataclass

import numpy as np

from pinn.engines.deployment import Deployment
from pinn.engines.encoder_ranks import EncoderRanks
from pinn.kernels.composition import compose
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.batch_sums import UniformBatches
from pinn.specs.encoder import EncoderSpec
from pinn.specs.gpu import GpuSpec
from pinn.specs.media import MediaItem
from pinn.specs.model import AttentionSpec, DenseFfnSpec, LayerGroup, ModelSpec
from pinn.specs.precision import ACTIVATION_BYTES
from pinn.specs.serving import ServingSpec

#: Number format of encoder weights: 16 bits, because checkpoints do not quantize encoders.
_FORMAT = "bf16"


@dataclass(frozen=True)
class EncodedItems:
    """Images of one size, or audio clips of one length, that an encoder processes at once.

    Attributes:
        sequences: Number of sequences in all images or clips; the positions of a sequence attend to
            each other.
        item: Tokens and encoder work of one image or clip, which may have several sequences.
    """

    sequences: float
    item: MediaItem

    @classmethod
    def of(cls, count: int, item: MediaItem, ranks: EncoderRanks) -> "EncodedItems":
        """Return the share of ``count`` images or audio clips that one GPU encodes."""
        sequences = count * item.patches / item.sequence
        return cls(-(-sequences // ranks.items) if ranks.items > 1 else sequences, item)

    @property
    def patches(self) -> int:
        """Return the number of positions (patches or frames) that the encoder's layers process."""
        return round(self.sequences * self.item.sequence)

    @property
    def rows(self) -> int:
        """Return the number of rows of the projector's input, over all images or clips."""
        return round(self.item.rows * self.sequences * self.item.sequence / self.item.patches)


def layer_steps(
    encoder: EncoderSpec, gpu: GpuSpec, tensor_parallel_size: int, items: EncodedItems
) -> list[tuple[Deployment, UniformBatches]]:
    """Return the layers of an encoder as deployments, each with the batch that they process.

    Layers with windows are a separate deployment, in which each window is a sequence. In a
    bidirectional prompt, every token sees the whole prompt. Kernel times are those of causal
    attention, which has half of these (query, key) pairs. The other half is included by treating
    half of the prompt as cached tokens.
    """
    sequence, window = items.item.sequence, min(encoder.window_patches, items.item.sequence)
    windowed = encoder.layers - encoder.full_layers
    serving = ServingSpec(tensor_parallel_size=tensor_parallel_size, enforce_eager=True)
    found = []
    for layers, tokens in ((encoder.full_layers, sequence), (windowed, window)):
        if layers and tokens:
            model = _as_model(encoder, layers)
            sizes = (0.0, 0.0, items.sequences * sequence / tokens, tokens, tokens / 2)
            batch = UniformBatches(*(np.array([float(size)]) for size in sizes))
            found.append((Deployment(model, gpu, serving, force=True), batch))
    return found


def _as_model(encoder: EncoderSpec, layers: int) -> ModelSpec:
    """Represent an encoder's layers as a model with a minimal vocabulary."""
    head_dim = (encoder.attention_width or encoder.width) // encoder.heads
    attention = AttentionSpec(encoder.heads, encoder.heads, head_dim)
    group = LayerGroup(layers, attention, DenseFfnSpec(encoder.ffn_width, encoder.gated))
    return ModelSpec(
        name="the encoder",
        model_type="encoder",
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
    ranks: EncoderRanks,
    items: EncodedItems,
) -> float:
    """Return the time in seconds of an encoder's matrix products, attention and communication.

    Args:
        kernels: Fitted kernel surrogates.
        encoder: Layers and widths of the encoder.
        gpu: GPU that runs the encoder.
        ranks: Numbers of GPUs over which the encoder is divided.
        items: Images or audio clips that one GPU encodes in the step.
    """
    steps = layer_steps(encoder, gpu, ranks.layers, items)
    total = sum(float(compose(kernels, *step).sum()) for step in steps)
    if encoder.patch_values:
        patches = items.patches, encoder.width, encoder.patch_values
        total += float(kernels.gemm.seconds(gpu, _FORMAT, *patches))
    for rows, inputs, outputs, copies in encoder.products:
        product = rows * items.patches, outputs, inputs
        total += copies * float(kernels.gemm.seconds(gpu, _FORMAT, *product))
    for inputs, outputs, divided, copies in encoder.projector:
        n = outputs // ranks.layers if divided == "output" else outputs
        k = inputs // ranks.layers if divided == "input" else inputs
        total += copies * float(kernels.gemm.seconds(gpu, _FORMAT, items.rows, n, k))
        if divided == "input":
            message = items.rows * outputs * ACTIVATION_BYTES
            total += copies * float(kernels.all_reduce.seconds(gpu, ranks.layers, message))
    if ranks.items > 1:
        # A ring all-gather moves half as many bytes as a ring all-reduce.
        gathered = ranks.items * items.rows * encoder.projector[-1].outputs * ACTIVATION_BYTES
        total += float(kernels.all_reduce.seconds(gpu, ranks.items, gathered / 2))
    return total
