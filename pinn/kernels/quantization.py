"""Scaling the inputs of an fp8 multiplication in each step, which its tables' times include."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from pinn.specs.gpu import GpuSpec

#: aiconfigurator's tables of vLLM 0.24.0's dynamic_per_token_scaled_fp8_quant, which its products
#: in fp8 contain: 2.0 to 3.8 us up to 64 rows on H100, H200, B200 and L40S, and 3 bytes an element
#: (read 2, write 1) at 46 to 84 % of the datasheet's bandwidth for 8,192 rows of 8,192 (H100 84,
#: L40S 77, H200 67, B200 46). One formula for all: 10 to 50 % off in the median of a chip's table.
LAUNCH_SECONDS = 2.6e-6
BANDWIDTH_SHARE = 0.7
_ELEMENT_BYTES = 3.0
#: Of a product's time that scaling its inputs may be; an assumption that only the narrowest meet.
_LARGEST_SHARE = 0.5


def quantization_seconds(
    gpu: GpuSpec, rows: Float[np.ndarray, "*n"], width: Float[np.ndarray, "*n"]
) -> Float[np.ndarray, "*n"]:
    """Scales of ``rows`` tokens of ``width`` 16-bit elements, and the elements in fp8."""
    moved = rows * width * _ELEMENT_BYTES
    return LAUNCH_SECONDS + moved / (gpu.memory_bandwidth_bytes_per_s * BANDWIDTH_SHARE)


def without_quantization(
    seconds: Float[np.ndarray, "*n"], scaling: Float[np.ndarray, "*n"]
) -> Float[np.ndarray, "*n"]:
    """A product whose inputs the kernel before it has written in fp8, with static scales."""
    return seconds - np.minimum(scaling, seconds * _LARGEST_SHARE)
