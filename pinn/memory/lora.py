"""GPU memory of LoRA adapter slots, which vLLM allocates before sizing the KV cache."""

from collections.abc import Iterator

from pinn.engines.deployment import Deployment
from pinn.specs.model import AttentionSpec, DenseFfnSpec, LayerGroup
from pinn.specs.precision import ACTIVATION_BYTES


def lora_bytes(deployment: Deployment) -> float:
    """Return the bytes of all LoRA slots on one GPU; 0 without ``--enable-lora``.

    For each output slice of a projection (such as q, k and v), a slot has two 16-bit matrices: rank
    x inputs, and outputs x rank. Tensor parallelism splits the outputs of column-parallel and the
    inputs of row-parallel projections (vllm/lora/layers/base_linear.py and
    column_parallel_linear.py: create_lora_weights, 0.11.0 to 0.33.0, without
    ``--fully-sharded-loras``). Projections of grouped-query attention and of dense feed-forward
    layers are counted. Other projections and experts are not.
    """
    serving = deployment.serving
    if not serving.enable_lora:
        return 0.0
    sides = sum(
        group.count * sum(inputs + outputs for inputs, outputs in _slices(group, deployment))
        for group in deployment.model.layer_groups
    )
    slots = serving.max_loras * serving.max_lora_rank
    return slots * sides * ACTIVATION_BYTES / deployment.recipe.pipeline_parallel_size


def _slices(group: LayerGroup, deployment: Deployment) -> Iterator[tuple[float, float]]:
    """Yield (inputs, outputs) per GPU of every output slice (such as q, k and v) of a layer."""
    hidden, tp = deployment.model.hidden_size, deployment.recipe.tensor_parallel_size
    mixer, ffn = group.attention, group.ffn
    if isinstance(mixer, AttentionSpec):
        queries = mixer.heads * mixer.head_dim / tp
        keys = max(mixer.kv_heads / tp, 1) * mixer.head_dim
        yield from ((hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden))
    if isinstance(ffn, DenseFfnSpec):
        width = ffn.width / tp
        yield from [(hidden, width)] * (1 + ffn.gated)
        yield (width, hidden)
