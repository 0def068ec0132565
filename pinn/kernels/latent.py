"""Latent attention: its decode and its prefill kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.kernels.hardware import Gpus, coded
from pinn.kernels.surrogate import Products, fit_terms, multiplied_seconds
from pinn.kernels.tables.attention import HIDDEN_SIZE, SHAPE
from pinn.kernels.tables.work import Work, latent_decode_work, latent_prefill_work
from pinn.physics.batch_sums import Numbers
from pinn.physics.layer_work import latent_matmuls
from pinn.specs.gpu import GpuSpec
from pinn.specs.precision import ACTIVATION_BYTES, precision

# Decode attention over compressed keys (multi-head latent attention, MLA).
#
# One launch of ordinary decode attention with a single KV head, plus the time its keys and
# multiplications take: weights of read time, compute time, the slower of the two and a start,
# fitted per chip and cache format to how measured modules grow with the context. The start is
# what a short read takes beyond its bytes: splitting the keys, waiting for the first of them,
# merging.

#: Of arguments that broadcast.
Times = np.ndarray | np.float64
#: Where nothing was measured: four fifths of the slower of the datasheet's rates and no start, an
#: assumption.
UNMEASURED = np.array([0.0, 0.0, 1.25, 0.0])
#: Reading time at which half of the start is paid. Of 1 to 6 us the one that fits measured modules
#: of 4 to 128 sequences with 512 to 16,384 tokens best, though hardly better than its neighbours.
_HALF_START_SECONDS = 4e-6
#: A unit that makes the fitted start of order one; it decides nothing.
_START_SECONDS = 1e-6


def _terms(gpu: GpuSpec, kv_bytes: Numbers, *sizes: Numbers) -> np.ndarray:
    sequences, context, heads, rank, rope = sizes
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
    def fit(rows: pd.DataFrame, gpus: Gpus) -> LatentCore:
        """Fit to measured modules, by their relative error; no rows leave ``UNMEASURED`` for all.

        So a row in whose time the context hardly shows has hardly a say.
        """
        if len(rows) == 0:
            return LatentCore()
        found: dict[tuple[str, str], np.ndarray] = {}
        pools: dict[str, list[tuple[np.ndarray, ...]]] = {}
        for (chip, form), part in rows.groupby(["gpu", "kv_precision"]):
            sequences, context, heads, seconds, core = (
                part[name].to_numpy(dtype=np.float64)
                for name in ("sequences", "context_tokens", "heads", "seconds", "core_seconds")
            )
            gpu, kv_bytes = gpus[str(chip)], precision(str(form)).bytes_per_weight
            shape = (SHAPE.kv_lora_rank, SHAPE.qk_rope_head_dim)
            values = _terms(gpu, kv_bytes, sequences, context, heads, *shape)
            without = seconds - core
            found[str(chip), str(form)] = fit_terms(values, seconds, without)
            pools.setdefault(str(form), []).append((values, seconds, without))
        for form, parts in pools.items():
            values, seconds, without = (np.concatenate(one) for one in zip(*parts, strict=True))
            found["*", form] = fit_terms(values, seconds, without)
        return LatentCore(found)

    def seconds(self, gpu: GpuSpec, form: str, *sizes: Numbers) -> Times:
        """Return what the context adds to a launch, at least the floor. Arguments broadcast.

        Args:
            gpu: The chip.
            form: Number format of the cache.
            sizes: Sequences, tokens of context, heads on this rank, and the widths of the latent
                vector and of the rotary key.
        """
        values = _terms(gpu, precision(form).bytes_per_weight, *sizes)
        weights = self.weights.get((gpu.name, form), self.weights.get(("*", form), UNMEASURED))
        read, compute = values[..., 0], values[..., 1]
        return np.maximum(values @ weights, np.maximum(read, compute / 2.0))


# Prefill attention of multi-head latent attention (MLA): full heads, keys wider than values.
#
# Measured are whole modules, projections included. The projections are multiplications whose
# time is known; of the rest, what grows with (query, key) pairs is the attention kernel, and
# what grows with tokens and heads moves its operands: keys put together from two parts, queries
# rotated. Terms that depend on neither, launches and passes over the hidden state, are fitted
# and left out: they are the layer's, and in most tables ran operation by operation where a
# server fuses them.

#: Weights of moving the operands once, and of the attention's roofline. Where nothing was
#: measured: four fifths of the datasheet's rates, as for decodes, an assumption.
UNMEASURED_PREFILL = np.array([1.25, 1.25])
_LAUNCH_SECONDS = 1e-5


def _times(work: Work, bandwidth: object, bf16_rate: object) -> tuple[Times, Times]:
    """Moving queries, keys, values and outputs once; multiplying."""
    return (work.read_bytes + work.activation_bytes) / bandwidth, work.flop / bf16_rate


@dataclass(frozen=True)
class LatentPrefill:
    """Weights by chip, whatever the cache's format: the kernel reads 16-bit keys and values.

    Attributes:
        weights: ``(chip,) -> `` weights as of ``UNMEASURED``. Chip ``*`` pools every chip. The
            weight of moving is the same for all, the least of any table: it is 1 to 7, the higher
            the more passes over the hidden state a table's module made, so the rest is not the
            attention's but rotations and norms that ran operation by operation.
    """

    weights: dict[tuple[str], Float[np.ndarray, " terms"]] = field(default_factory=dict)

    @staticmethod
    def fit(rows: pd.DataFrame, gpus: Gpus, products: Products) -> LatentPrefill:
        """Fit to measured modules; no rows leave ``UNMEASURED`` for all.

        Args:
            rows: As of ``LATENT_PREFILL_LAYOUT``.
            gpus: Datasheets by the names in the rows.
            products: Times of multiplications, as ``OperatorSurrogate.seconds`` of them.
        """
        if len(rows) == 0:
            return LatentPrefill()
        parts = []
        matmuls = partial(latent_matmuls, SHAPE, HIDDEN_SIZE, count=1, weights=precision("bf16"))
        for chip, part in rows.groupby("gpu"):
            gpu = gpus[str(chip)]
            tokens = (part["sequences"] * part["tokens"]).to_numpy(dtype=np.float64)
            heads = part["heads"].to_numpy()
            known = multiplied_seconds(heads, tokens, matmuls, partial(products, gpu))
            parts.append((str(chip), _module_terms(part, gpu), part["seconds"].to_numpy(), known))
        fitted = {chip: fit_terms(*columns) for chip, *columns in parts}
        moving = min(weights[2] for weights in fitted.values())
        pooled = [np.concatenate(column) for column in zip(*(p[1:] for p in parts), strict=True)]
        fitted["*"] = fit_terms(*pooled)
        return LatentPrefill({(chip,): np.array([moving, w[3]]) for chip, w in fitted.items()})

    def seconds(self, gpu: object, *sizes: Numbers) -> Times:
        """Return what chunks take beyond a launch, at least the floor. Arguments broadcast.

        Args:
            gpu: The chip, or a ``Coded`` of several.
            sizes: Chunks; new tokens of each; tokens before them, over which vLLM runs the same
                kernel and merges; heads on this rank; and the widths of queries and keys, and of
                values.
        """
        chips = coded(gpu)
        bandwidth = np.array([g.memory_bandwidth_bytes_per_s for g in chips.options])[chips.ids]
        bf16_rate = np.array([g.peak_flop_per_s["bf16"] for g in chips.options])[chips.ids]
        pool = self.weights.get(("*",), UNMEASURED_PREFILL)
        weights = np.array([self.weights.get((g.name,), pool) for g in chips.options])[chips.ids]
        work = latent_prefill_work(*sizes)
        moving, compute = _times(work, bandwidth, bf16_rate)
        found = weights[..., 0] * moving + weights[..., 1] * np.maximum(moving, compute)
        return np.maximum(found, np.maximum(work.read_bytes / bandwidth, compute / 2.0))


def _module_terms(rows: pd.DataFrame, gpu: GpuSpec) -> Float[np.ndarray, "rows 4"]:
    """Launches; a pass over the hidden state; moving the operands once; the attention's roofline.

    In seconds at the datasheet's rates, a launch of 10 us.
    """
    sequences, tokens, heads = (
        rows[name].to_numpy(dtype=np.float64) for name in ("sequences", "tokens", "heads")
    )
    work = latent_prefill_work(sequences, tokens, 0.0, heads, SHAPE.head_dim, SHAPE.v_head_dim)
    bandwidth = gpu.memory_bandwidth_bytes_per_s
    moving, compute = _times(work, bandwidth, gpu.peak_flop_per_s["bf16"])
    hidden = ACTIVATION_BYTES * sequences * tokens * HIDDEN_SIZE / bandwidth
    launch = np.full(len(rows), _LAUNCH_SECONDS)
    return np.stack([launch, hidden, moving, np.maximum(moving, compute)], axis=1)
