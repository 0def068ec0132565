"""Values of the step features, and the roofline lower bound of a step's time."""

import numpy as np
from jaxtyping import Float

from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import StepCosts

#: Array of numbers; the costs and batch sums of one formula may have any shapes that broadcast.
Values = Float[np.ndarray, "..."]

# Roofline lower bound of a step: no engine can be faster on this GPU.


def floor_seconds(costs: StepCosts, sums: BatchSums, shared: BatchSums | None = None) -> Values:
    """Return the roofline lower bound of a step's time in seconds.

    The bound is the largest of FLOP / peak FLOP/s, bytes / memory bandwidth, and the time to read
    offloaded weights over PCIe. Only bytes that any engine has to read are counted. For routed
    experts, these are the weights that one token needs, since all tokens may use the same experts.
    For the KV cache, these are the keys and values in memory before the step. An empty batch takes
    no time.

    Args:
        costs: Costs of the deployments, broadcast against ``sums``.
        sums: Sums of the batches.
        shared: Sums of the batches for the arithmetic of experts, which process the tokens of all
            data-parallel ranks: means over the ranks; by default ``sums``.
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
    """Return the arithmetic time of all matrix products except routed experts, in seconds."""
    return costs.gemm_token_s * sums.tokens + costs.head_sequence_s * sums.requests


def expert_compute_s(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the arithmetic time of routed experts on the tokens of all replicas, in seconds."""
    return costs.expert_token_s * sums.tokens * costs.expert_replicas


def topk_expert_read_s(costs: StepCosts) -> Values:
    """Return the time in seconds for a GPU to read its mean share of one token's experts."""
    return costs.experts * costs.expert_share * costs.expert_read_s


def hit_expert_read_s(costs: StepCosts, tokens: Values) -> Values:
    """Return the time in seconds for a GPU to read its experts in use, with balanced routing.

    Each of the T tokens of all data-parallel replicas uses an expert with probability p = k / N, as
    top-k routing selects k of N experts. Of n experts on the GPU, n (1 - (1 - p)^T) are expected to
    be in use.
    """
    missed = (1 - costs.expert_share) ** expert_tokens(costs, tokens)
    # Without experts, the simulator's compiled copy of this formula returns 0 without computing the
    # slow power function.
    return np.where(costs.experts > 0, costs.experts * (1 - missed) * costs.expert_read_s, 0.0)


def expert_tokens(costs: StepCosts, tokens: Values) -> Values:
    """Return the number of tokens of all data-parallel replicas that share the experts."""
    return tokens * costs.expert_replicas


# Values of the step features: pure functions of costs and batch sums, whose shapes broadcast.
#
# The simulator's compiled code (``pinn/simulator/step_formulas.py``) and the Go package
# (``export/go/pinn/step.go``) repeat these formulas; tests compare all three.

#: Rows of a typical tile of a matrix product (CUTLASS: 128 x 128 and 128 x 256). A step with up to
#: this many tokens needs only one row of tiles.
TILE_TOKENS = 128.0

#: Number of tokens from which waves of tiles (one tile per SM) fill the GPU. The value is an
#: assumption: with 128 x 128 tiles, a product of width 4,096 has 256 tiles at 1,024 tokens, about
#: two waves on the 132 SMs of an H100.
WAVE_TOKENS = 1024.0

#: Share of a step's tokens for the feature ``experts_hit_tenth``, which counts the experts that
#: this share would activate under balanced routing. Under skewed routing, all tokens together
#: activate fewer experts.
FEW_TOKENS_SHARE = 0.1

#: Share of a layer's launches that are outside of CUDA graphs in a step with prompts. vLLM's
#: piecewise graphs end where attention begins (``splitting_ops``), so attention kernels, the write
#: to the KV cache and the next piece are launched one by one. The value is a ratio of launch-bound
#: step times of Qwen3.6-35B-A3B on B300 (vLLM 0.20.1): 16.5 ms up to the size of the largest graph,
#: 40 ms beyond it.
PIECES = 0.41

#: Inverse relative width of the transition above the largest CUDA graph: steps of at least 1 + 1 /
#: 8 of its size are launched layer by layer.
RAMP = 8.0

#: Host work hidden by asynchronous scheduling, per step and per request. The units are the host
#: work that the GPU waits for even then: the prior coefficients of the features ``step`` (0.2 ms)
#: and ``request`` (3 us). The hidden work was timed in vLLM 0.12.0's own engine core, scheduler and
#: model runner, without the forward pass and sampling (``scripts/time_vllm_host.py``). In six runs
#: on a shared CPU it took 0.38 to 0.60 ms per step and 11 to 21 us per request; 0.5 ms and 18 us
#: are used.
HIDDEN_STEP, HIDDEN_REQUEST = 2.5, 6.0

