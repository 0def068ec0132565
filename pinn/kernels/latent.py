"""Kernels of multi-head latent attention (MLA) in decode and in prefill."""

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
# The model of this kernel's time is one launch of grouped-query decode attention with a single KV
# head, plus a time that grows with the keys. The latter is a weighted sum of read time, compute
# time, the maximum of the two, and a start-up time. The weights are fitted per GPU and cache format
# to the growth of measured module times with the context. The start-up time is the fixed cost of a
# short read: splitting the keys, waiting for the first ones, and merging.

#: Numbers or arrays (seconds, or kernel sizes) that broadcast together.
Times = np.ndarray | np.float64
#: Assumed weights without measurements: kernels reach four fifths of the memory bandwidth or peak
#: FLOP/s and have no start-up time.
UNMEASURED = np.array([0.0, 0.0, 1.25, 0.0])
#: Read time of the keys at which half of the start-up time is charged. Of the values from 1 to 6
#: us, 4 us best fits measured modules of 4 to 128 sequences with 512 to 16,384 tokens, but
#: neighboring values are hardly worse.
_HALF_START_SECONDS = 4e-6
#: Unit of the fitted start-up time, chosen so that its weight is of order one. Predictions do not
#: depend on it.
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
    """Fitted weights of the terms of MLA's decode attention time.

    The terms are read time, compute time, the maximum of the two, and a start-up time.

    Attributes:
        weights: Weights by (GPU, cache format); GPU ``*`` pools all GPUs.
    """

    weights: dict[tuple[str, str], Float[np.ndarray, " terms"]] = field(default_factory=dict)

    @staticmethod
    def fit(rows: pd.DataFrame, gpus: Gpus) -> LatentCore:
        """Fit weights to measured MLA modules by relative error; without rows, use ``UNMEASURED``.

        Because errors are relative, rows whose time hardly depends on the context have little
        influence.
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
        """Return the time in seconds of decode attention beyond a launch. Arguments broadcast.

        The result is at least the roofline lower bound.

        Args:
            gpu: GPU of the kernel.
            form: Number format of the cache.
            sizes: Sequences, context tokens per sequence, heads on this rank, and the widths of the
                latent vector and of the rotary key.
        """
        values = _terms(gpu, precision(form).bytes_per_weight, *sizes)
        weights = self.weights.get((gpu.name, form), self.weights.get(("*", form), UNMEASURED))
        read, compute = values[..., 0], values[..., 1]
        return np.maximum(values @ weights, np.maximum(read, compute / 2.0))


# Prefill attention of multi-head latent attention (MLA): all heads, with keys wider than values.
#
# Whole modules were measured, including projections, which are matrix products of known time. Of
# the remaining time, the part that grows with the (query, key) pairs is that of the attention
# kernel. The part that grows with tokens and heads moves the operands: keys are concatenated from
# two parts, and queries are rotated. Terms that depend on neither (launches, passes over the hidden
# state) are fitted and then dropped. They belong to the rest of the layer, and most tables measured
# them unfused, while servers fuse them.

#: Assumed weights, without measurements, of moving the operands once and of the attention's
#: roofline. As in decodes, kernels reach four fifths of the memory bandwidth or peak FLOP/s.
UNMEASURED_PREFILL = np.array([1.25, 1.25])
_LAUNCH_SECONDS = 1e-5


def _times(work: Work, bandwidth: object, bf16_rate: object) -> tuple[Times, Times]:
    """Return two times in seconds per row: to move the operands, and to multiply them.

    The operands are queries, keys, values and outputs.
    """
    return (work.read_bytes + work.activation_bytes) / bandwidth, work.flop / bf16_rate


@dataclass(frozen=True)
class LatentPrefill:
    """Fitted weights of the terms of MLA's prefill attention time, with 16-bit keys and values.

    Attributes:
        weights: Weights of the operands' time and the roofline time, by key ``(chip,)``. Chip ``*``
            pools all GPUs. The weight for moving operands is the same for all GPUs: the minimum
            over all tables. Fitted weights range from 1 to 7. They are larger for tables whose
            modules read the hidden state more often, because rotations and norms, which are not
            part of attention, ran unfused.
    """

    weights: dict[tuple[str], Float[np.ndarray, " terms"]] = field(default_factory=dict)

    @staticmethod
    def fit(rows: pd.DataFrame, gpus: Gpus, products: Products) -> LatentPrefill:
        """Fit weights to measured MLA modules; without rows, ``UNMEASURED_PREFILL`` applies.

        Args:
            rows: Measured modules (attention with projections), with the columns of
                ``LATENT_PREFILL_LAYOUT``.
            gpus: Datasheets by the names in the rows.
            products: Function that returns the time in seconds of matrix products, such as
                ``OperatorSurrogate.seconds``.
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
        """Return the time in seconds of prefill attention beyond a launch. Arguments broadcast.

        The result is at least the roofline lower bound.

        Args:
            gpu: GPU of the kernel, or one GPU per row as a ``Coded``.
            sizes: Number of chunks; new tokens per chunk; cached tokens per chunk, for which vLLM
                runs the same kernel and merges the results; heads on this rank; and the widths of
                queries and keys, and of values.
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
    """Return the four terms of each measured MLA module's time, in seconds.

    The terms are a launch (10 us), moving the hidden states, moving the operands, and the
    attention's roofline. The last three are times at the GPU's memory bandwidth and peak FLOP/s.
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
