"""All-reduce times: measured curves over message size, or a ring model from first principles."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.kernels.hardware import Gpus, coded
from pinn.physics.batch_sums import Sizes
from pinn.specs.gpu import GpuSpec

# A ring all-reduce over PCIe from first principles, for links without measurements.
#
# Such links use NCCL: vLLM disables its own all-reduce for more than two GPUs connected only by
# PCIe (vllm/distributed/device_communicators/custom_all_reduce.py). A ring takes 2 (n - 1) hops and
# moves 2 (n - 1) / n of the message over each link (Patarasuk and Yuan 2009). Launch time, latency
# per hop and usable share of the link are NCCL's own constants for choosing algorithms
# (src/graph/tuning.cc: baseLat, hwLat; src/graph/topo.h: PCI_BW is 12 of the 16 GB/s of PCIe 3.0
# x16).

#: Launch time (s), latency of one hop (s) and share of the link's bandwidth that the ring reaches,
#: by NCCL protocol. LL sends a flag with every word; Simple synchronizes once per chunk. The faster
#: protocol is used.
PROTOCOLS = {"LL": (6.6e-6, 1.0e-6, 0.5), "Simple": (8.4e-6, 5.7e-6, 1.0)}
#: Usable share of a PCIe link's nominal bandwidth in one direction.
LINK_SHARE = 12.0 / 16.0


def ring_seconds(gpu: GpuSpec, ranks: float, bytes_: Sizes) -> Float[np.ndarray, "..."]:
    """Return a ring all-reduce's time in seconds for ``bytes_`` bytes per GPU on ``ranks`` GPUs."""
    moved = 2 * (ranks - 1) / ranks * bytes_ / (LINK_SHARE * gpu.link_bandwidth_bytes_per_s)
    times = [launch + 2 * (ranks - 1) * hop + moved / w for launch, hop, w in PROTOCOLS.values()]
    return np.minimum(*times)


# All-reduce among the tensor-parallel ranks of one node.
#
# A measured GPU has its own curve. The curve of any other GPU is the average over all measured GPUs
# with its link type (NVLink or PCIe), at equal link times (bytes / bandwidth). Links of one type
# thus differ only in bandwidth. Without any measurement on PCIe, a ring is assumed.

#: Message sizes, in bytes, at which a GPU's curve is stored: 256 B to 1 GiB, as measured.
SIZES_BYTES = 2.0 ** np.arange(8, 31)
#: Link times in seconds at which the curves of several GPUs are averaged.
_LINK_SECONDS = np.geomspace(1e-10, 0.1, 46)


