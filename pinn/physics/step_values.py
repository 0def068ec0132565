"""Values of the step features, and the roofline lower bound of a step's time."""

import numpy as np
from jaxtyping import Float

from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import StepCosts

#: Costs and batch sums of any shapes that broadcast together.
Values = Float[np.ndarray, "..."]

# Roofline lower bound of a step: no engine can be faster on this GPU.


def floor_seconds(costs: StepCosts, sums: BatchSums, shared: BatchSums | None = None) -> Values:
    """Return the roofline lower bound in seconds: max(FLOP / peak, bytes / bandwidth).

    Only bytes that any engine has to read are counted. For routed experts, these are the
    weights that one token needs, since all tokens may use the same experts. For the KV cache, these
    are the keys and values in memory before the step. Offloaded weights always cross PCIe. An empty
    batch takes no time.

    Args:
        costs: Costs of the deployments, broadcast against ``sums``.
        sums: Sums of the batches.
        shared: Sums, per rank, of the tokens that the experts of all data-parallel ranks compute;
            by default ``sums``.
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
        + expert_compute_s(costs, sums if shared is None else shared)
        + costs.decode_pair_s * sums.decode_context
        + costs.windowed_decode_pair_s * sums.windowed_decode_context
        + costs.prefill_pair_s * sums.prefill_pairs
        + costs.windowed_prefill_pair_s * sums.windowed_prefill_pairs
    )
    busy = np.maximum(np.maximum(reads, arithmetic), costs.offload_s)
    return np.where(sums.tokens > 0, busy, 0.0)


def gemm_compute_s(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the arithmetic seconds of projections, dense and shared layers and the output head."""
    return costs.gemm_token_s * sums.tokens + costs.head_sequence_s * sums.requests


