"""What a kernel surrogate knows of the chip and the number format of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from pinn.specs.gpu import GpuSpec
from pinn.specs.precision import Precision, precision


@dataclass(frozen=True)
class Coded:
    """Values chosen per row: ``options[ids[row]]``; ``ids`` broadcasts with the other arguments.

    A GPU or a format that is the same for every row needs no such wrapper.

    >>> Coded(("bf16", "fp8"), np.array([0, 1, 1])).ids.shape
    (3,)
    """

    options: tuple[Any, ...]
    ids: Int[np.ndarray, "*rows"]


def coded(value: Any) -> Coded:
    """One value for all rows as a :class:`Coded`; a :class:`Coded` as it is."""
    return value if isinstance(value, Coded) else Coded((value,), np.zeros((), dtype=np.int64))


@dataclass(frozen=True)
class Hardware:
    """Per row: rates of the chip and storage of the format; all in SI units, shape ``[rows]``.

    Attributes:
        bandwidth: Of the device memory, bytes/s.
        bf16_rate: Dense bf16 FLOP/s.
        floor_rate: Dense FLOP/s at which matrices of the format can be multiplied at best.
        sms: Streaming multiprocessors.
        cache_bytes: Last-level cache.
        capability: CUDA compute capability.
        element_bytes: Storage per weight or cached element.
        math: Index of the math actually used: 0 16-bit, 1 8-bit, 2 4-bit.
        format_ids: Index into ``format_names``.
        format_names: Names of the formats.
    """

    bandwidth: Float[np.ndarray, " rows"]
    bf16_rate: Float[np.ndarray, " rows"]
    floor_rate: Float[np.ndarray, " rows"]
    sms: Float[np.ndarray, " rows"]
    cache_bytes: Float[np.ndarray, " rows"]
    capability: Float[np.ndarray, " rows"]
    element_bytes: Float[np.ndarray, " rows"]
    math: Int[np.ndarray, " rows"]
    format_ids: Int[np.ndarray, " rows"]
    format_names: tuple[str, ...]

    def descriptors(self) -> Float[np.ndarray, "rows 5"]:
        """Network inputs that tell chips apart, as logarithms around a mid-range chip."""
        return np.stack(
            [
                np.log(self.bandwidth / 3e12),
                np.log(self.bf16_rate / self.bandwidth / 300.0),
                np.log(self.sms / 132.0),
                np.log(self.cache_bytes / 6e7),
                self.capability - 9.0,
            ],
            axis=1,
        )


def math_index(gpu: GpuSpec, form: Precision) -> int:
    """Which units multiply a format on a chip; without native ones its weights are expanded."""
    if form.math == "bf16" or form.math not in gpu.peak_flop_per_s:
        return 0
    return 2 if form.math == "fp4" else 1


def hardware(
    gpus: Sequence[GpuSpec], gpu_ids: np.ndarray, formats: Sequence[str], format_ids: np.ndarray
) -> Hardware:
    """Look the rows' chips and formats up.

    Raises:
        PinnError: If a format is unknown.
    """
    forms = [precision(name) for name in formats]

    def chip(value) -> np.ndarray:
        return np.array([float(value(g)) for g in gpus])[gpu_ids]

    pair = np.array([[g.matmul_flop_per_s(f) for f in forms] for g in gpus])
    math = np.array([[math_index(g, f) for f in forms] for g in gpus])
    return Hardware(
        bandwidth=chip(lambda g: g.memory_bandwidth_bytes_per_s),
        bf16_rate=chip(lambda g: g.peak_flop_per_s["bf16"]),
        floor_rate=pair[gpu_ids, format_ids],
        sms=chip(lambda g: g.sm_count),
        cache_bytes=chip(lambda g: g.l2_bytes),
        capability=chip(lambda g: g.compute_capability),
        element_bytes=np.array([f.bytes_per_weight for f in forms])[format_ids],
        math=math[gpu_ids, format_ids],
        format_ids=format_ids,
        format_names=tuple(formats),
    )