def _read_curve(bytes_: np.ndarray, seconds: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return times in seconds at sizes ``at``, from a curve measured at sizes ``bytes_``.

    Between measured sizes, the logarithm of time is interpolated linearly in the logarithm of size.
    Below the smallest size the time is constant; above the largest it is proportional to the size.
    """
    inside = np.clip(at, bytes_[0], bytes_[-1])
    log_time = np.interp(np.log(inside), np.log(bytes_), np.log(seconds))
    slope = seconds[-1] / bytes_[-1]
    return np.exp(log_time) + slope * np.maximum(at - bytes_[-1], 0.0)


@dataclass(frozen=True)
class AllReduce:
    """All-reduce times by message size: one curve per measured GPU, and one per link type.

    Attributes:
        curves: Measured seconds at message sizes ``SIZES_BYTES``, by GPU and number of ranks.
        pools: Mean times in seconds of all measured GPUs at link times ``_LINK_SECONDS`` (bytes /
            bandwidth), by link type (``nvlink`` or ``pcie``) and number of ranks.
    """

    curves: dict[tuple[str, int], Float[np.ndarray, " sizes"]] = field(default_factory=dict)
    pools: dict[tuple[str, int], Float[np.ndarray, " link_times"]] = field(default_factory=dict)

    @staticmethod
    def fit(rows: pd.DataFrame, gpus: Gpus) -> AllReduce:
        """Return the curve of each measured GPU, and the mean curve of each link type."""
        curves: dict[tuple[str, int], np.ndarray] = {}
        logs: dict[tuple[str, int], list[np.ndarray]] = {}
        for _, part in rows.sort_values("bytes").groupby(["gpu", "gpus"]):
            chip, ranks = str(part["gpu"].iloc[0]), int(part["gpus"].iloc[0])
            size = part["bytes"].to_numpy(dtype=np.float64)
            time = np.maximum.accumulate(part["seconds"].to_numpy(dtype=np.float64))
            curves[chip, ranks] = _read_curve(size, time, SIZES_BYTES)
            link = gpus[chip].link_bandwidth_bytes_per_s
            kind = "nvlink" if gpus[chip].has_nvlink else "pcie"
            pooled = np.log(_read_curve(size, time, _LINK_SECONDS * link))
            logs.setdefault((kind, ranks), []).append(pooled)
        return AllReduce(curves, {k: np.exp(np.mean(v, axis=0)) for k, v in logs.items()})

    def seconds(self, gpu: object, ranks: object, bytes_: object) -> Float[np.ndarray, "..."]:
        """Return the time in seconds of one all-reduce; 0 for a single rank or no bytes.

        Args:
            gpu: GPU as a ``GpuSpec``, or one GPU per row as a ``Coded``; all arguments broadcast
                together.
            ranks: Number of GPUs in the all-reduce, all in one node.
            bytes_: Message size on each GPU, in bytes.
        """
        chips = coded(gpu)
        ids, count, size = np.broadcast_arrays(
            chips.ids, np.asarray(ranks), np.asarray(bytes_, dtype=np.float64)
        )
        result = np.zeros(size.shape)
        for chip in np.unique(ids):
            for n in np.unique(count[ids == chip]):
                mine = (ids == chip) & (count == n)
                result[mine] = self._one(chips.options[chip], int(n), size[mine])
        return result

    def _one(self, gpu: GpuSpec, ranks: int, size: np.ndarray) -> np.ndarray:
        if ranks <= 1:
            return np.zeros(size.shape)
        known = self._counts(gpu)
        if not known:
            time = ring_seconds(gpu, ranks, size)
        elif ranks in known:
            time = self._known(gpu, ranks, size)
        elif ranks > known[-1]:
            # Beyond the largest measured number of ranks, the time grows with log2 of the ranks,
            # like the latency of a tree; the bytes per GPU hardly change.
            time = self._known(gpu, known[-1], size) * np.log2(ranks) / np.log2(known[-1])
        else:
            low = max(n for n in known if n < ranks)
            high = min(n for n in known if n > ranks)
            share = np.log(ranks / low) / np.log(high / low)
            ends = self._known(gpu, low, size), self._known(gpu, high, size)
            time = ends[0] ** (1 - share) * ends[1] ** share
        floor = size * (ranks - 1) / ranks / gpu.link_bandwidth_bytes_per_s
        return np.where(size > 0, np.maximum(time, floor), 0.0)

    def _counts(self, gpu: GpuSpec) -> list[int]:
        """Return the numbers of ranks for which the GPU or its link type has a curve, ascending."""
        kind = self._kind(gpu)
        return sorted(
            {n for name, n in self.curves if name == gpu.name}
            | {n for name, n in self.pools if name == kind}
        )

    def _kind(self, gpu: GpuSpec) -> str:
        """Return a GPU's link type; NVLink counts as PCIe if no GPU with NVLink was measured."""
        timed = {name for name, _ in self.pools}
        return "nvlink" if gpu.has_nvlink and "nvlink" in timed else "pcie"

    def _known(self, gpu: GpuSpec, ranks: int, size: np.ndarray) -> np.ndarray:
        own = self.curves.get((gpu.name, ranks))
        if own is not None:
            return _read_curve(SIZES_BYTES, own, size)
        pool = self.pools[self._kind(gpu), ranks]
        return _read_curve(_LINK_SECONDS * gpu.link_bandwidth_bytes_per_s, pool, size)
