"""The network between servers: what one GPU's adapter carries."""

from __future__ import annotations

from pinn.specs.gpu import GpuSpec

#: Ports of adapters that servers are built with, one for each GPU: HDR, NDR and XDR InfiniBand or
#: their Ethernet twins (NVIDIA ConnectX-6, -7 and -8 datasheets), and 100 Gb/s before them.
PORT_BITS_PER_S = (100e9, 200e9, 400e9, 800e9)


def network_bytes_per_s(gpu: GpuSpec) -> float:
    """Rate of the fastest port that the GPU's PCIe link can fill, one direction.

    DGX A100 (PCIe 4.0) has 200 Gb/s for each GPU, DGX H100, H200 and B200 (PCIe 5.0) have 400 Gb/s
    (their datasheets). What is between the adapters, and protocols, are left out.
    """
    fitting = [port / 8 for port in PORT_BITS_PER_S if port / 8 <= gpu.pcie_bandwidth_bytes_per_s]
    return max(fitting, default=PORT_BITS_PER_S[0] / 8)
