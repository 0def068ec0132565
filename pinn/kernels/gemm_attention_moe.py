"""Kernel types: matrix multiplication, attention and routed experts, with their rooflines."""

from dataclasses import replace

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from pinn.kernels import operator
from pinn.kernels.hardware import Hardware
from pinn.kernels.operator import Operator, Rows, Sizes, TrainingPlan, octaves
from pinn.kernels.tables import work
from pinn.specs.precision import precision

# Matrix multiplications, such as projections.

# Lattice positions along m, n and k. Launch time dominates products narrower than 64, so their
# times do not increase with size. Quarters of an octave include the usual widths (1280, 1792, 3584,
# 14336, ...).
_WIDTHS = np.unique(
    np.concatenate([octaves(64, 1024, 2), octaves(1024, 32768, 4), octaves(32768, 262144, 2)])
)
_DEPTHS = _WIDTHS[(_WIDTHS >= 128) & (_WIDTHS <= 65536)]
_TOKENS = np.concatenate([[1.0], octaves(2, 65536, 2)])


class Gemm(Operator):
    """Matrix product ``[m, k] x [k, n]`` of activations and weights in a number format."""

    name = "gemm"
    axes = ("m", "n", "k")
    nodes = (_TOKENS, _WIDTHS, _DEPTHS)
    shape = ()
    format_column = "precision"
    group = ("n", "k")
    plan = TrainingPlan(batch=8192, learning_rate=5e-3, width=96, bound=4.0)

    #: Launch time in seconds. The shortest products in the tables take somewhat longer: 2.45 us on
    #: A100 and H100, 1.5 to 1.8 us on Blackwell. The network corrects the roofline.
    launch_seconds = 2.5e-6

    def work(self, hw: Hardware, sizes: Sizes) -> work.Work:
        """Return the work of each row: FLOP, and bytes of weights and 16-bit activations."""
        return work.gemm_work(sizes["m"], sizes["n"], sizes["k"], hw.element_bytes)

    def rate(self, hw: Hardware, _sizes: Sizes) -> Rows:
        """Return the GPU's peak FLOP/s in each row's weight format."""
        return hw.floor_rate

    def floor(self, hw: Hardware, sizes: Sizes) -> Rows:
        """Return the lower bound in seconds: the longer of reading weights and multiplying."""
        read, _, compute = self.times(hw, sizes)
        return np.maximum(read, compute)

    def inputs(self, hw: Hardware, sizes: Sizes) -> Float[np.ndarray, "rows inputs"]:
        """Return the network's inputs, with these columns in order.

        - logs of the times of: roofline, reading weights, moving activations, computing, computing
          padded tiles, the sum of these, and the maximum of reading and computing
        - logs of m, n, k, m k and m n
        - logs of the waves of 64 x 64 and of 128 x 128 tiles
        - for tiles of 64, 128 and 256 rows: log of the waves, and logs of the factors by which
          rounding up to whole waves and to whole tiles increases work
        - log of the ratio of the weight bytes to the L2 cache size
        - n / 128 and k / 256, at most 1; flag for a single row; m / 16, at most 1
        - log of the ratio of computing to reading time
        - flags for 8-bit and 4-bit math; log of the ratio of the FLOP/s to that of bf16
        - columns of the GPU
        """
        m, n, k = sizes["m"], sizes["n"], sizes["k"]
        read, activations, compute = self.times(hw, sizes)
        padded = compute * (np.ceil(m / 128) * 128 / m) * (np.ceil(n / 128) * 128 / n)
        columns = [
            np.log(self.roofline(hw, sizes) * 1e6),
            operator.logarithm(read, 0.3e-6),
            operator.logarithm(read, 2.5e-6),
            operator.logarithm(activations, 0.1e-6),
            operator.logarithm(compute, 0.3e-6),
            operator.logarithm(compute, 2.5e-6),
            operator.logarithm(padded, 0.3e-6),
            operator.logarithm(read + activations + compute, 1e-6),
            operator.logarithm(np.maximum(read, compute), 10e-6),
            *map(np.log, (m, n, k, m * k, m * n)),
            np.log(np.ceil(np.ceil(m / 64) * np.ceil(n / 64) / hw.sms)),
            np.log(np.ceil(np.ceil(m / 128) * np.ceil(n / 128) / hw.sms)),
        ]
        for height in (64, 128, 256):
            waves = np.ceil(m / height) * np.ceil(n / 128) / hw.sms
            columns += [np.log(waves), *map(operator.ceiling_share, (waves, m / height))]
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


# Attention of decodes to cached keys and values, and attention within new prompts.

_SEQUENCES = octaves(1, 2048, 1)
_CONTEXT = np.concatenate([[1.0, 16.0], octaves(64, 262144, 1)])
_PROMPT = np.concatenate([[1.0], octaves(16, 512, 1), octaves(512, 32768, 2)[1:]])