def expert_compute_s(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the seconds of arithmetic in routed experts, for the tokens of all replicas."""
    return costs.expert_token_s * sums.tokens * costs.expert_replicas


def topk_expert_read_s(costs: StepCosts) -> Values:
    """Return the seconds to read the experts of a single token, on a GPU with an average share."""
    return costs.experts * costs.expert_share * costs.expert_read_s


def hit_expert_read_s(costs: StepCosts, tokens: Values) -> Values:
    """Return the seconds to read all experts that tokens of any replica use, with balanced routing.

    With T tokens that each use an expert with probability k / N independently, the expected number
    of experts in use is N (1 - (1 - k/N)^T).
    """
    missed = (1 - costs.expert_share) ** expert_tokens(costs, tokens)
    # The simulator's compiled copy skips the slow power function for models without experts.
    return np.where(costs.experts > 0, costs.experts * (1 - missed) * costs.expert_read_s, 0.0)


def expert_tokens(costs: StepCosts, tokens: Values) -> Values:
    """Return the number of tokens of all data-parallel replicas that share the experts."""
    return tokens * costs.expert_replicas


# Values of the step features: pure functions of costs and batch sums, broadcast together.
#
# The simulator's compiled code (``pinn/simulator/step_formulas.py``) and the Go package
# (``export/go/pinn/step.go``) repeat these formulas; tests compare all three.

#: Rows of a typical tile of a matrix product (CUTLASS: 128 x 128 and 128 x 256). Up to this number,
#: further tokens do not need further tiles.
TILE_TOKENS = 128.0

#: Number of tokens from which waves of tiles fill the GPU. An assumption: with 128 x 128 tiles, a
#: product of width 4,096 has 256 tiles at 1,024 tokens, two waves on the 132 SMs of an H100.
WAVE_TOKENS = 1024.0

#: Share of a step's tokens that determines which experts are read under skewed routing (an
#: assumption).
FEW_TOKENS_SHARE = 0.1

#: Share of a layer's launches that are outside of graphs in a step with prompts. vLLM's piecewise
#: graphs end where attention begins (``splitting_ops``). Attention kernels, the write to the cache
#: and the next piece are launched one by one. Steps of Qwen3.6-35B-A3B on B300 (vLLM 0.20.1), which
#: are bound by launching, take 16.5 ms up to the captured size and 40 ms beyond it.
PIECES = 0.41

#: Captured size divided by the width of the transition above it: from 1 + 1 / 8 of that size on,
#: the whole step is launched layer by layer.
RAMP = 8.0

#: Maximum bytes of a message of vLLM's own all-reduce (custom_all_reduce.py: max_size = 8192 *
#: 1024).
CUSTOM_BYTES = 2.0**23


def busy(sums: BatchSums) -> Values:
    """Return 1 for batches with requests, 0 for empty ones."""
    return np.where(sums.tokens > 0, 1.0, 0.0)


def gemm(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the larger of two times in s: reading weights outside routed experts, arithmetic."""
    return np.maximum(costs.gemm_weights_s * busy(sums), gemm_compute_s(costs, sums))


def experts(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the larger of two times in s: reading one token's experts, all tokens' arithmetic."""
    return np.maximum(topk_expert_read_s(costs) * busy(sums), expert_compute_s(costs, sums))


def experts_hit(costs: StepCosts, sums: BatchSums, share: float = 1.0) -> Values:
    """Return the seconds to read the experts of a share of the tokens, beyond the first token's."""
    hit = hit_expert_read_s(costs, sums.tokens * share)
    return np.maximum(hit - topk_expert_read_s(costs), 0.0)


def message_tokens(costs: StepCosts, message_bytes: float) -> Values:
    """Return the number of tokens whose all-reduce message has ``message_bytes`` bytes."""
    return message_bytes / costs.all_reduce_token_bytes


def first_bytes(costs: StepCosts, sums: BatchSums, message_bytes: float) -> Values:
    """Return the all-reduce seconds of the tokens within a message's first ``message_bytes``."""
    tokens = np.minimum(sums.tokens, message_tokens(costs, message_bytes))
    return costs.small_all_reduce_token_s * tokens


def eager_layers(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the number of layers launched eagerly, without a CUDA graph.

    CUDA graphs cover steps of up to ``graph_tokens`` tokens. vLLM switches exactly at that size.
    Here the transition extends over the eighth above it, because training data and predictions are
    averages over prompts of several lengths. If graphs are limited by requests, they cover decodes
    only, and only prompt tokens count.
    """
    tokens = np.where(costs.graph_requests > 0, sums.prefill_tokens, sums.tokens)
    over = tokens / np.maximum(costs.graph_tokens, 1.0) - 1.0
    pieces = np.where(costs.graph_tokens > 1, PIECES, 1.0)
    between = np.where(sums.prefill_tokens > 0, pieces, 0.0)
    share = np.minimum(np.maximum(RAMP * over, between), 1.0)
    limited = np.where(costs.graph_requests > 0, sums.decode_requests, 0.0)
    beyond = np.where(limited > costs.graph_requests, 1.0, 0.0)
    eager = np.where(costs.graph_tokens > 0, np.maximum(share, beyond), busy(sums))
    return costs.launched_layers * eager


def prefill_kv_read(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the seconds to read the keys and values that were cached before each prefill chunk."""
    return (
        costs.kv_read_s * sums.prefill_cached
        + costs.windowed_kv_read_s * sums.windowed_prefill_cached
    )


def kv_read(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the seconds to read the keys and values of decodes, scaled to the engine's kernels."""
    return costs.decode_attention_time * (
        costs.kv_read_s * sums.decode_context
        + costs.windowed_kv_read_s * sums.windowed_decode_context
    )


def decode_attention(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the larger of memory time and arithmetic time of decode attention, in seconds."""
    return np.maximum(
        kv_read(costs, sums),
        costs.decode_attention_time
        * (
            costs.decode_pair_s * sums.decode_context
            + costs.windowed_decode_pair_s * sums.windowed_decode_context
        ),
    )


def prefill_attention(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the larger of memory time and arithmetic time of prefill attention, in seconds."""
    return np.maximum(
        prefill_kv_read(costs, sums),
        costs.prefill_pair_s * sums.prefill_pairs
        + costs.windowed_prefill_pair_s * sums.windowed_prefill_pairs,
    )


def expert_compute_beyond_wave(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the arithmetic seconds of experts for the tokens beyond ``WAVE_TOKENS``."""
    return costs.expert_token_s * np.maximum(expert_tokens(costs, sums.tokens) - WAVE_TOKENS, 0.0)


def expert_activations(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the seconds to gather and scatter the tokens of all replicas for the experts."""
    return costs.expert_activation_token_s * sums.tokens * costs.expert_replicas


def large_all_reduces(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the number of all-reduces whose message exceeds the limit of one-shot kernels."""
    large = costs.all_reduce_token_bytes * sums.tokens > costs.one_shot_bytes
    return np.where(large, costs.all_reduces, 0.0)
