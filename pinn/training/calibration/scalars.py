"""The handful of scalars that a calibration moves: each scales a group of coefficients.

What one server has of its own (host, clocks, kernels of its version, links) moves the
coefficients of a group together, so that a few measurements say something of all of them.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from pinn.coefficients.coefficients import NAMES
from pinn.physics.request import REQUEST_FEATURES
from pinn.physics.step import STEP_FEATURES

#: Scalar -> the step features that it scales; ``arrival`` scales all of alpha.
STEP_SCALARS: dict[str, tuple[str, ...]] = {
    "step constant": ("step", "layer", "moe_layer", "quantized_layer", "decode_layer"),
    "requests": ("request", "sampling"),
    "bytes": (
        "gemm", "gemm_weights", "experts", "experts_hit", "experts_hit_tenth", "activations",
        "cpu_offload",
    ),
    "arithmetic": (
        "gemm_compute", "gemm_beyond_128", "gemm_beyond_1024", "expert_compute",
        "expert_compute_beyond_1024", "expert_activations",
    ),
    "attention": ("decode_attention", "kv_read"),
    "communication": (
        "parallel_layer", "all_reduce", "all_reduce_first_256k", "all_reduce_first_8m",
        "large_all_reduce", "expert_exchange", "pipeline",
    ),
    "prefill": (
        "eager_layer", "prefill_layer", "prefill_attention", "prefill_tokens", "prefill_kv_read",
    ),
}  # fmt: skip

SCALARS: dict[str, tuple[str, ...]] = {
    **{name: tuple(f"beta.{each}" for each in group) for name, group in STEP_SCALARS.items()},
    "arrival": tuple(name for name in NAMES if name.startswith("alpha.")),
}

#: Smallest coefficients: what the datasheet bounds stays above it.
LOWER_BOUNDS = np.array(
    [f.lower_bound for f in STEP_FEATURES.values()] + [0.0] * len(REQUEST_FEATURES)
)


def membership() -> Float[np.ndarray, "coefficients scalars"]:
    """1 where a scalar scales a coefficient, else 0; each coefficient has one scalar."""
    return np.array([[name in group for group in SCALARS.values()] for name in NAMES], float)
