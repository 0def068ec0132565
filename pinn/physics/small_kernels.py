"""What kernels between the multiplications move: norms, rotary embedding, activation functions."""

from __future__ import annotations

from functools import lru_cache

from pinn.physics.matmuls import MatMul, dense_matmuls
from pinn.specs.model import ModelSpec

#: A norm with the residual's add reads two rows of the hidden size and writes two; one is before
#: each mixer and one before each feed-forward part (vllm/model_executor/layers/layernorm.py).
NORM_PASSES = 4.0
#: What a projection wrote is read and written once more: rotary embedding, norms of queries and
#: keys, copies into the cache.
OUTPUT_PASSES = 2.0
#: A gated activation function reads both halves and writes one.
GATED_PASSES = 1.5
#: Of 16 bits: what static scales save the kernel that writes a multiplication's input in fp8.
STATIC_SAVES = 0.5
#: Their outputs go to the residual stream, which the norms count, or choose experts.
_COUNTED = ("o_proj", "out_proj", "down_proj", "router")


@lru_cache(maxsize=16384)
def small_kernel_elements(model: ModelSpec, tensor_parallel_size: int) -> float:
    """16-bit elements that are read or written for one token on one GPU, over the layers.

    Norms are not cut by tensor parallelism, the rest is. Routed experts are counted apart
    (``expert_activation_token_s``), as is scaling of inputs in each step, which the times of
    multiplications include.
    """
    halves = sum(group.count * group.halves for group in model.layer_groups if group.runs)
    matmuls = [m for m in dense_matmuls(model, tensor_parallel_size) if not m.per_sequence]
    return NORM_PASSES * halves * model.hidden_size + sum(m.count * _moved(m) for m in matmuls)


def _moved(matmul: MatMul) -> float:
    saved = STATIC_SAVES * matmul.k if matmul.weights.static_activations else 0.0
    if matmul.name.endswith(_COUNTED):
        return -saved
    passes = GATED_PASSES if matmul.name.endswith("gate_up_proj") else OUTPUT_PASSES
    return passes * matmul.n - saved