def _head_columns(hw: Hardware, sizes: Sizes) -> list[Rows]:
    """Return the network's inputs for the heads: logs of their number and width, and flags.

    The flags mark heads wider than 128, number formats of less than 1.5 bytes, and windows.
    """
    heads, kv_heads, width = sizes["heads"], sizes["kv_heads"], sizes["head_dim"]
    flags = width > 128, hw.element_bytes < 1.5, sizes["window"] > 0
    logs = map(np.log, (heads, kv_heads, heads / kv_heads, width))
    return [*logs, *(flag.astype(np.float64) for flag in flags)]


_PLAN = TrainingPlan(rows=200_000, batch=8192, learning_rate=5e-3, width=96)


class _Attention(Operator):
    format_column = "kv_precision"
    shape = ("heads", "kv_heads", "head_dim", "window")
    group = ("heads", "kv_heads", "head_dim", "window")
    blanks_unknown_chips = True
    # The launch times of both kinds of attention are assumed: about half of the shortest kernels
    # measured on H100 (9 to 10 us), whose times include reads. The network corrects the roofline.

    def rate(self, hw: Hardware, _sizes: Sizes) -> Rows:
        return hw.bf16_rate

    def floor(self, hw: Hardware, sizes: Sizes) -> Rows:
        """Return the lower bound in seconds, at twice the bf16 FLOP/s (kernels may use 8 bits)."""
        read, _, compute = self.times(hw, sizes)
        return np.maximum(read, compute / 2.0)


class DecodeAttention(_Attention):
    """Attention of one new token per sequence; ``context_tokens`` includes the new token."""

    name = "decode_attention"
    axes = ("sequences", "context_tokens")
    nodes = (_SEQUENCES, _CONTEXT)
    plan = _PLAN
    launch_seconds = 4e-6

    def work(self, hw: Hardware, sizes: Sizes) -> work.Work:
        """Return the work of each row: FLOP, and bytes of the keys and values that are read.

        Keys and values have the number format of the KV cache.
        """
        own = {name: sizes[name] for name in self.sizes()}
        return work.decode_work(**own, kv_bytes=hw.element_bytes)

    def inputs(self, hw: Hardware, sizes: Sizes) -> Float[np.ndarray, "rows inputs"]:
        """Return the network's inputs, with these columns in order.

        - log of the roofline
        - logs of read time and compute time, each levelling off below a few launch times
        - logs of sequences, of visible keys, and of thread blocks (one per KV head) per SM
        - log of the factor by which rounding up to whole waves of blocks increases work
        - logs of query heads per SM, and of waves of blocks of at most 256 keys
        - logs of ratios: compute to read time, read bytes to L2 cache, context to visible keys
        - columns of the heads and of the GPU
        """
        read, _, compute = self.times(hw, sizes)
        keys = work.window_keys(sizes["context_tokens"], sizes["window"])
        blocks = sizes["sequences"] * sizes["kv_heads"] / hw.sms
        columns = [
            np.log(self.roofline(hw, sizes) * 1e6),
            *(operator.logarithm(read, launch) for launch in (0.3e-6, 5e-6, 20e-6)),
            *(operator.logarithm(compute, launch) for launch in (0.3e-6, 5e-6)),
            *map(np.log, (sizes["sequences"], keys, blocks)),
            operator.ceiling_share(blocks),
            np.log(sizes["sequences"] * sizes["heads"] / hw.sms),
            np.log(np.ceil(blocks * np.ceil(keys / 256))),
            np.clip(np.log(compute / read), -6.0, 6.0),
            np.clip(np.log(read * hw.bandwidth / hw.cache_bytes), -6.0, 6.0),
            np.log(sizes["context_tokens"] / keys),
            *_head_columns(hw, sizes),
        ]
        return np.concatenate([np.stack(columns, axis=1), hw.descriptors()], axis=1)


