"""Decode attention over compressed keys (multi-head latent attention, MLA).

One launch of ordinary decode attention with a single KV head, plus the time its keys and
multiplications take: weights of read time, compute time and the slower of the two, fitted per chip
and cache format to how measured modules grow with the context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.kernels.roofline_fit import fit_terms
from pinn.kernels.tables.latent import KV_LORA_RANK, ROPE_DIM
from pinn.kernels.tables.work import latent_decode_work
from pinn.specs.gpu import GpuSpec
from pinn.specs.precision import precision

#: Where nothing was measured: four fifths of the slower of the datasheet's rates, an assumption.
UNMEASURED = np.array([0.0, 0.0, 1.25])
#: Rows in whose time the context hardly shows say nothing about it; the share is an assumption.
_CORE_SHARE = 0.3


def _terms(gpu: GpuSpec, kv_bytes, sequences, context, heads, rank, rope) -> np.ndarray:
    work = latent_decode_work(sequences, context, heads, rank, rope, kv_bytes)
    read = work.read_bytes / gpu.memory_bandwidth_bytes_per_s
    compute = work.flop / gpu.peak_flop_per_s["bf16"]
    return np.stack(np.broadcast_arrays(read, compute, np.maximum(read, compute)), axis=-1)


@dataclass(frozen=True)
class LatentCore:
    """Weights by (chip, cache format); chip ``*`` pools every chip of that format."""

    weights: dict[tuple[str, str], Float[np.ndarray, " terms"]] = field(default_factory=dict)

    @staticmethod
    def fit(rows: pd.DataFrame, gpus: Mapping[str, GpuSpec]) -> LatentCore:
        """Fit to measured modules; no rows leave ``UNMEASURED`` for all."""
        if len(rows) == 0:
            return LatentCore()
        rows = rows[rows["core_seconds"] > _CORE_SHARE * rows["seconds"]]
        found: dict[tuple[str, str], np.ndarray] = {}
        pools: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for (chip, form), part in rows.groupby(["gpu", "kv_precision"]):
            values = _terms(
                gpus[str(chip)],
                precision(str(form)).bytes_per_weight,
                part["sequences"].to_numpy(dtype=np.float64),
                part["context_tokens"].to_numpy(dtype=np.float64),
                part["heads"].to_numpy(dtype=np.float64),
                KV_LORA_RANK,
                ROPE_DIM,
            )
            seconds = part["core_seconds"].to_numpy(dtype=np.float64)
            found[str(chip), str(form)] = fit_terms(values, seconds)
            pools.setdefault(str(form), []).append((values, seconds))
        for form, parts in pools.items():
            values, seconds = (np.concatenate(column) for column in zip(*parts, strict=True))
            found["*", form] = fit_terms(values, seconds)
        return LatentCore(found)

    def seconds(
        self, gpu: GpuSpec, form: str, sequences, context, heads, rank, rope
    ) -> Float[np.ndarray, "..."] | np.float64:
        """What the context adds to a launch, at least the floor. Arguments broadcast."""
        kv_bytes = precision(form).bytes_per_weight
        values = _terms(gpu, kv_bytes, sequences, context, heads, rank, rope)
        weights = self.weights.get((gpu.name, form), self.weights.get(("*", form), UNMEASURED))
        read, compute = values[..., 0], values[..., 1]
        return np.maximum(values @ weights, np.maximum(read, compute / 2.0))
