"""Matrix multiplications and attention as operators."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from pinn.kernels.hardware import Hardware
from pinn.kernels.operator import (
    Operator,
    Rows,
    Sizes,
    TrainingPlan,
    ceiling_share,
    logarithm,
    octaves,
)
from pinn.kernels.tables.work import Work, decode_work, gemm_work, prefill_work, window_keys

# Matrix multiplications.

# Narrower matrices are launches; the tables' kernels for them do not order by size. Quarters of an
# octave hold the usual widths (1280, 1792, 3584, 14336, ...).
_WIDTHS = np.unique(
    np.concatenate([octaves(64, 1024, 2), octaves(1024, 32768, 4), octaves(32768, 262144, 2)])
)
_DEPTHS = _WIDTHS[(_WIDTHS >= 128) & (_WIDTHS <= 65536)]
_TOKENS = np.concatenate([[1.0], octaves(2, 65536, 2)])


class Gemm(Operator):
    """``[m, k] x [k, n]``, the second operand in the format of the weights."""

    name = "gemm"
    axes = ("m", "n", "k")
    nodes = (_TOKENS, _WIDTHS, _DEPTHS)
    shape = ()
    format_column = "precision"
    group = ("n", "k")
    plan = TrainingPlan(batch=8192, learning_rate=5e-3, width=96, bound=4.0)

    #: The shortest product of the A100's and H100's tables (2.45 us); on Blackwell 1.5 to 1.8. The
    #: correction is learned on top.
    launch_seconds = 2.5e-6

    def work(self, hw: Hardware, sizes: Sizes) -> Work:
        """The weights, and the operands in 16 bits."""
        return gemm_work(sizes["m"], sizes["n"], sizes["k"], hw.element_bytes)

    def rate(self, hw: Hardware, _sizes: Sizes) -> Rows:
        """That of the format of the weights."""
        return hw.floor_rate

    def floor(self, hw: Hardware, sizes: Sizes) -> Rows:
        """The slower of reading the weights and multiplying."""
        read, _, compute = self.times(hw, sizes)
        return np.maximum(read, compute)

    def inputs(self, hw: Hardware, sizes: Sizes) -> Float[np.ndarray, "rows inputs"]:
        """Columns in this order.

        Log roofline; log weight, activation, compute and tile-padded compute time; log of their
        sum; log m, n, k, waves; per tile height 64, 128, 256: log waves, wave rounding, row
        rounding; weights over cache; narrowness in n and k; single row; few rows; compute over
        memory; 8-bit and 4-bit flags; rate over the bf16 rate; the chip.
        """
        m, n, k = sizes["m"], sizes["n"], sizes["k"]
        read, activations, compute = self.times(hw, sizes)
        padded = compute * (np.ceil(m / 128) * 128 / m) * (np.ceil(n / 128) * 128 / n)
        columns = [
            np.log(self.roofline(hw, sizes) * 1e6),
            logarithm(read, 0.3e-6),
            logarithm(read, 2.5e-6),
            logarithm(activations, 0.1e-6),
            logarithm(compute, 0.3e-6),
            logarithm(compute, 2.5e-6),
            logarithm(padded, 0.3e-6),
            logarithm(read + activations + compute, 1e-6),
            logarithm(np.maximum(read, compute), 10e-6),
            np.log(m),
            np.log(n),
            np.log(k),
            np.log(m * k),
            np.log(m * n),
            np.log(np.ceil(np.ceil(m / 64) * np.ceil(n / 64) / hw.sms)),
            np.log(np.ceil(np.ceil(m / 128) * np.ceil(n / 128) / hw.sms)),
        ]
        for height in (64, 128, 256):
            waves = np.ceil(m / height) * np.ceil(n / 128) / hw.sms
            columns += [np.log(waves), ceiling_share(waves), ceiling_share(m / height)]
        columns += [
            np.log(n * k * hw.element_bytes / hw.cache_bytes),
            np.minimum(n / 128, 1.0),
            np.minimum(k / 256, 1.0),
            (m == 1).astype(np.float64),
            np.minimum(m, 16.0) / 16.0,
            np.clip(np.log(compute / read), -6.0, 6.0),
            (hw.math == 1).astype(np.float64),
            (hw.math == 2).astype(np.float64),
            np.log2(hw.floor_rate / hw.bf16_rate),
        ]
        return np.concatenate([np.stack(columns, axis=1), hw.descriptors()], axis=1)


# Attention over cached keys and values (decode) and over fresh prompts (prefill).

_SEQUENCES = octaves(1, 2048, 1)
_CONTEXT = np.concatenate([[1.0, 16.0], octaves(64, 262144, 1)])
_PROMPT = np.concatenate([[1.0], octaves(16, 512, 1), octaves(512, 32768, 2)[1:]])


def _head_columns(hw: Hardware, sizes: Sizes) -> list[Rows]:
    """Log heads, KV heads, heads per KV head and head width; the cache's format; windowed."""
    return [
        np.log(sizes["heads"]),
        np.log(sizes["kv_heads"]),
        np.log(sizes["heads"] / sizes["kv_heads"]),
        np.log(sizes["head_dim"]),
        (sizes["head_dim"] > 128).astype(np.float64),
        (hw.element_bytes < 1.5).astype(np.float64),
        (sizes["window"] > 0).astype(np.float64),
    ]


