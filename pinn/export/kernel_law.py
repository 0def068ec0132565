"""Step-time law (formula for the time of a step) of BLIS's latency kernel.

The law is that of ``blis-latency-kernel`` 0.1 without overlap, as documented there and used by
BLIS. The time of a step with m scheduled tokens is the sum of

- matrix products: FLOP of m + ``gemm_m_half`` tokens at peak x ``gemm_eps_max``;
- weights: bytes of dense weights and of the experts that m tokens activate, at memory bandwidth x
  ``hbm_derate``;
- with decodes: ``attention_decode_floor`` per layer, and reading keys at ``attention_decode_rate``;
- with prompts: ``attention_prefill_floor`` per layer, and the FLOP of the query-key pairs of causal
  attention at the matrix products' efficiency x ``attention_prefill_work_scale``;
- collectives, each of b bytes: the longer of floor + b / transition rate, and b / peak rate;
- the host: ``host_replay_graph_per_step`` up to the largest captured batch, beyond it
  ``host_launch_eager_per_layer``.

The documentation leaves two points open. This module assumes two all-reduces per layer, and CUDA
graphs up to the engine's largest captured size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pinn.engines.deployment import Deployment
from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import StepCosts, model_costs
from pinn.specs.precision import ACTIVATION_BYTES

Seconds = Float[np.ndarray, " batches"]

#: Terms of the law, each with the minimum of its coefficient. The minimum 1.0 keeps a rate at or
#: below the datasheet's. The minimum 0.0 keeps constant times and costs per layer or step
#: non-negative.
LEAST: dict[str, float] = {
    "memory": 1.0,
    "flop": 1.0,
    "decode_floor": 0.0,
    "keys": 1.0,
    "windowed_keys": 1.0,
    "prefill_floor": 0.0,
    "pairs": 1.0,
    "replay": 0.0,
    "eager": 0.0,
    "collective_floor": 0.0,
    "collective_bytes": 0.05,
}


@dataclass(frozen=True)
class KernelLaw:
    """Coefficients of the step-time law for one deployment.

    Attributes:
        terms: Coefficient by name of the term in ``LEAST``: a multiple of the time at peak rates,
            or seconds.
        m_half: ``gemm_m_half``: number of tokens at which matrix products have half of their
            efficiency.
        knee: Number of tokens from which a collective is bandwidth-bound, that is, sends its bytes
            at the peak rate.
    """

    terms: dict[str, float]
    m_half: float
    knee: float

    def seconds(self, deployment: Deployment, sums: BatchSums) -> Seconds:
        """Return the step times of batches according to the law, in seconds."""
        columns = law_columns(deployment, sums, self.m_half, self.knee)
        return columns @ np.array([self.terms[name] for name in LEAST])


def collectives(deployment: Deployment) -> int:
    """Return the number of all-reduces in a step: two per layer under tensor parallelism."""
    return 2 * deployment.model.layers * (deployment.recipe.tensor_parallel_size > 1)


def law_columns(
    deployment: Deployment, sums: BatchSums, m_half: float, knee: float
) -> Float[np.ndarray, "batches terms"]:
    """Return the value of each term of the law for each batch, in the order of ``LEAST``.

    Terms of rates are seconds at the GPU's peak FLOP/s, memory bandwidth or link bandwidth.
    ``decode_floor``, ``prefill_floor`` and ``eager`` are counts of layers, ``replay`` of steps and
    ``collective_floor`` of collectives.

    Args:
        deployment: Deployment whose steps are timed.
        sums: Sums over the requests of each batch.
        m_half: Number of tokens at which matrix products have half of their efficiency.
        knee: Number of tokens m at which a collective turns from latency-bound to bandwidth-bound.
            With a floor f and a transition rate r, the longer of f + b / r and b / peak is then
            f max(1, m / knee) + b / r.
    """
    costs: StepCosts = model_costs([deployment])
    tokens, captured = sums.tokens, sums.tokens <= costs.graph_tokens
    hit = costs.experts * -np.expm1(tokens * np.log1p(-costs.expert_share))
    token_s = costs.gemm_token_s + costs.expert_token_s
    pairs = (
        costs.prefill_pair_s * sums.prefill_pairs
        + costs.windowed_prefill_pair_s * sums.windowed_prefill_pairs
    )
    count = collectives(deployment)
    message_s = message_bytes(deployment) * tokens / deployment.gpu.link_bandwidth_bytes_per_s
    columns = {
        "memory": costs.gemm_weights_s + hit * costs.expert_read_s,
        "flop": token_s * (tokens + m_half) + costs.head_sequence_s * sums.requests,
        "decode_floor": costs.layers * (sums.decode_requests > 0),
        "keys": costs.kv_read_s * sums.decode_context,
        "windowed_keys": costs.windowed_kv_read_s * sums.windowed_decode_context,
        "prefill_floor": costs.layers * (sums.prefill_requests > 0),
        "pairs": pairs * (1 + m_half / np.maximum(tokens, 1)),
        "replay": captured.astype(float),
        "eager": costs.layers * ~captured,
        "collective_floor": count * np.maximum(1.0, tokens / knee),
        "collective_bytes": count * message_s,
    }
    return np.stack([columns[name] for name in LEAST], axis=-1)


def message_bytes(deployment: Deployment) -> float:
    """Return the bytes that one token adds to the message of an all-reduce."""
    return deployment.model.hidden_size * ACTIVATION_BYTES
