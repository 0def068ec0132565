"""Routed experts of a mixture-of-experts layer, on one rank."""

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from pinn.kernels import operator
from pinn.kernels.hardware import Hardware
from pinn.kernels.operator import Operator, Rows, Sizes, TrainingPlan
from pinn.kernels.tables.work import Work, experts_hit_balanced, experts_hit_busiest, moe_work

#: Kernel families that differ in kind; 16-bit math runs the first, fourth and fifth.
FAMILIES = ("bf16", "fp8", "fp8_block", "weight_only", "mxfp4", "nvfp4", "mxfp4_mxfp8")
_TOKENS = np.concatenate([[1.0], operator.octaves(2, 32768, 2)])


def family(hw: Hardware) -> Int[np.ndarray, " rows"]:
    """Which kernel family vLLM picks for a format on a chip.

    Formats without units of their own are expanded by Marlin (weight-only). mxfp4 has a kernel of
    its own on Hopper and on data-centre Blackwell, with 8-bit activations only on the latter.
    Marlin multiplies with Ampere's instructions, far below the bf16 rate of newer chips: with 8,192
    tokens and more, vLLM 0.24.0's runs at 258 TFLOP/s on B200 and 240 on H100, where 16-bit experts
    reach 745 and 398 (medians of the tables). So many tokens take longer with int4 experts than
    with 16-bit ones there.
    """
    own_mxfp4 = (hw.capability >= 9.0) & (hw.capability < 11.0)
    blackwell = (hw.capability >= 10.0) & (hw.capability < 11.0)
    mxfp4 = np.where(own_mxfp4, 4, 3)
    native = np.where(hw.math > 0, 1, 3)
    by_format: dict[str, int | np.ndarray] = {
        "fp32": 0,
        "bf16": 0,
        "fp16": 0,
        "fp8": native,
        "fp8_static": native,
        "int8": native,
        "fp8_block": np.where(hw.math > 0, 2, 3),
        "int8_wo": 3,
        "int4_wo": 3,
        "mxfp4": mxfp4,
        "mxfp4_mxfp8": np.where(blackwell, 6, mxfp4),
        "nvfp4": np.where(hw.math == 2, 5, 3),
    }
    result = np.zeros(len(hw.bandwidth), dtype=np.int64)
    for index, name in enumerate(hw.format_names):
        mine = hw.format_ids == index
        result[mine] = np.broadcast_to(by_format[name], result.shape)[mine]
    return result


class Moe(Operator):
    """Gather, gate, up, down and scatter of the experts that a rank holds.

    ``tokens`` are those of the whole expert-parallel group; every expert, ``width`` inside, is
    sliced over ``tensor_parallel`` GPUs, whole ones are spread over ``expert_parallel``; an expert
    with a gate has three ``matrices``, else two.

    Few tokens are timed dealt out evenly; predictions are for tokens that draw experts at random,
    some more often than others, which hit fewer of them, and wait for the rank that is hit most
    (``experts_hit_busiest``). Many tokens are timed with popular experts.
    """

    name = "moe"
    axes = ("tokens",)
    nodes = (_TOKENS,)
    shape = (
        "hidden", "width", "experts", "top_k", "tensor_parallel", "expert_parallel", "matrices",
    )  # fmt: skip
    format_column = "precision"
    group = shape[:4]
    measured_unlike_served = True
    launch_seconds = 8e-6
    plan = TrainingPlan(rows=150_000, width=48, depth=2, bound=1.2, clamp=1.8, weight_decay=1e-3)

    def measured(self, rows: pd.DataFrame, hw: Hardware) -> dict[str, Rows]:
        """Sizes of rows that hit experts evenly, by the kernel that was timed."""
        sizes = super().measured(rows, hw)
        marlin = rows["kernel"].str.contains("marlin").to_numpy()
        sizes["hit"] = experts_hit_balanced(*_routed(sizes))
        sizes["family"] = np.where(marlin, 3, family(hw)).astype(np.float64)
        return sizes

    def queried(self, sizes: Sizes, hw: Hardware) -> dict[str, Rows]:
        """Sizes with random routing, by the kernel that vLLM would pick."""
        hit = experts_hit_busiest(*_routed(sizes))
        return {**sizes, "hit": hit, "family": family(hw).astype(np.float64)}

    def work(self, hw: Hardware, sizes: Sizes) -> Work:
        """The hit experts, and what is gathered and scattered."""
        return moe_work(sizes, sizes["hit"], hw.element_bytes)

    def rate(self, hw: Hardware, sizes: Sizes) -> Rows:
        """16-bit math in the first, fourth and fifth family."""
        narrow = np.isin(sizes["family"], (0, 3, 4))
        return np.where(narrow, hw.bf16_rate, hw.floor_rate)

    def roofline(self, hw: Hardware, sizes: Sizes) -> Rows:
        """A launch of 8 us, and the slower of reading the hit experts and multiplying."""
        read, _, compute = self.times(hw, sizes)
        return np.maximum(read, compute) + self.launch_seconds

    def floor(self, hw: Hardware, sizes: Sizes) -> Rows:
        """Any routing: at least the experts of one token, at the format's own rate."""
        one = np.minimum(
            np.maximum(sizes["top_k"] / sizes["expert_parallel"], 0.0),
            sizes["experts"] / sizes["expert_parallel"],
        )
        work = self.work(hw, {**sizes, "hit": one})
        return np.maximum(work.read_bytes / hw.bandwidth, work.flop / hw.floor_rate)

    def inputs(self, hw: Hardware, sizes: Sizes) -> Float[np.ndarray, "rows inputs"]:
        """Ratios only, so that unseen sizes stay inside the range. Columns in this order.

        Weight, compute, tile-padded compute and activation time over the launch; compute over
        memory; log pairs per hit expert and rounding to tiles of 16, 64, 128; share of experts
        hit; waves of tiles per SM in both matrices, and rounding; activations over the roofline;
        sharding; family flags; the chip.
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
            operator.ceiling_share(each / 16),
            operator.ceiling_share(each / 64),
            operator.ceiling_share(each / 128),
            np.log(sizes["hit"] * sizes["expert_parallel"] / sizes["experts"]),
            np.log(up),
            np.log(down),
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
    """What decides how many experts are hit."""
    return sizes["tokens"], sizes["experts"], sizes["top_k"], sizes["expert_parallel"]
