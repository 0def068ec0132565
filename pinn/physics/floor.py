"""The physical floor of a step: no engine can be faster on this GPU."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import StepCosts


def floor_seconds(costs: StepCosts, sums: BatchSums) -> Float[np.ndarray, "..."]:
    """Lower bound of a step's duration: max(FLOPs / peak, bytes that must be read / bandwidth).

    Of the routed experts only those that one token needs are counted, since any routing may send
    all tokens to the same ones; of the KV cache what lies in memory before the step. Offloaded
    weights cross PCIe whatever else happens. An empty batch takes no time.

    Args:
        costs: Of the deployments, broadcast against ``sums``.
        sums: Of the batches.
    """
    own_decode = sums.decode_requests
    reads = (
        costs.gemm_weights_s
        + topk_expert_read_s(costs)
        + costs.kv_read_s * (sums.decode_context - own_decode + sums.prefill_cached)
        + costs.windowed_kv_read_s
        * (sums.windowed_decode_context - own_decode + sums.windowed_prefill_cached)
    )
    arithmetic = (
        gemm_compute_s(costs, sums)
        + expert_compute_s(costs, sums)
        + costs.decode_pair_s * sums.decode_context
        + costs.windowed_decode_pair_s * sums.windowed_decode_context
        + costs.prefill_pair_s * sums.prefill_pairs
        + costs.windowed_prefill_pair_s * sums.windowed_prefill_pairs
    )
    busy = np.maximum(np.maximum(reads, arithmetic), costs.offload_s)
    return np.where(sums.tokens > 0, busy, 0.0)


def gemm_compute_s(costs: StepCosts, sums: BatchSums) -> Float[np.ndarray, "..."]:
    """Arithmetic of projections, dense and shared layers and the output head."""
    return costs.gemm_token_s * sums.tokens + costs.head_sequence_s * sums.requests


def expert_compute_s(costs: StepCosts, sums: BatchSums) -> Float[np.ndarray, "..."]:
    """Arithmetic of the routed experts for the tokens of all data-parallel replicas."""
    return costs.expert_token_s * sums.tokens * costs.expert_replicas


def topk_expert_read_s(costs: StepCosts) -> Float[np.ndarray, "..."]:
    """Reading the experts that a single token needs, on the GPU that holds an average share."""
    return costs.experts * costs.expert_share * costs.expert_read_s


def hit_expert_read_s(costs: StepCosts, tokens: Float[np.ndarray, "..."]):
    """Reading every expert hit by at least one of each replica's tokens, balanced routing.

    With T tokens, each using an expert with chance k / N independently, N (1 - (1 - k/N)^T) are
    hit in expectation.
    """
    missed = (1 - costs.expert_share) ** expert_tokens(costs, tokens)
    # Compiled code leaves out the power, which takes long, where there are no experts.
    return np.where(costs.experts > 0, costs.experts * (1 - missed) * costs.expert_read_s, 0.0)


def expert_tokens(costs: StepCosts, tokens: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Tokens of all the data-parallel replicas that share the experts."""
    return tokens * costs.expert_replicas
