"""The step features once more, for compiled code: one batch, plain numbers.

``pinn.features.step`` is what defines them. A test compares the two for random batches and models,
and ``step_coefficients`` refuses a registry with a name that is missing here.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from pinn.errors import PinnError
from pinn.features.step import STEP_FEATURES
from pinn.physics.costs import COST_NAMES, StepCosts
from pinn.simulator.jit import inner
from pinn.simulator.state import REREAD

#: One deployment's ``StepCosts`` as numbers, same names and order.
Costs: Any = namedtuple("Costs", COST_NAMES)  # type: ignore[misc]


class StepValues(NamedTuple):
    """The features that compiled code knows, by their names in the registry."""

    step: float
    layer: float
    moe_layer: float
    quantized_layer: float
    parallel_layer: float
    eager_layer: float
    prefill_layer: float
    decode_layer: float
    request: float
    sampling: float
    activations: float
    gemm: float
    gemm_weights: float
    gemm_compute: float
    gemm_beyond_128: float
    gemm_beyond_1024: float
    experts: float
    experts_hit: float
    experts_hit_tenth: float
    expert_compute: float
    expert_compute_beyond_1024: float
    expert_activations: float
    decode_attention: float
    kv_read: float
    prefill_attention: float
    prefill_tokens: float
    prefill_kv_read: float
    all_reduce: float
    all_reduce_first_256k: float
    all_reduce_first_8m: float
    large_all_reduce: float
    expert_exchange: float
    pipeline: float
    cpu_offload: float


def step_coefficients(beta: Float[np.ndarray, " features"]) -> Float[np.ndarray, " values"]:
    """Beta in the order of ``StepValues``.

    Raises:
        PinnError: If the registry has a feature that compiled code does not know.
    """
    unknown = [name for name in STEP_FEATURES if name not in StepValues._fields]
    if unknown:
        raise PinnError(
            f"step features {', '.join(unknown)} have no compiled form: add them to "
            "pinn/simulator/step_kernel.py"
        )
    by_name = dict(zip(STEP_FEATURES, beta, strict=True))
    return np.array([by_name.get(name, 0.0) for name in StepValues._fields], dtype=np.float64)


def cost_numbers(costs: StepCosts) -> Any:
    """Costs of one deployment, of shape ``[1]``, as numbers."""
    return Costs(*(float(getattr(costs, name)[0]) for name in COST_NAMES))


@inner
def step_values(c, sums):
    """Features of one batch.

    Args:
        c: ``Costs``.
        sums: Float64 array: the fields of ``BatchSums`` in their order, and what
            ``pinn.simulator.state`` adds.
    """
    prefills, decodes, prefill_tokens = sums[0], sums[1], sums[2]
    context, cached, pairs = sums[3], sums[4], sums[5]
    near_context, near_cached, near_pairs = sums[6], sums[7], sums[8]
    if sums[REREAD] > 0:
        context -= sums[REREAD]
        near_context *= context / sums[3]
    tokens, requests = prefill_tokens + decodes, prefills + decodes
    busy = 1.0 if tokens > 0 else 0.0
    gemm_compute = c.gemm_token_s * tokens + c.head_sequence_s * requests
    expert_tokens = tokens * c.expert_replicas
    expert_compute = c.expert_token_s * expert_tokens
    topk_read = c.experts * c.expert_share * c.expert_read_s
    kv_read = c.kv_read_s * context + c.windowed_kv_read_s * near_context
    decode_compute = c.decode_pair_s * context + c.windowed_decode_pair_s * near_context
    cached_read = c.kv_read_s * cached + c.windowed_kv_read_s * near_cached
    prefill_compute = c.prefill_pair_s * pairs + c.windowed_prefill_pair_s * near_pairs
    prefill_layers = c.layers if prefills > 0 else 0.0
    decode_layers = c.layers if decodes > 0 else 0.0
    eager_share = min(prefill_tokens / c.graph_tokens, 1.0) if c.graph_tokens > 0 else busy
    message_bytes = c.all_reduce_token_bytes * tokens
    large_all_reduces = c.all_reduces if message_bytes > 2.0**18 else 0.0
    return StepValues(
        busy,
        c.layers * busy,
        c.moe_layers * busy,
        c.quantized_layers * busy,
        c.parallel_layers * busy,
        c.layers * eager_share,
        prefill_layers,
        decode_layers,
        requests,
        c.sampled_request_s * requests,
        c.activation_token_s * tokens,
        max(c.gemm_weights_s * busy, gemm_compute),
        c.gemm_weights_s * busy,
        gemm_compute,
        c.gemm_token_s * max(tokens - 128.0, 0.0),
        c.gemm_token_s * max(tokens - 1024.0, 0.0),
        max(topk_read * busy, expert_compute),
        max(_hit_read(c, expert_tokens) - topk_read, 0.0),
        max(_hit_read(c, expert_tokens * 0.1) - topk_read, 0.0),
        expert_compute,
        c.expert_token_s * max(expert_tokens - 1024.0, 0.0),
        c.expert_activation_token_s * expert_tokens,
        max(kv_read, decode_compute),
        kv_read,
        max(cached_read, prefill_compute),
        c.prefill_token_s * prefill_tokens,
        cached_read,
        c.all_reduce_token_s * tokens,
        c.all_reduce_token_s * min(tokens, 2.0**18 / c.all_reduce_token_bytes),
        c.all_reduce_token_s * min(tokens, 2.0**23 / c.all_reduce_token_bytes),
        large_all_reduces,
        c.exchange_token_s * tokens,
        c.pipeline_token_s * tokens,
        c.offload_s * busy,
    )


@inner
def _hit_read(c, tokens):
    """``pinn.physics.floor.hit_expert_read_s``, ``tokens`` over all replicas."""
    if c.experts == 0:
        return 0.0
    return c.experts * (1 - (1 - c.expert_share) ** tokens) * c.expert_read_s
