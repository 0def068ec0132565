"""A ring all-reduce over PCIe from first principles, where no such link was timed.

NCCL runs there: vLLM switches its own all-reduce off beyond two GPUs that only share PCIe
(vllm/distributed/device_communicators/custom_all_reduce.py). A ring takes 2 (n - 1) hops and moves
2 (n - 1) / n of the message over each link (Patarasuk and Yuan 2009). Launch, latency of a hop and
share of the link are those that NCCL itself chooses algorithms by (src/graph/tuning.cc: baseLat,
hwLat; src/graph/topo.h: PCI_BW is 12 of the 16 GB/s of PCIe 3.0 x16).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Real

from pinn.specs.gpu import GpuSpec

#: Protocol -> launch (s), a hop (s), share of the ring's bandwidth. LL sends a flag beside every
#: word, Simple synchronizes once per chunk; the faster one runs.
PROTOCOLS = {"LL": (6.6e-6, 1.0e-6, 0.5), "Simple": (8.4e-6, 5.7e-6, 1.0)}
#: Of the datasheet's PCIe bandwidth in one direction.
LINK_SHARE = 12.0 / 16.0


def ring_seconds(
    gpu: GpuSpec, ranks: float, bytes_: Real[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Time of one all-reduce of ``bytes_`` on each of ``ranks`` GPUs."""
    moved = 2 * (ranks - 1) / ranks * bytes_ / (LINK_SHARE * gpu.link_bandwidth_bytes_per_s)
    times = [launch + 2 * (ranks - 1) * hop + moved / w for launch, hop, w in PROTOCOLS.values()]
    return np.minimum(*times)