_PLAN = TrainingPlan(rows=200_000, batch=8192, learning_rate=5e-3, width=96)


class _Attention(Operator):
    format_column = "kv_precision"
    shape = ("heads", "kv_heads", "head_dim", "window")
    group = ("heads", "kv_heads", "head_dim", "window")
    blanks_unknown_chips = True
    # Launches below are an assumption, about half of the shortest kernels of H100's tables (9 to
    # 10 us), which read something too; the correction is learned on top.

    def rate(self, hw: Hardware, _sizes: Sizes) -> Rows:
        return hw.bf16_rate

    def floor(self, hw: Hardware, sizes: Sizes) -> Rows:
        """Compute at twice the bf16 rate: some kernels multiply in 8 bits."""
        read, _, compute = self.times(hw, sizes)
        return np.maximum(read, compute / 2.0)


class DecodeAttention(_Attention):
    """One new token per sequence; ``context_tokens`` counts it."""

    name = "decode_attention"
    axes = ("sequences", "context_tokens")
    nodes = (_SEQUENCES, _CONTEXT)
    plan = _PLAN
    launch_seconds = 4e-6

    def work(self, hw: Hardware, sizes: Sizes) -> Work:
        """Cached keys and values in the cache's format."""
        own = {name: sizes[name] for name in self.sizes()}
        return decode_work(**own, kv_bytes=hw.element_bytes)

    def inputs(self, hw: Hardware, sizes: Sizes) -> Float[np.ndarray, "rows inputs"]:
        """Columns in this order.

        Log roofline; log read and compute time with a short and a long launch; log sequences and
        visible context; blocks per SM: heads alone and with the context split in 256; compute over
        memory; read bytes over cache; how far the context exceeds the window; heads; the chip.
        """
        read, _, compute = self.times(hw, sizes)
        keys = window_keys(sizes["context_tokens"], sizes["window"])
        blocks = sizes["sequences"] * sizes["kv_heads"] / hw.sms
        columns = [
            np.log(self.roofline(hw, sizes) * 1e6),
            logarithm(read, 0.3e-6),
            logarithm(read, 5e-6),
            logarithm(read, 20e-6),
            logarithm(compute, 0.3e-6),
            logarithm(compute, 5e-6),
            np.log(sizes["sequences"]),
            np.log(keys),
            np.log(blocks),
            ceiling_share(blocks),
            np.log(sizes["sequences"] * sizes["heads"] / hw.sms),
            np.log(np.ceil(blocks * np.ceil(keys / 256))),
            np.clip(np.log(compute / read), -6.0, 6.0),
            np.clip(np.log(read * hw.bandwidth / hw.cache_bytes), -6.0, 6.0),
            np.log(sizes["context_tokens"] / keys),
            *_head_columns(hw, sizes),
        ]
        return np.concatenate([np.stack(columns, axis=1), hw.descriptors()], axis=1)


class PrefillAttention(_Attention):
    """Causal attention of ``sequences`` fresh prompts of ``tokens`` each."""

    name = "prefill_attention"
    axes = ("sequences", "tokens")
    nodes = (_SEQUENCES, _PROMPT)
    plan = replace(_PLAN, bound=4.0)
    launch_seconds = 5e-6

    def work(self, _hw: Hardware, sizes: Sizes) -> Work:
        """Fresh keys and values, 16 bits wide whatever the cache's format."""
        return prefill_work(*(sizes[name] for name in self.sizes()))

    def inputs(self, hw: Hardware, sizes: Sizes) -> Float[np.ndarray, "rows inputs"]:
        """Columns in this order.

        Log roofline; log compute time with a short and a long launch; log memory time; log
        sequences, tokens and their product; tiles of 128 queries per SM, wave and row rounding;
        how far the prompt exceeds the window, the window in tiles; heads; the chip.
        """
        read, activations, compute = self.times(hw, sizes)
        tokens = sizes["tokens"]
        keys = window_keys(tokens, sizes["window"])
        waves = sizes["sequences"] * sizes["heads"] * np.ceil(tokens / 128) / hw.sms
        columns = [
            np.log(self.roofline(hw, sizes) * 1e6),
            logarithm(compute, 0.3e-6),
            logarithm(compute, 5e-6),
            logarithm(compute, 50e-6),
            logarithm(read + activations, 0.3e-6),
            logarithm(read + activations, 5e-6),
            np.log(sizes["sequences"]),
            np.log(tokens),
            np.log(sizes["sequences"] * tokens),
            np.log(waves),
            np.log(np.ceil(waves)),
            ceiling_share(waves),
            ceiling_share(tokens / 128),
            np.log(tokens / keys),
            np.log(np.ceil(keys / 128)),
            *_head_columns(hw, sizes),
        ]
        return np.concatenate([np.stack(columns, axis=1), hw.descriptors()], axis=1)
