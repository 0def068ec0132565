"""GPU rates and bytes per element for each row of a kernel surrogate's input."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from pinn.specs.gpu import GpuSpec
from pinn.specs.precision import Precision, precision

#: Datasheets of GPUs by name.
Gpus = Mapping[str, GpuSpec]
#: GPU datasheets to which rows refer by index.
Chips = Sequence[GpuSpec]
#: Index of each row's GPU (or number format) in the sequence of GPUs (or formats).
Ids = Int[np.ndarray, " rows"]


@dataclass(frozen=True)
class Coded:
    """One value per row: ``options[ids[row]]``; ``ids`` broadcasts with other arguments.

    A GPU or a format that is the same in all rows can be passed directly.

    >>> Coded(("bf16", "fp8"), np.array([0, 1, 1])).ids.shape
    (3,)
    """

    options: tuple[Any, ...]
    ids: Int[np.ndarray, "*rows"]


def coded(value: object) -> Coded:
    """Return one value for all rows as a :class:`Coded`; a :class:`Coded` is returned unchanged."""
    return value if isinstance(value, Coded) else Coded((value,), np.zeros((), dtype=np.int64))


@dataclass(frozen=True)
class Hardware:
    """GPU rates and bytes per element in each row, in SI units, with shape ``[rows]``.

    Attributes:
        bandwidth: Device memory bandwidth in bytes/s.
        bf16_rate: Dense bf16 FLOP/s.
        floor_rate: Maximum dense FLOP/s of multiplications in the number format.
        sms: Number of streaming multiprocessors.
        cache_bytes: Size of the last-level cache in bytes.
        capability: CUDA compute capability.
        element_bytes: Bytes per weight or cached element.
        math: Index of the tensor-core math: 0 for 16-bit, 1 for 8-bit, 2 for 4-bit.
        format_ids: Index of the row's number format in ``format_names``.
        format_names: Names of all number formats in the rows.
        known: Whether the training data includes kernels on the GPU.
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
    known: Bool[np.ndarray, " rows"]

    def descriptors(self) -> Float[np.ndarray, "rows 6"]:
        """Return the network's inputs for the GPU: generation, log SMs, and a four-column tag.

        The tag consists of the logs of bandwidth, ridge point (FLOP per byte) and cache size, and a
        one. Nine GPUs are too few to learn how efficiency depends on these numbers, so they only
        identify GPUs in the training data. Operators can set the tag of other GPUs to zero, which
        are then treated like the average of their generation. To allow for this, training sets the
        tag of some rows to zero.
        """
        tag = [
            np.log(self.bandwidth / 3e12),
            np.log(self.bf16_rate / self.bandwidth / 300.0),
            np.log(self.cache_bytes / 6e7),
            np.ones(len(self.bandwidth)),
        ]
        generation = np.clip(self.capability - 9.0, -1.0, 1.5)
        return np.stack(
            [generation, np.log(self.sms / 132.0), *(np.where(self.known, v, 0.0) for v in tag)],
            axis=1,
        )


def math_index(gpu: GpuSpec, form: Precision) -> int:
    """Return the index of the tensor-core math with which a GPU computes in a number format.

    Index 0 is 16-bit math, 1 is 8-bit math, and 2 is 4-bit math. The index is 0 if the GPU has no
    tensor-core math for the format.
    """
    if form.math == "bf16" or form.math not in gpu.peak_flop_per_s:
        return 0
    return 2 if form.math == "fp4" else 1


def hardware(gpus: Chips, gpu_ids: Ids, formats: Sequence[str], format_ids: Ids) -> Hardware:
    """Return the GPU rates and bytes per element of rows with given GPUs and formats.

    Raises:
        PinnError: If a format is unknown.
    """
    forms = [precision(name) for name in formats]

    def chip(value: Callable[[GpuSpec], float]) -> np.ndarray:
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
        known=np.ones(len(gpu_ids), dtype=bool),
    )


def chip_tags(gpus: Chips) -> Float[np.ndarray, "gpus 5"]:
    """Return the datasheet values by which surrogates identify a GPU, instead of its name."""
    rates = [(g.memory_bandwidth_bytes_per_s, g.peak_flop_per_s["bf16"]) for g in gpus]
    cores = [(g.sm_count, g.l2_bytes, g.compute_capability) for g in gpus]
    return np.hstack([np.reshape(rates, (-1, 2)), np.reshape(cores, (-1, 3))]).astype(np.float64)


def is_known(gpus: Chips, tags: Float[np.ndarray, "trained 5"]) -> Bool[np.ndarray, " gpus"]:
    """Return, for each GPU, whether its datasheet is within 2 % of that of a training GPU."""
    apart = np.abs(chip_tags(gpus)[:, None] / tags[None] - 1.0).max(axis=2)
    return (apart < 0.02).any(axis=1)
