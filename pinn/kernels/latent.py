"""Decode attention over compressed keys (multi-head latent attention, MLA).

One launch of ordinary decode attention with a single KV head, plus the time its keys and
multiplications take: weights of read time, compute time, the slower of the two and a start, fitted
per chip and cache format to how measured modules grow with the context. The start is what a short
read takes beyond its bytes: splitting the keys, waiting for the first of them, merging.
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

#: Where nothing was measured: four fifths of the slower of the datasheet's rates and no start, an
#: assumption.
UNMEASURED = np.array([0.0, 0.0, 1.25, 0.0])
#: Reading time at which half of the start is paid. Of 1 to 6 us the one that fits measured modules
#: of 4 to 128 sequences with 512 to 16,384 tokens best, though hardly better than its neighbours.
_HALF_START_SECONDS = 4e-6
#: A unit that makes the fitted start of order one; it decides nothing.
_START_SECONDS = 1e-6


def _terms(gpu: GpuSpec, kv_bytes, sequences, context, heads, rank, rope) -> np.ndarray:
    work = latent_decode_work(sequences, context, heads, rank, rope, kv_bytes)
    read = work.read_bytes / gpu.memory_bandwidth_bytes_per_s
    compute = work.flop / gpu.peak_flop_per_s["bf16"]
    start = _START_SECONDS * read / (read + _HALF_START_SECONDS)
    return np.stack(np.broadcast_arrays(read, compute, np.maximum(read, compute), start), axis=-1)


@dataclass(frozen=True)
class LatentCore:
    """Weights by (chip, cache format); chip ``*`` pools every chip of that format."""

    weights: dict[tuple[str, str], Float[np.ndarray, " terms"]] = field(default_factory=dict)

    @staticmethod
    def fit(rows: pd.DataFrame, gpus: Mapping[str, GpuSpec]) -> LatentCore:
        """Fit to measured modules, by their relative error; no rows leave ``UNMEASURED`` for all.

        So a row in whose time the context hardly shows has hardly a say.
        """
        if len(rows) == 0:
            return LatentCore()
        found: dict[tuple[str, str], np.ndarray] = {}
        pools: dict[str, list[tuple[np.ndarray, ...]]] = {}
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
            seconds = part["seconds"].to_numpy(dtype=np.float64)
            without = seconds - part["core_seconds"].to_numpy(dtype=np.float64)
            found[str(chip), str(form)] = fit_terms(values, seconds, without)
            pools.setdefault(str(form), []).append((values, seconds, without))
        for form, parts in pools.items():
            values, seconds, without = (np.concatenate(one) for one in zip(*parts, strict=True))
            found["*", form] = fit_terms(values, seconds, without)
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
