"""What the step features measure, and what an entry of their registry says."""

import numpy as np
from jaxtyping import Float

from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import StepCosts

#: Of costs and batch sums that broadcast together.
Values = Float[np.ndarray, "..."]

# The physical floor of a step: no engine can be faster on this GPU.


def floor_seconds(costs: StepCosts, sums: BatchSums, shared: BatchSums | None = None) -> Values:
    """Lower bound of a step's duration: max(FLOPs / peak, bytes that must be read / bandwidth).

    Of the routed experts only those that one token needs are counted, since any routing may send
    all tokens to the same ones; of the KV cache what lies in memory before the step. Offloaded
    weights cross PCIe whatever else happens. An empty batch takes no time.

    Args:
        costs: Of the deployments, broadcast against ``sums``.
        sums: Of the batches.
        shared: What the experts of data-parallel ranks work on, per rank; by default as ``sums``.
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
    """Arithmetic of projections, dense and shared layers and the output head."""
    return costs.gemm_token_s * sums.tokens + costs.head_sequence_s * sums.requests


def expert_compute_s(costs: StepCosts, sums: BatchSums) -> Values:
    """Arithmetic of the routed experts for the tokens of all data-parallel replicas."""
    return costs.expert_token_s * sums.tokens * costs.expert_replicas


def topk_expert_read_s(costs: StepCosts) -> Values:
    """Reading the experts that a single token needs, on the GPU that holds an average share."""
    return costs.experts * costs.expert_share * costs.expert_read_s


def hit_expert_read_s(costs: StepCosts, tokens: Values) -> Values:
    """Reading every expert hit by at least one of each replica's tokens, balanced routing.

    With T tokens, each using an expert with chance k / N independently, N (1 - (1 - k/N)^T) are
    hit in expectation.
    """
    missed = (1 - costs.expert_share) ** expert_tokens(costs, tokens)
    # Compiled code leaves out the power, which takes long, where there are no experts.
    return np.where(costs.experts > 0, costs.experts * (1 - missed) * costs.expert_read_s, 0.0)


def expert_tokens(costs: StepCosts, tokens: Values) -> Values:
    """Tokens of all the data-parallel replicas that share the experts."""
    return tokens * costs.expert_replicas


# What the step features measure: pure functions of costs and batch sums, broadcast together.
#
# The simulator's compiled code (``pinn/simulator/step_formulas.py``) and the Go package
# (``export/go/pinn/step.go``) have them again; tests compare all three.

#: Rows of a usual tile of a matrix product (CUTLASS: 128 x 128 and 128 x 256): up to it more tokens
#: cost no more tiles.
TILE_TOKENS = 128.0

#: Tokens from which waves of tiles fill the GPU. An assumption: with 128 x 128 tiles a product of
#: width 4,096 has 256 of them at 1,024 tokens, two waves on the 132 SMs of an H100.
WAVE_TOKENS = 1024.0

#: Share of a step's tokens whose experts are read under skewed routing. An assumption.
FEW_TOKENS_SHARE = 0.1

#: Up to here vLLM's own all-reduce sends everything to everyone in one shot, with more than 4 GPUs
#: (csrc/custom_all_reduce.cuh; 512 KiB for up to 4).
ONE_SHOT_BYTES = 2.0**18

#: Share of a layer's launches that graphs leave to a step of many prompt tokens: vLLM's piecewise
#: graphs end where attention begins (``splitting_ops``), so its kernels, the write of the cache and
#: the next piece are launched one by one, about half of ten. An assumption.
BETWEEN_GRAPHS = 0.5

#: Prompt tokens from which all of them count; of fewer, launches hide behind the step before. An
#: assumption, found like the former in fits to all rows, left-out models' too, and confirmed by
#: fits that leave a second model out (``scripts/inner_folds.py``; LOG.md).
BETWEEN_TOKENS = 1024.0

#: Beyond the captured size, all of a step is launched layer by layer from 1 + 1 / 8 of it on.
RAMP = 8.0

#: Largest message of vLLM's own all-reduce (custom_all_reduce.py: max_size = 8192 * 1024).
CUSTOM_BYTES = 2.0**23


def busy(sums: BatchSums) -> Values:
    """1 where the batch has work, 0 for an empty one."""
    return np.where(sums.tokens > 0, 1.0, 0.0)


def gemm(costs: StepCosts, sums: BatchSums) -> Values:
    """The larger of reading all but the routed experts' weights once and their arithmetic."""
    return np.maximum(costs.gemm_weights_s * busy(sums), gemm_compute_s(costs, sums))


