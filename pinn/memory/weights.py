"""Bytes of weights on one GPU, padded for kernels, excluding weights offloaded to the host."""

from functools import lru_cache

from pinn.engines.deployment import Deployment
from pinn.engines.encoder_ranks import encoder_ranks
from pinn.engines.kernel_choice import AUTO
from pinn.physics.layer_work import dense_matmuls, expert_weights, idle_matmuls
from pinn.specs.audio import AudioReader
from pinn.specs.images import ImageReader
from pinn.specs.model import ModelSpec
from pinn.specs.precision import ACTIVATION_BYTES
from pinn.units import GIB

#: Multiples to which sizes of mxfp4 experts are padded. ``HIDDEN_MULTIPLE``: of their hidden size.
#: ``MARLIN_MULTIPLE``: for Marlin, of the widths of their slices (vLLM fused_moe/layer.py:
#: maybe_roundup_hidden_size; fused_moe/oracle/mxfp4.py:
#: mxfp4_round_up_hidden_size_and_intermediate_size).
HIDDEN_MULTIPLE, MARLIN_MULTIPLE = 256, 128


def gpu_weight_bytes(deployment: Deployment) -> float:
    """Return the bytes of weights on one GPU, excluding weights offloaded to host memory."""
    recipe = deployment.recipe
    total = _model_weight_bytes(deployment.model.stored, *_sizes(deployment))
    total += _encoder_parameters(deployment) * ACTIVATION_BYTES
    total /= recipe.pipeline_parallel_size
    total = max(total - deployment.serving.cpu_offload_gb * GIB, 0.0)
    return total + draft_weight_bytes(deployment)


def _encoder_parameters(deployment: Deployment) -> float:
    """Return the number of weights of image and audio encoders on one GPU."""
    model, whole = deployment.model, 0
    for reader in (model.images, model.audio):
        if isinstance(reader, ImageReader | AudioReader):
            spec = reader.encoder
            whole += spec.parameters * (encoder_ranks(deployment, spec).layers == 1)
    divided = model.encoder_parameters - whole
    return whole + divided / deployment.recipe.tensor_parallel_size


def draft_weight_bytes(deployment: Deployment) -> float:
    """Return the bytes of the draft model's weights on one GPU; 0 if there is no draft model."""
    draft = deployment.draft
    if draft is None:
        return 0.0
    own = _model_weight_bytes(draft.model, *_sizes(deployment), shared_head=draft.shares_head)
    return own + draft.projection_weights * ACTIVATION_BYTES


def _sizes(deployment: Deployment) -> tuple[int, int, int, int]:
    """Return the GPU counts and the multiple that :func:`_model_weight_bytes` needs.

    They are ``tp`` GPUs that share an attention layer, ``spread`` GPUs that share whole experts,
    ``cut`` GPUs that split an expert, and ``multiple``, to which an mxfp4 expert's slice is padded.
    """
    recipe = deployment.recipe
    of_experts = (recipe.expert_parallel_size, recipe.expert_tensor_parallel_size)
    return (recipe.tensor_parallel_size, *of_experts, _width_multiple(deployment))


@lru_cache(maxsize=16384)
def _model_weight_bytes(
    model: ModelSpec,
    tp: int,
    spread: int,
    cut: int,
    multiple: int,
    *,
    shared_head: bool = False,
) -> float:
    """Return the total bytes of a model's weights on one GPU of every pipeline stage.

    With ``shared_head``, the output head and the embedding are not counted.
    """
    embedding = -(-model.vocab_size // tp) * model.hidden_size * ACTIVATION_BYTES
    matmuls = (*dense_matmuls(model, tp), *idle_matmuls(model, tp))
    total = sum(m.weight_bytes for m in matmuls if not (shared_head and m.per_sequence))
    has_own = model.pooled or not model.tied_embeddings
    own = embedding if has_own and not shared_head else 0
    total += own + model.extra_parameters * ACTIVATION_BYTES
    total += model.lookup_parameters / tp * ACTIVATION_BYTES
    if model.moe is not None:
        held = model.moe.experts / spread
        expert = expert_weights(model.moe, model.hidden_size, cut)
        expert *= _padded_share(model, cut, multiple)
        total += expert * held * model.moe_layers * model.precisions.experts.bytes_per_weight
    return total


def _width_multiple(deployment: Deployment) -> int:
    """Return the multiple to which the width of an mxfp4 expert's slice is padded."""
    is_own = deployment.expert_kernels == AUTO
    return deployment.recipe.padded_width if is_own else MARLIN_MULTIPLE


def _padded_share(model: ModelSpec, cut: int, multiple: int) -> float:
    """Return the ratio of padded to unpadded weights of an mxfp4 expert's slice; 1 otherwise."""
    moe = model.moe
    if moe is None or model.precisions.experts.name != "mxfp4":
        return 1.0
    hidden, width = moe.stream_width(model.hidden_size), -(-moe.width // cut)
    padded = -(-hidden // HIDDEN_MULTIPLE) * HIDDEN_MULTIPLE * (-(-width // multiple) * multiple)
    return float(padded / (hidden * width))
