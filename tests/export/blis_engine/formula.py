"""BLIS's step time from its inputs: constants of the eleven basis functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blis_engine.config import Inputs


@dataclass(frozen=True)
class Formula:
    """Basis functions per unit of a batch's sums; each is one row of the documented list.

    Attributes:
        token_flop_us: Compute of one token outside attention.
        pair_us: Compute of attention per head and key, both products.
        constants: Terms of weights, layers, step and interleaved layers.
        reduce_us: All-reduces of one token.
        kv_us: Writing or reading one token's keys and values.
        dispatch_us: Dispatch of one token to experts.
        beta: Coefficients.
    """

    token_flop_us: float
    pair_us: float
    weights_us: float
    layers: int
    interleaved: int
    reduce_us: float
    kv_us: float
    dispatch_us: float
    beta: Sequence[float]

    def step_us(self, batch: Sequence[tuple[int, int, int]]) -> int:
        """Return the step time of requests (ProgressIndex, NumNewTokens, InputLen)."""
        prefills = [(new, prompt) for at, new, prompt in batch if at < prompt]
        decodes = [at for at, _, prompt in batch if at >= prompt]
        prompt_tokens = sum(new for new, _ in prefills)
        reach = sum(new * (prompt + new / 2) for new, prompt in prefills)
        tokens = prompt_tokens + len(decodes)
        basis = (
            self.token_flop_us * prompt_tokens + self.pair_us * reach,
            self.token_flop_us * len(decodes) + self.pair_us * sum(decodes),
            self.weights_us,
            self.reduce_us * tokens,
            self.layers,
            len(batch),
            1,
            self.interleaved,
            self.kv_us * prompt_tokens,
            self.kv_us * (sum(decodes) + len(decodes)),
            self.dispatch_us * tokens,
        )
        return max(1, int(sum(b * x for b, x in zip(self.beta, basis, strict=True))))


def formula(inputs: Inputs) -> Formula:
    """Return the formula for the inputs of a command line."""
    m, tp, dp = inputs.model, inputs.flags.tp, inputs.flags.dp
    gpus = tp * dp
    fp8 = inputs.hardware["TFlopsFP8"] if m.weight_bytes == 1 else 0
    flop_per_us = (fp8 or inputs.hardware["TFlopsPeak"]) * 1e6
    bytes_per_us = inputs.hardware["BwPeakTBs"] * 1e6
    head = m.hidden // m.heads
    kv = m.kv_heads * head
    q = 2 * m.hidden + 2 * kv
    moe = (m.layers // (m.interleave + 1) if m.interleave else m.layers) if m.experts else 0
    dense = m.layers - moe
    width = m.dense_intermediate if m.experts else m.intermediate
    k = max(1, m.top_k)
    ffn = 6 * m.hidden * (
        moe * (k * m.expert_width / gpus + m.shared_width / gpus) + dense * width / gpus
    )  # fmt: skip
    held = moe * (m.experts * m.expert_width / gpus + m.shared_width / tp) + dense * width / tp
    volume = m.hidden * m.activation_bytes * 2 * (tp - 1) / (tp * bytes_per_us)
    moe_reduces = moe if m.experts and dp == 1 and tp > 1 else 0
    dispatch = moe / dp * (gpus - 1) / gpus * 2 * m.hidden * m.activation_bytes / bytes_per_us
    return Formula(
        token_flop_us=(2 * m.layers * m.hidden * q / gpus + ffn) / flop_per_us,
        pair_us=m.layers / dp * 4 * (m.heads / tp) * head / flop_per_us,
        weights_us=m.weight_bytes
        * (m.layers * m.hidden * q / tp + 3 * m.hidden * held)
        / bytes_per_us,
        layers=m.layers,
        interleaved=moe if m.interleave else 0,
        reduce_us=volume * ((m.layers + dense) / dp + moe_reduces),
        kv_us=4 * m.layers * (kv / gpus) / bytes_per_us,
        dispatch_us=dispatch if dp > 1 else 0,
        beta=inputs.beta,
    )
