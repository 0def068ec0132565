"""Step features of one batch as plain numbers, for compiled code.

``pinn.surrogate.step_features`` and ``pinn.physics.step_values`` define the features and their
constants. ``tests/simulator/test_step_kernel.py`` compares this module with these definitions.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from pinn.physics.step_values import HIDDEN_REQUEST, HIDDEN_STEP, PIECES
from pinn.simulator.compiler import inner

#: Sums over one batch: the fields of ``pinn.physics.batch_sums.BatchSums``.
Sums = namedtuple("Sums", (
    "prefill_requests", "decode_requests", "prefill_tokens", "decode_context", "prefill_cached",
    "prefill_pairs", "windowed_decode_context", "windowed_prefill_cached", "windowed_prefill_pairs",
    "longest_prefill", "padding",
))  # fmt: skip
#: Step features computed by compiled code, by their names in ``STEP_FEATURES``.
StepValues = namedtuple("StepValues", (
    "step", "layer", "moe_layer", "quantized_layer", "parallel_layer", "launched_layer",
    "prefill_layer", "decode_layer", "request", "sampling", "activations", "gemm", "gemm_weights",
    "gemm_compute", "gemm_beyond_128", "gemm_beyond_1024", "experts", "experts_hit",
    "experts_hit_tenth", "expert_compute", "expert_compute_beyond_1024", "expert_activations",
    "decode_attention", "kv_read", "prefill_attention", "prefill_tokens", "prefill_kv_read",
    "all_reduce", "all_reduce_first_256k", "all_reduce_first_8m", "large_all_reduce",
    "expert_exchange", "pipeline", "cpu_offload"
))  # fmt: skip


@inner
def step_formulas(c: np.record, sums: Sums) -> StepValues:
    """Return the step features of one batch from the costs ``c`` and the batch's sums."""
    tokens = sums.prefill_tokens + sums.decode_requests + sums.padding
    busy = 1.0 if tokens > 0.0 else 0.0
    requests = sums.prefill_requests + sums.decode_requests
    gemm_compute_s = c.gemm_token_s * tokens + c.head_sequence_s * requests
    topk_expert_read_s = c.experts * c.expert_share * c.expert_read_s
    expert_compute_s = c.expert_token_s * tokens * c.expert_replicas
    expert_tokens = tokens * c.expert_replicas
    kv_read = c.decode_attention_time * (
        c.kv_read_s * sums.decode_context + c.windowed_kv_read_s * sums.windowed_decode_context
    )
    prefill_kv_read = (
        c.kv_read_s * sums.prefill_cached + c.windowed_kv_read_s * sums.windowed_prefill_cached
    )
    if c.graph_requests > 0.0:  # only decode-only steps have CUDA graphs
        captured_tokens, limited_requests = sums.prefill_tokens, sums.decode_requests
    else:
        captured_tokens, limited_requests = tokens, 0.0
    if c.graph_tokens <= 0.0:
        eager_share = busy
    elif limited_requests > c.graph_requests:
        eager_share = 1.0
    else:
        over = captured_tokens / max(c.graph_tokens, 1.0) - 1.0
        pieces = PIECES if c.graph_tokens > 1.0 else 1.0
        eager_share = min(max(8.0 * over, pieces if sums.prefill_tokens > 0.0 else 0.0), 1.0)
    prefill_layers = c.layers if sums.prefill_requests > 0.0 else 0.0
    decode_layers = c.layers * c.decode_attention_time if sums.decode_requests > 0.0 else 0.0
    hit_expert_read_s = hit_expert_read_tenth_s = 0.0
    if c.experts > 0.0:
        missed = 1.0 - c.expert_share
        hit_expert_read_s = c.experts * (1.0 - missed**expert_tokens) * c.expert_read_s
        tenth = 1.0 - missed ** (tokens * 0.1 * c.expert_replicas)
        hit_expert_read_tenth_s = c.experts * tenth * c.expert_read_s
    message_bytes = c.all_reduce_token_bytes * tokens
    large_all_reduces = c.all_reduces if message_bytes > c.one_shot_bytes else 0.0
    return StepValues(
        busy * (1.0 + HIDDEN_STEP * c.waits_for_host),
        c.layers * busy,
        c.moe_layers * busy,
        c.quantized_layers * busy,
        c.parallel_layers * busy,
        c.launched_layers * eager_share,
        prefill_layers,
        decode_layers,
        requests * (1.0 + HIDDEN_REQUEST * c.waits_for_host),
        c.sampled_step_s * busy + c.sampled_request_s * requests,
        c.activation_token_s * tokens,
        max(c.gemm_weights_s * busy, gemm_compute_s),
        c.gemm_weights_s * busy,
        gemm_compute_s,
        c.gemm_token_s * max(tokens - 128.0, 0.0),
        c.gemm_token_s * max(tokens - 1024.0, 0.0),
        max(topk_expert_read_s * busy, expert_compute_s),
        max(hit_expert_read_s - topk_expert_read_s, 0.0),
        max(hit_expert_read_tenth_s - topk_expert_read_s, 0.0),
        expert_compute_s,
        c.expert_token_s * max(expert_tokens - 1024.0, 0.0),
        c.expert_activation_token_s * tokens * c.expert_replicas,
        max(
            kv_read,
            c.decode_attention_time
            * (
                c.decode_pair_s * sums.decode_context
                + c.windowed_decode_pair_s * sums.windowed_decode_context
            ),
        ),
        kv_read,
        max(
            prefill_kv_read,
            c.prefill_pair_s * sums.prefill_pairs
            + c.windowed_prefill_pair_s * sums.windowed_prefill_pairs,
            c.prefill_key_s * sums.longest_prefill,
        ),
        c.prefill_token_s * sums.prefill_tokens,
        prefill_kv_read,
        c.all_reduce_token_s * tokens,
        c.small_all_reduce_token_s * min(tokens, 262144.0 / c.all_reduce_token_bytes),
        c.small_all_reduce_token_s * min(tokens, 8388608.0 / c.all_reduce_token_bytes),
        large_all_reduces,
        c.exchange_token_s * tokens,
        c.pipeline_token_s * tokens,
        c.offload_s * busy,
    )
