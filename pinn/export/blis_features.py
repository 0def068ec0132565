"""BLIS's eleven basis functions, as its Go code computes them, its simplifications included.

The dispatch of experts is that of its default back end; others multiply it by top-k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pinn.export.blis_model import BlisModel
from pinn.simulator.run import StepRecords
from pinn.simulator.state import PROMPT_REACH

#: Name and unit of the coefficient of each, in the order of ``--beta-coeffs``.
BASIS: dict[str, str] = {
    "prefill_compute": "1",
    "decode_compute": "1",
    "weights": "1",
    "all_reduce": "1",
    "layer": "us/layer",
    "request": "us/request",
    "step": "us/step",
    "interleaved_moe_layer": "us/layer",
    "prefill_kv_write": "1",
    "decode_kv": "1",
    "moe_dispatch": "1",
}

Counts = Float[np.ndarray, " batches"]


@dataclass(frozen=True)
class BlisSums:
    """Per batch, what the basis functions need of it.

    Attributes:
        prefill_tokens: T_p, new tokens of requests that work on their prompt.
        decode_requests: T_d.
        decode_context: C, ProgressIndex of the decodes added up.
        requests: B.
        prompt_reach: Sum over prefills of t (S + t / 2), S the whole prompt.
    """

    prefill_tokens: Counts
    decode_requests: Counts
    decode_context: Counts
    requests: Counts
    prompt_reach: Counts

    def scaled(self, factor: float) -> BlisSums:
        """The sums of ``factor`` such batches together."""
        return BlisSums(*(factor * values for values in vars(self).values()))


def recorded_sums(steps: StepRecords) -> BlisSums:
    """The sums of simulated steps, each of one data-parallel replica."""
    sums = steps.sums
    return BlisSums(
        sums.prefill_tokens,
        sums.decode_requests,
        # A decode's own token is a key of its step, but not yet progress.
        steps["decode_context"] - sums.decode_requests,
        sums.requests,
        steps[PROMPT_REACH],
    )


def blis_features(m: BlisModel, s: BlisSums) -> Float[np.ndarray, "batches basis"]:
    """The basis functions X of batches, times in microseconds.

    Args:
        m: What BLIS knows of the deployment.
        s: Batches of all data-parallel replicas together.
    """
    tp, dp, group = m.tensor_parallel, m.data_parallel, m.tensor_parallel * m.data_parallel
    flop_per_us, bytes_per_us = m.peak_tflops * 1e6, m.bandwidth_tb_s * 1e6
    d, d_h, a = m.hidden_size, m.head_dim, m.activation_bytes
    k_v = m.kv_heads * d_h
    q = 2 * d + 2 * k_v
    moe, dense = m.moe_layers, m.dense_layers
    tokens = s.prefill_tokens + s.decode_requests
    routed, shared = m.top_k * m.expert_width / group, m.shared_width / (tp * dp)
    ffn = 6 * d * (moe * (routed + shared) + dense * m.dense_width / (tp * dp))
    attention = m.layers / dp * 4 * (m.heads / tp) * d_h
    projections = 2 * m.layers * d * q / (tp * dp)
    stored = m.experts * m.expert_width / group + m.shared_width / tp
    weights = m.layers * d * q * m.weight_bytes / tp + 3 * d * m.weight_bytes * (
        moe * stored + dense * m.dense_width / tp
    )
    reduce_us = tokens * d * a * 2 * (tp - 1) / (tp * bytes_per_us)
    reduces = (m.layers + dense) / dp + (moe if moe and dp == 1 and tp > 1 else 0)
    kv_us = 4 * m.layers * (k_v / (tp * dp)) / bytes_per_us
    dispatch_us = moe * (tokens / dp) * ((group - 1) / group) * 2 * d * a / bytes_per_us
    ones = np.ones_like(tokens)
    columns = (
        ((projections + ffn) * s.prefill_tokens + attention * s.prompt_reach) / flop_per_us,
        ((projections + ffn) * s.decode_requests + attention * s.decode_context) / flop_per_us,
        weights / bytes_per_us * ones,
        reduce_us * reduces,
        m.layers * ones,
        s.requests,
        ones,
        (moe if m.interleave else 0) * ones,
        kv_us * s.prefill_tokens,
        kv_us * (s.decode_context + s.decode_requests),
        dispatch_us if dp > 1 else 0 * ones,
    )
    return np.stack(columns, axis=-1)


def blis_step_us(
    features: Float[np.ndarray, "batches basis"], beta: Float[np.ndarray, " basis"]
) -> Float[np.ndarray, " batches"]:
    """BLIS's step time: the sum of beta x X, cut to whole microseconds, at least 1."""
    return np.maximum(np.trunc(features @ beta), 1.0)
