"""Routed experts by kernels that the engine would not pick by itself.

They take what the engine's own kernel takes (:mod:`pinn.kernels.moe`) and more: weights of times
that grow with the work, fitted per chip and kernel to tables of the same shapes, and never below 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.kernels.hardware import Hardware, hardware
from pinn.kernels.moe import Moe
from pinn.kernels.operator import Sizes
from pinn.kernels.roofline_fit import fit_terms
from pinn.kernels.surrogate import OperatorSurrogate, table_hardware
from pinn.specs.gpu import GpuSpec

#: Rows beyond are not served by one node in one step, and bend the fit where it counts.
_MOST_RANKS, _MOST_TOKENS = 16, 16_384
#: A unit that makes the fitted weight of order one, as the 10 us of a launch; it decides nothing.
_EXPERT_SECONDS, _LAUNCH_SECONDS = 1e-7, 1e-5


def _terms(hw: Hardware, sizes: Sizes) -> Float[np.ndarray, "rows terms"]:
    """Seconds at the datasheet's rates.

    A launch of 10 us; 0.1 us per expert that a rank holds, whether it is hit or not (a grouped
    multiplication is told of each); gathering and scattering its own pairs of token and expert,
    and those of the whole group, which Triton's kernel makes room for; reading the hit experts;
    computing; computing what lies beyond 256 tokens.
    """
    read, activations, compute = Moe().times(hw, sizes)
    held = sizes["experts"] / sizes["expert_parallel"] * _EXPERT_SECONDS
    late = np.maximum(1.0 - 256.0 / np.maximum(sizes["tokens"], 1.0), 0.0)
    launch = np.full(len(read), _LAUNCH_SECONDS)
    group = activations * sizes["expert_parallel"]
    return np.stack([launch, held, activations, group, read, compute, compute * late], axis=1)


@dataclass(frozen=True)
class OtherExperts:
    """Weights by (chip, kernels); chip ``*`` pools every chip that was timed with them.

    Attributes:
        weights: What comes on top of the engine's own kernel.
    """

    weights: dict[tuple[str, str], Float[np.ndarray, " terms"]] = field(default_factory=dict)

    @staticmethod
    def fit(
        rows: pd.DataFrame, gpus: Mapping[str, GpuSpec], own: OperatorSurrogate
    ) -> OtherExperts:
        """Fit to measured rows what the engine's own kernels, as predicted, leave of them."""
        ranks = rows["tensor_parallel"] * rows["expert_parallel"]
        rows = rows[(ranks <= _MOST_RANKS) & (rows["tokens"] <= _MOST_TOKENS)]
        if len(rows) == 0:
            return OtherExperts()
        _, _, hw = table_hardware(rows, gpus, Moe.format_column)
        values = _terms(hw, Moe().measured(rows, hw))
        seconds = rows["seconds"].to_numpy(dtype=np.float64)
        known = own.seconds_as_measured(rows, gpus)
        groups: dict[tuple[str, str], np.ndarray] = {}
        for kernels, part in rows.groupby("kernels"):
            groups["*", str(kernels)] = (rows["kernels"] == kernels).to_numpy()
            for chip in part["gpu"].unique():
                groups[str(chip), str(kernels)] = groups["*", str(kernels)] & (rows["gpu"] == chip)
        return OtherExperts(
            {key: fit_terms(values[m], seconds[m], known[m]) for key, m in groups.items()}
        )

    def extra_seconds(
        self, gpu: GpuSpec, form: str, kernels: str, sizes: Mapping[str, Any]
    ) -> Float[np.ndarray, "..."]:
        """What the kernels take beyond the engine's own; sizes as of ``expert_sizes`` broadcast."""
        arrays = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in sizes.values()))
        weights = self.weights.get((gpu.name, kernels), self.weights.get(("*", kernels)))
        if weights is None:
            return np.zeros(arrays[0].shape)
        rows = np.zeros(arrays[0].size, dtype=np.int64)
        hw = hardware([gpu], rows, [form], rows)
        flat = {name: a.ravel() for name, a in zip(sizes, arrays, strict=True)}
        return (_terms(hw, Moe().queried(flat, hw)) @ weights).reshape(arrays[0].shape)
