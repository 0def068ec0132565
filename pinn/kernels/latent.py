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
# The model is one launch of ordinary decode attention with a single KV head, plus the time of
# keys and multiplications. That time is a weighted sum of read time, compute time, the slower of
# the two and a start. The weights are fitted per chip and cache format to the growth of measured
# modules with the context. The start is what a short read takes beyond its bytes: splitting the
# keys, waiting for the first of them, merging.

#: Seconds, and other arguments that broadcast.
Times = np.ndarray | np.float64
#: Weights without measurements: four fifths of the slower of the datasheet's rates and no start,
#: an assumption.
UNMEASURED = np.array([0.0, 0.0, 1.25, 0.0])
#: Reading time at which half of the start is paid. Among 1 to 6 us, it fits measured modules of 4
#: to 128 sequences with 512 to 16,384 tokens best, though hardly better than its neighbours.
_HALF_START_SECONDS = 4e-6
#: Unit that scales the fitted start to order one; it does not change predictions.
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
    """Weights of latent decode by (chip, cache format); chip ``*`` pools every chip of a format."""

    weights: dict[tuple[str, str], Float[np.ndarray, " terms"]] = field(default_factory=dict)

    @staticmethod
    def fit(rows: pd.DataFrame, gpus: Gpus) -> LatentCore:
        """Fit to measured modules by relative error; without rows, all chips get ``UNMEASURED``.

        Rows whose time hardly depends on the context therefore hardly influence the fit.
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
        """Return the seconds that the context adds to a launch. Arguments broadcast.

        The result is at least the roofline lower bound.

        Args:
            gpu: GPU of the kernel.
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
# Whole modules were measured, projections included. The projections are multiplications whose
# time is known. Of the rest, the part that grows with (query, key) pairs is the attention kernel.
# The part that grows with tokens and heads moves its operands: keys are put together from two
# parts, queries are rotated. Terms that depend on neither, launches and passes over the hidden
# state, are fitted and dropped. They belong to the layer, and most tables ran them operation by
# operation where a server fuses them.

#: Weights of moving the operands once, and of the attention's roofline, without measurements:
#: four fifths of the datasheet's rates, as for decodes. An assumption.
UNMEASURED_PREFILL = np.array([1.25, 1.25])
_LAUNCH_SECONDS = 1e-5


def _times(work: Work, bandwidth: object, bf16_rate: object) -> tuple[Times, Times]:
    """Return the seconds of moving queries, keys, values and outputs once, and of multiplying."""
    return (work.read_bytes + work.activation_bytes) / bandwidth, work.flop / bf16_rate


@dataclass(frozen=True)
class LatentPrefill:
    """Weights of latent prefill by chip; the kernel reads 16-bit keys and values in any format.

    Attributes:
        weights: ``(chip,) -> `` weights as of ``UNMEASURED_PREFILL``. Chip ``*`` pools every chip.
            The weight of moving is the same for all chips: the smallest of any table. Fitted ones
            are 1 to 7, and higher for tables whose module made more passes over the hidden state.
            The excess belongs to rotations and norms that ran operation by operation, not to
            attention.
    """

    weights: dict[tuple[str], Float[np.ndarray, " terms"]] = field(default_factory=dict)

    @staticmethod
    def fit(rows: pd.DataFrame, gpus: Gpus, products: Products) -> LatentPrefill:
        """Fit to measured modules; without rows, all chips get ``UNMEASURED_PREFILL``.

        Args:
            rows: Measured modules, as of ``LATENT_PREFILL_LAYOUT``.
            gpus: Datasheets by the names in the rows.
            products: Times of multiplications, as ``OperatorSurrogate.seconds`` gives them.
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
        """Return the seconds of chunks beyond a launch. Arguments broadcast.

        The result is at least the roofline lower bound.

        Args:
            gpu: GPU of the kernel, or a ``Coded`` of several.
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
    """Return launches, a pass over the hidden state, moving operands once, attention's roofline.

    All are seconds at the datasheet's rates; a launch is 10 us.
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
