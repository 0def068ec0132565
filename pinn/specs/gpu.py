"""What is known about a GPU before anything is run on it: its datasheet."""

from __future__ import annotations

from dataclasses import dataclass

from pinn.errors import PinnError, printable
from pinn.specs.limits import MOST_DATASHEET, written
from pinn.specs.precision import Precision

#: Less than a telephone's chip has, with an H100's figure: what is less was given in GB or GB/s.
_LEAST = {
    "memory_bandwidth_bytes_per_s": (1e9, "3.35 TB/s are 3.35e12"),
    "memory_bytes": (1e8, "80 GB are 8e10"),
    "sm_count": (1, "132"),
    "l2_bytes": (1e3, "50 MiB are 52428800"),
    "compute_capability": (1, "9.0"),
    "link_bandwidth_bytes_per_s": (1e7, "450 GB/s are 4.5e11"),
    "pcie_bandwidth_bytes_per_s": (1e7, "64 GB/s are 6.4e10"),
}
_LEAST_FLOP_PER_S = 1e9


@dataclass(frozen=True)
class GpuSpec:
    """A GPU's datasheet in SI units.

    Attributes:
        name: Canonical short name, such as ``H100-SXM``.
        memory_bandwidth_bytes_per_s: Peak of the device memory.
        memory_bytes: Capacity of the device memory.
        peak_flop_per_s: Dense tensor-core rate by math kind (``bf16`` always; ``fp8``, ``int8``,
            ``fp4`` where the chip has them). Never the sparse figure.
        sm_count: Streaming multiprocessors.
        l2_bytes: Size of the last-level cache.
        compute_capability: CUDA compute capability, such as 9.0: a proxy for the generation.
        link_bandwidth_bytes_per_s: Between GPUs of one node, one direction (NVLink, else PCIe).
        pcie_bandwidth_bytes_per_s: To the host, one direction.
        has_nvlink: Whether GPUs of one node are joined by NVLink.
        source: Where the figures come from.
    """

    name: str
    memory_bandwidth_bytes_per_s: float
    memory_bytes: float
    peak_flop_per_s: dict[str, float]
    sm_count: int
    l2_bytes: float
    compute_capability: float
    link_bandwidth_bytes_per_s: float
    pcie_bandwidth_bytes_per_s: float
    has_nvlink: bool
    source: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", printable(self.name))
        object.__setattr__(self, "source", printable(self.source, 2000))
        for name, (least, example) in _LEAST.items():
            value = getattr(self, name)
            if not least <= value <= MOST_DATASHEET:
                raise PinnError(
                    f"GPU {self.name}: {name} must be positive, from {least:g} to "
                    f"{MOST_DATASHEET:g} in SI units ({example}), got {written(value)}"
                )
        if not self.peak_flop_per_s.get("bf16", 0) >= 1:
            raise PinnError(
                f"GPU {self.name}: peak_flop_per_s needs a positive 'bf16' entry, "
                f"got {self.peak_flop_per_s!r:.200}"
            )
        for kind, value in self.peak_flop_per_s.items():
            if value != 0 and not _LEAST_FLOP_PER_S <= value <= MOST_DATASHEET:
                raise PinnError(
                    f"GPU {self.name}: the {kind} rate must be 0 or from {_LEAST_FLOP_PER_S:g} to "
                    f"{MOST_DATASHEET:g} in SI units (989 TFLOP/s are 9.89e14), "
                    f"got {written(value)}"
                )

    def __hash__(self) -> int:
        return hash((self.name, self.memory_bandwidth_bytes_per_s, self.sm_count))

    def matmul_flop_per_s(self, weights: Precision) -> float:
        """Dense rate at which matrices of a format are multiplied here.

        A chip without the format's own rate dequantizes and runs at the bf16 rate (weight-only
        kernels such as Marlin; fp8 on Ampere).
        """
        return self.peak_flop_per_s.get(weights.math) or self.peak_flop_per_s["bf16"]