def experts(costs: StepCosts, sums: BatchSums) -> Values:
    """The larger of reading one token's experts and the arithmetic of all tokens'."""
    return np.maximum(topk_expert_read_s(costs) * busy(sums), expert_compute_s(costs, sums))


def experts_hit(costs: StepCosts, sums: BatchSums, share: float = 1.0) -> Values:
    """Reading the experts beyond one token's that a share of the tokens hits."""
    hit = hit_expert_read_s(costs, sums.tokens * share)
    return np.maximum(hit - topk_expert_read_s(costs), 0.0)


def message_tokens(costs: StepCosts, message_bytes: float) -> Values:
    """Tokens whose all-reduce message has so many bytes."""
    return message_bytes / costs.all_reduce_token_bytes


def first_bytes(costs: StepCosts, sums: BatchSums, message_bytes: float) -> Values:
    """All-reduce time of the tokens that fit in the first bytes of a message."""
    tokens = np.minimum(sums.tokens, message_tokens(costs, message_bytes))
    return costs.small_all_reduce_token_s * tokens


def eager_layers(costs: StepCosts, sums: BatchSums) -> Values:
    """Graphs are captured up to some tokens; a step of more is launched layer by layer.

    vLLM's own rule is a jump at that size; here it is spread over the eighth above it, since means
    over prompts of several lengths are learned from and asked for. Where graphs are limited by
    requests, they are of decodes alone, and only prompts' tokens count.
    """
    tokens = np.where(costs.graph_requests > 0, sums.prefill_tokens, sums.tokens)
    over = tokens / np.maximum(costs.graph_tokens, 1.0) - 1.0
    between = BETWEEN_GRAPHS * np.minimum(sums.prefill_tokens / BETWEEN_TOKENS, 1.0)
    share = np.minimum(np.maximum(RAMP * over, between), 1.0)
    limited = np.where(costs.graph_requests > 0, sums.decode_requests, 0.0)
    beyond = np.where(limited > costs.graph_requests, 1.0, 0.0)
    eager = np.where(costs.graph_tokens > 0, np.maximum(share, beyond), busy(sums))
    return costs.launched_layers * eager


def prefill_kv_read(costs: StepCosts, sums: BatchSums) -> Values:
    """Reading the keys and values that were cached before each prefill chunk."""
    return (
        costs.kv_read_s * sums.prefill_cached
        + costs.windowed_kv_read_s * sums.windowed_prefill_cached
    )


def kv_read(costs: StepCosts, sums: BatchSums) -> Values:
    """Reading the keys and values of decodes, as the engine's kernels do."""
    return costs.decode_attention_time * (
        costs.kv_read_s * sums.decode_context
        + costs.windowed_kv_read_s * sums.windowed_decode_context
    )


def decode_attention(costs: StepCosts, sums: BatchSums) -> Values:
    """The larger of reading and arithmetic of decodes."""
    return np.maximum(
        kv_read(costs, sums),
        costs.decode_attention_time
        * (
            costs.decode_pair_s * sums.decode_context
            + costs.windowed_decode_pair_s * sums.windowed_decode_context
        ),
    )


def prefill_attention(costs: StepCosts, sums: BatchSums) -> Values:
    """The larger of reading cached keys and values and the causal arithmetic."""
    return np.maximum(
        prefill_kv_read(costs, sums),
        costs.prefill_pair_s * sums.prefill_pairs
        + costs.windowed_prefill_pair_s * sums.windowed_prefill_pairs,
    )


def expert_compute_beyond_wave(costs: StepCosts, sums: BatchSums) -> Values:
    """Arithmetic of the experts for tokens of all replicas beyond ``WAVE_TOKENS``."""
    return costs.expert_token_s * np.maximum(expert_tokens(costs, sums.tokens) - WAVE_TOKENS, 0.0)


def expert_activations(costs: StepCosts, sums: BatchSums) -> Values:
    """Gathering and scattering the tokens of all replicas."""
    return costs.expert_activation_token_s * sums.tokens * costs.expert_replicas


def large_all_reduces(costs: StepCosts, sums: BatchSums) -> Values:
    """All-reduces of more than ``ONE_SHOT_BYTES``."""
    large = costs.all_reduce_token_bytes * sums.tokens > ONE_SHOT_BYTES
    return np.where(large, costs.all_reduces, 0.0)
