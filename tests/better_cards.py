"""Cells in which one GPU is better than another in every figure of its datasheet."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.physics.batch_sums import UniformBatches, alike
from pinn.specs.batch import parse_batch
from pinn.specs.catalog import load_model
from pinn.specs.gpu import GpuSpec, list_gpus, load_gpu
from pinn.specs.model import ModelSpec
from pinn.specs.model_variants import with_precision
from pinn.specs.serving import ServingSpec
from pinn.training.synthetic import weight_bytes

#: Dense, mixtures, latent attention, windows; 16, 8 and 4 bits.
MODELS: tuple[tuple[str, str], ...] = (
    ("meta-llama/Meta-Llama-3.1-8B", "native"),
    ("meta-llama/Meta-Llama-3.1-8B", "int4"),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", "native"),
    ("Qwen/Qwen3-32B-FP8", "native"),
    ("google/gemma-3-27b-it", "native"),
    ("mistralai/Mixtral-8x7B-v0.1", "native"),
    ("mistralai/Mixtral-8x7B-v0.1", "int4"),
    ("Qwen/Qwen3-30B-A3B", "native"),
    ("openai/gpt-oss-20b", "native"),
    ("openai/gpt-oss-120b", "native"),
    ("deepseek-ai/DeepSeek-V2-Lite", "native"),
    ("deepseek-ai/DeepSeek-V3", "native"),
)
TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)
BATCHES = (
    "1 decode @ 1024",
    "64 decode @ 2048",
    "256 decode @ 512",
    "1 prefill 512 @ 0",
    "1 prefill 4096 @ 0",
    "32 decode @ 1024 + 1 prefill 2048 @ 0",
)
#: No model above is multiplied in int8.
RATES = ("bf16", "fp8", "fp4")
#: Weights may take this share of a GPU's memory.
WEIGHTS_SHARE = 0.9


def is_better(gpu: GpuSpec, other: GpuSpec) -> bool:
    """Whether a GPU has at least the other's every figure and more in one.

    Figures are those that a step can feel: bandwidth, multiprocessors, cache, both links, and the
    rates of ``RATES``; one that a GPU lacks is 0. Capacity is not among them.
    """

    def figures(g: GpuSpec) -> list[float]:
        return [
            g.memory_bandwidth_bytes_per_s,
            g.sm_count,
            g.l2_bytes,
            g.link_bandwidth_bytes_per_s,
            g.pcie_bandwidth_bytes_per_s,
            *(g.peak_flop_per_s.get(name, 0.0) for name in RATES),
        ]

    mine, theirs = figures(gpu), figures(other)
    return mine != theirs and all(a >= b for a, b in zip(mine, theirs, strict=True))


#: Cards for which the law was found to hold. Among the others it fails where the L2 cache is
#: smaller than any that was measured: see the test that is expected to fail.
HELD = (
    "A100-PCIe-40GB", "A100-PCIe-80GB", "A100-SXM-40GB", "A100-SXM-80GB", "A30", "B200-SXM",
    "B300-SXM", "GB200", "GB300", "H100-NVL", "H100-PCIe", "H100-SXM", "H200-SXM", "L4", "L40S",
    "RTX-PRO-6000-Server",
)  # fmt: skip


@cache
def better_pairs() -> tuple[tuple[str, str], ...]:
    """(better, worse) of the GPUs in the catalogue."""
    gpus = [load_gpu(name) for name in list_gpus()]
    return tuple(
        (a.name, b.name) for a, b in itertools.product(gpus, gpus) if a is not b and is_better(a, b)
    )


@cache
def models() -> tuple[ModelSpec, ...]:
    """The models as they are served."""
    return tuple(
        load_model(name) if scheme == "native" else with_precision(load_model(name), scheme)
        for name, scheme in MODELS
    )


@cache
def deployments() -> dict[tuple[str, int, int], Deployment]:
    """By (GPU, index of the model, TP): every one that divides and fits in memory."""
    found = {}
    gpus = [load_gpu(name) for name in list_gpus()]
    for gpu, (i, model), tp in itertools.product(gpus, enumerate(models()), TENSOR_PARALLEL_SIZES):
        try:
            deployment = Deployment(model, gpu, ServingSpec(tensor_parallel_size=tp))
        except PinnError:
            continue
        if weight_bytes(deployment) <= WEIGHTS_SHARE * gpu.memory_bytes:
            found[gpu.name, i, tp] = deployment
    return found


def batches() -> UniformBatches:
    """The steps of every cell."""
    return alike([parse_batch(text) for text in BATCHES])


@dataclass(frozen=True)
class Cell:
    """One step of one model on two GPUs, the first better in every figure."""

    better: str
    worse: str
    model: int
    tensor_parallel_size: int
    batch: str
    better_s: float
    worse_s: float

    @property
    def ratio(self) -> float:
        """Above 1 where the better GPU is the slower one."""
        return self.better_s / self.worse_s


def cells(seconds: np.ndarray, keys: Sequence[tuple[str, int, int]]) -> list[Cell]:
    """Every cell of every pair of GPUs.

    Args:
        seconds: Step times, ``[deployments, batches]``.
        keys: Keys of the deployments, in order.
    """
    rows = dict(zip(keys, seconds, strict=True))
    return [
        Cell(a, b, i, tp, batch, float(rows[a, i, tp][k]), float(rows[b, i, tp][k]))
        for a, b in better_pairs()
        for i, tp in itertools.product(range(len(MODELS)), TENSOR_PARALLEL_SIZES)
        if (a, i, tp) in rows and (b, i, tp) in rows
        for k, batch in enumerate(BATCHES)
    ]