class PrefillAttention(_Attention):
    """Causal attention within ``sequences`` new prompts of ``tokens`` tokens each."""

    name = "prefill_attention"
    axes = ("sequences", "tokens")
    nodes = (_SEQUENCES, _PROMPT)
    plan = replace(_PLAN, bound=4.0)
    launch_seconds = 5e-6

    def work(self, _hw: Hardware, sizes: Sizes) -> work.Work:
        """Return the work of each row: FLOP, and bytes of new keys and values in 16 bits."""
        return work.prefill_work(*(sizes[name] for name in self.sizes()))

    def inputs(self, hw: Hardware, sizes: Sizes) -> Float[np.ndarray, "rows inputs"]:
        """Return the network's inputs, with these columns in order.

        - log of the roofline
        - logs of compute time and memory time, each levelling off below a few launch times
        - logs of sequences, of tokens per sequence, and of their product
        - logs of tiles of 128 queries per SM, and of whole waves of these tiles
        - logs of the factors by which rounding up to whole waves and to whole tiles increases work
        - logs of the ratio of the prompt to its visible keys, and of the visible keys in tiles
        - columns of the heads and of the GPU
        """
        read, activations, compute = self.times(hw, sizes)
        tokens = sizes["tokens"]
        keys = work.window_keys(tokens, sizes["window"])
        waves = sizes["sequences"] * sizes["heads"] * np.ceil(tokens / 128) / hw.sms
        columns = [
            np.log(self.roofline(hw, sizes) * 1e6),
            *(operator.logarithm(compute, launch) for launch in (0.3e-6, 5e-6, 50e-6)),
            *(operator.logarithm(read + activations, launch) for launch in (0.3e-6, 5e-6)),
            *map(np.log, (sizes["sequences"], tokens, sizes["sequences"] * tokens)),
            *map(np.log, (waves, np.ceil(waves))),
            operator.ceiling_share(waves),
            operator.ceiling_share(tokens / 128),
            np.log(tokens / keys),
            np.log(np.ceil(keys / 128)),
            *_head_columns(hw, sizes),
        ]
        return np.concatenate([np.stack(columns, axis=1), hw.descriptors()], axis=1)


# Routed experts of a mixture-of-experts layer on one rank.

#: Kernel families of experts. Those of bf16, weight-only and mxfp4 formats compute in 16 bits.
FAMILIES = ("bf16", "fp8", "fp8_block", "weight_only", "mxfp4", "nvfp4", "mxfp4_mxfp8")
_EXPERT_TOKENS = np.concatenate([[1.0], octaves(2, 32768, 2)])


def family(hw: Hardware) -> Int[np.ndarray, " rows"]:
    """Return the kernel family that vLLM selects for a format on a GPU.

    Marlin (``weight_only``) expands the weights of formats without tensor cores on the GPU. mxfp4
    has separate kernels on Hopper and on data-center Blackwell, with 8-bit activations only on
    Blackwell.

    Marlin uses Ampere's matrix instructions, which are far below the bf16 rate of newer GPUs. From
    8,192 tokens on, vLLM 0.24.0's Marlin reaches 258 TFLOP/s on B200 and 240 on H100, and 16-bit
    experts reach 745 and 398 (medians of the measured kernels). Steps of that size therefore take
    longer with int4 experts than with 16-bit experts.
    """
    own_mxfp4 = (hw.capability >= 9.0) & (hw.capability < 11.0)
    blackwell = (hw.capability >= 10.0) & (hw.capability < 11.0)
    mxfp4 = np.where(own_mxfp4, 4, 3)
    native = np.where(hw.math > 0, 1, 3)
    by_format: dict[str, int | np.ndarray] = {
        **dict.fromkeys(("fp32", "bf16", "fp16"), 0),
        **dict.fromkeys(("fp8", "fp8_static", "int8"), native),
        "fp8_block": np.where(hw.math > 0, 2, 3),
        **dict.fromkeys(("int8_wo", "int4_wo"), 3),
        "mxfp4": mxfp4,
        "mxfp4_mxfp8": np.where(blackwell, 6, mxfp4),
        "nvfp4": np.where(hw.math == 2, 5, 3),
    }
    result = np.zeros(len(hw.bandwidth), dtype=np.int64)
    for index, name in enumerate(hw.format_names):
        mine = hw.format_ids == index
        result[mine] = np.broadcast_to(by_format[precision(name).kernels], result.shape)[mine]
    return result