#: Maximum bytes of a message that vLLM's own all-reduce kernel sends (custom_all_reduce.py:
#: max_size = 8192 * 1024).
CUSTOM_BYTES = 2.0**23


def busy(sums: BatchSums) -> Values:
    """Return 1 for batches with requests, 0 for empty ones."""
    return np.where(sums.tokens > 0, 1.0, 0.0)


def host_steps(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the host's work per step, relative to that with asynchronous scheduling."""
    return busy(sums) * (1.0 + HIDDEN_STEP * costs.waits_for_host)


def host_requests(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the host's work on all requests, relative to one with asynchronous scheduling."""
    return sums.requests * (1.0 + HIDDEN_REQUEST * costs.waits_for_host)


def gemm(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the time of matrix products except routed experts, max(read, compute), in seconds."""
    return np.maximum(costs.gemm_weights_s * busy(sums), gemm_compute_s(costs, sums))


def experts(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the time in seconds of the routed experts: the longer of reading and computing.

    Read are the weights of the experts that one token uses. Computed are the experts' results for
    all tokens.
    """
    return np.maximum(topk_expert_read_s(costs) * busy(sums), expert_compute_s(costs, sums))


def experts_hit(costs: StepCosts, sums: BatchSums, share: float = 1.0) -> Values:
    """Return the time to read the experts that a share of a step's tokens uses, in seconds.

    The experts of one token are not counted, because :func:`experts` includes their time.
    """
    hit = hit_expert_read_s(costs, sums.tokens * share)
    return np.maximum(hit - topk_expert_read_s(costs), 0.0)


def message_tokens(costs: StepCosts, message_bytes: float) -> Values:
    """Return the number of tokens whose all-reduce message has ``message_bytes`` bytes."""
    return message_bytes / costs.all_reduce_token_bytes


def first_bytes(costs: StepCosts, sums: BatchSums, message_bytes: float) -> Values:
    """Return the all-reduce time of each message's first ``message_bytes`` bytes, in seconds."""
    tokens = np.minimum(sums.tokens, message_tokens(costs, message_bytes))
    return costs.small_all_reduce_token_s * tokens


def eager_layers(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the number of layers launched eagerly, without a CUDA graph.

    CUDA graphs cover steps of up to ``graph_tokens`` tokens. vLLM switches exactly at that size.
    Here the share of eager layers rises linearly from this size to 1/8 above it, because training
    data and predictions are averages over prompts of several lengths. If ``graph_requests`` limits
    graphs, they cover decodes only, and only prompt tokens are compared with ``graph_tokens``.
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
    """Return the time to read the keys and values cached before each prefill chunk, in seconds."""
    return (
        costs.kv_read_s * sums.prefill_cached
        + costs.windowed_kv_read_s * sums.windowed_prefill_cached
    )


def kv_read(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the time in seconds of decodes to read their keys and values from the KV cache.

    The time is scaled by the ratio of the engine's to vLLM's attention kernel time.
    """
    return costs.decode_attention_time * (
        costs.kv_read_s * sums.decode_context
        + costs.windowed_kv_read_s * sums.windowed_decode_context
    )


def decode_attention(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the time of decode attention, max(memory, arithmetic), in seconds."""
    return np.maximum(
        kv_read(costs, sums),
        costs.decode_attention_time
        * (
            costs.decode_pair_s * sums.decode_context
            + costs.windowed_decode_pair_s * sums.windowed_decode_context
        ),
    )


def prefill_attention(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the time of prefill attention, max(memory, arithmetic, longest pass), in seconds.

    The longest pass is that of one thread block over all keys of the longest chunk. It decides how
    long a short chunk after many cached tokens takes if the kernel does not split keys.
    """
    arithmetic = (
        costs.prefill_pair_s * sums.prefill_pairs
        + costs.windowed_prefill_pair_s * sums.windowed_prefill_pairs
    )
    longest = costs.prefill_key_s * sums.longest_prefill
    return np.maximum(np.maximum(prefill_kv_read(costs, sums), arithmetic), longest)


def expert_compute_beyond_wave(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the time in seconds of routed experts' arithmetic beyond ``WAVE_TOKENS`` tokens."""
    return costs.expert_token_s * np.maximum(expert_tokens(costs, sums.tokens) - WAVE_TOKENS, 0.0)


def expert_activations(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the time in seconds to gather and scatter hidden states of all replicas' tokens."""
    return costs.expert_activation_token_s * sums.tokens * costs.expert_replicas


def large_all_reduces(costs: StepCosts, sums: BatchSums) -> Values:
    """Return the number of all-reduces whose message is too long for one-shot kernels."""
    large = costs.all_reduce_token_bytes * sums.tokens > costs.one_shot_bytes
    return np.where(large, costs.all_reduces, 0.0)