class Moe(Operator):
    """Routed experts of one rank: gather, gate, up, down and scatter.

    ``tokens`` is the number of tokens in the whole expert-parallel group. Each expert has the inner
    width ``width`` and is split over ``tensor_parallel`` GPUs; whole experts are distributed over
    ``expert_parallel`` GPUs. An expert has three ``matrices`` if it has a gate, otherwise two.

    In measurements, tokens are distributed evenly over experts. In predictions, tokens select
    experts at random, so that fewer experts are used and all ranks wait for the rank with the most
    experts in use (``experts_hit_busiest``).
    """

    name = "moe"
    axes = ("tokens",)
    nodes = (_EXPERT_TOKENS,)
    shape = (
        "hidden", "width", "experts", "top_k", "tensor_parallel", "expert_parallel", "matrices",
    )  # fmt: skip
    format_column = "precision"
    group = shape[:4]
    measured_unlike_served = True
    launch_seconds = 8e-6
    plan = TrainingPlan(rows=150_000, width=48, depth=2, bound=1.2, clamp=1.8, weight_decay=1e-3)

    def measured(self, rows: pd.DataFrame, hw: Hardware) -> dict[str, Rows]:
        """Return the sizes of measured rows, with evenly used experts and the kernel family."""
        sizes = super().measured(rows, hw)
        marlin = rows["kernel"].str.contains("marlin").to_numpy()
        sizes["hit"] = np.asarray(work.experts_hit_balanced(*_routed(sizes)))
        sizes["family"] = np.where(marlin, 3, family(hw)).astype(np.float64)
        return sizes

    def queried(self, sizes: Sizes, hw: Hardware) -> dict[str, Rows]:
        """Return the sizes of a prediction, with randomly used experts and vLLM's kernel family."""
        hit = np.asarray(work.experts_hit_busiest(*_routed(sizes)))
        return {**sizes, "hit": hit, "family": family(hw).astype(np.float64)}

    def work(self, hw: Hardware, sizes: Sizes) -> work.Work:
        """Return the work of each row: FLOP, and bytes of used experts and moved activations."""
        return work.moe_work(sizes, sizes["hit"], hw.element_bytes)

    def rate(self, hw: Hardware, sizes: Sizes) -> Rows:
        """Return the peak FLOP/s, which is that of bf16 for families that compute in 16 bits."""
        return np.where(np.isin(sizes["family"], (0, 3, 4)), hw.bf16_rate, hw.floor_rate)

    def roofline(self, hw: Hardware, sizes: Sizes) -> Rows:
        """Return the roofline time in seconds.

        It is the longer of reading the experts in use and multiplying, plus a launch of 8 us.
        """
        read, _, compute = self.times(hw, sizes)
        return np.maximum(read, compute) + self.launch_seconds

    def floor(self, hw: Hardware, sizes: Sizes) -> Rows:
        """Return the lower bound in seconds: at least one token's experts are read."""
        asked, held = (sizes[n] / sizes["expert_parallel"] for n in ("top_k", "experts"))
        one = np.minimum(np.maximum(asked, 0.0), held)
        least = self.work(hw, {**sizes, "hit": one})
        return np.maximum(least.read_bytes / hw.bandwidth, least.flop / hw.floor_rate)

    def inputs(self, hw: Hardware, sizes: Sizes) -> Float[np.ndarray, "rows inputs"]:
        """Return the network's inputs, ratios so that unseen sizes stay in the trained range.

        The columns are, in this order:

        - logs of the times of reading weights, of computing, of computing padded tiles and of
          moving activations, which level off below the launch time
        - log of the ratio of compute time to read time
        - log of the (token, expert) pairs per used expert, and logs of the factors by which
          rounding up to tiles of 16, 64 and 128 pairs increases work
        - log of the share of experts that are used
        - logs of tiles per SM in the up and in the down projection
        - log of the ratio of activation time to the roofline
        - logs of an expert's width on one GPU, of the hidden size, of the expert-parallel size,
          and of the experts per rank
        - a flag for experts without a gate, and one for each kernel family
        - columns of the GPU
        """
        read, activations, compute = self.times(hw, sizes)
        base = self.roofline(hw, sizes)
        pairs = sizes["tokens"] * sizes["top_k"] / sizes["expert_parallel"]
        each = np.maximum(pairs / np.maximum(sizes["hit"], 1e-9), 1.0)
        shard = sizes["width"] / sizes["tensor_parallel"]
        up = sizes["hit"] * np.ceil(each / 64) * np.ceil(2 * shard / 128) / hw.sms
        down = sizes["hit"] * np.ceil(each / 64) * np.ceil(sizes["hidden"] / 128) / hw.sms
        columns = [
            operator.logarithm(read, self.launch_seconds),
            operator.logarithm(compute, self.launch_seconds),
            operator.logarithm(compute * np.ceil(each / 64) * 64 / each, self.launch_seconds),
            operator.logarithm(activations, self.launch_seconds),
            np.clip(np.log(compute / read), -6.0, 6.0),
            np.log(each),
            *(operator.ceiling_share(each / tile) for tile in (16, 64, 128)),
            np.log(sizes["hit"] * sizes["expert_parallel"] / sizes["experts"]),
            *map(np.log, (up, down)),
            np.clip(np.log(activations / base), -6.0, 6.0),
            np.log(shard / 1024.0),
            np.log(sizes["hidden"] / 4096.0),
            np.log(sizes["expert_parallel"]),
            np.log(sizes["experts"] / sizes["expert_parallel"]),
            (sizes["matrices"] < 3).astype(np.float64),
            *((sizes["family"] == i).astype(np.float64) for i in range(len(FAMILIES))),
        ]
        return np.concatenate([np.stack(columns, axis=1), hw.descriptors()], axis=1)


def _routed(sizes: Sizes) -> tuple[Rows, Rows, Rows, Rows]:
    """Return the sizes that determine how many experts run: tokens, experts, top-k and EP size."""
    return sizes["tokens"], sizes["experts"], sizes["top_k"], sizes["expert_parallel"]
