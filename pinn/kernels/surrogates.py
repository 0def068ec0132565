"""All kernel surrogates in one object, which predicts the time of any kernel on any GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from pinn.common import files, progress
from pinn.common.code import code_digest
from pinn.kernels import stored
from pinn.kernels.all_reduce import AllReduce
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.gemm_attention_moe import DecodeAttention, Gemm, Moe, PrefillAttention
from pinn.kernels.latent import LatentCore, LatentPrefill
from pinn.kernels.mixer_operators import MixerFits, mixer_shapes
from pinn.kernels.operator import Operator, TrainingPlan
from pinn.kernels.stored import MeasuredShapes
from pinn.kernels.surrogate import OperatorSurrogate, OtherExperts
from pinn.kernels.tables.tables import KernelTables
from pinn.physics.batch_sums import Numbers
from pinn.specs.gpu import GpuSpec

OPERATORS: tuple[Operator, ...] = (Gemm(), DecodeAttention(), PrefillAttention(), Moe())

#: Types of fits whose arrays have composite keys such as (GPU, format), by field of
#: :class:`KernelSurrogates`.
_FITS: dict[str, type[Any]] = {
    "other_experts": OtherExperts, "all_reduce": AllReduce, "exchange": AllReduce,
    "fused_all_reduce": AllReduce,
    "latent": LatentCore, "latent_prefill": LatentPrefill, "mixers": MixerFits,
}  # fmt: skip
_KEYS = {
    part: {f.name: part if f.name == "weights" else f"{part}.{f.name}" for f in fields(kind)}
    for part, kind in _FITS.items()
}

#: Times in seconds of kernel calls, of any shape.
Seconds = Float[np.ndarray, "..."]


@dataclass(frozen=True)
class KernelSurrogates:
    """Surrogates of all kernels of a serving step.

    All methods accept arrays that broadcast together and return float64 seconds. ``gpu`` is a
    ``GpuSpec``, and formats are names of ``pinn.specs.precision``; either may be a ``Coded``, which
    has a value per row. No time decreases when tokens, sequences, context or matrix widths grow, or
    is below the roofline lower bound. The time for no work is 0. Sizes are per rank.

    Attributes:
        gemm: Matrix products ``[m, k] x [k, n]``, by number format of the weights.
        decode_attention: Attention of one new token per sequence; the context includes this token.
            A window of 0 means full attention.
        prefill_attention: Causal attention of new prompts. A chunk of p tokens after s cached ones
            counts as a prompt of sqrt(p^2 + 2 p s) tokens.
        moe: Routed experts.
        other_experts: Extra time of expert kernels that the engine does not select by default.
        all_reduce: All-reduce of tensor parallelism within a node, with vLLM's own kernels.
        fused_all_reduce: All-reduce with the kernel that can be fused with a norm.
        exchange: Dispatch of tokens to experts and combine of results in one layer, if ranks have
            different tokens. It consists of NCCL's all-gather and reduce-scatter (vLLM's default)
            of all ranks' tokens.
        latent: MLA's decode attention.
        latent_prefill: MLA's prefill attention.
        mixers: Kernels of recurrent layers and sparse attention.
        measured: Shapes of the measured kernels, by kernel type.
        metadata: Description of the training data, JSON-ready.
    """

    gemm: OperatorSurrogate
    decode_attention: OperatorSurrogate
    prefill_attention: OperatorSurrogate
    moe: OperatorSurrogate
    other_experts: OtherExperts
    all_reduce: AllReduce
    fused_all_reduce: AllReduce
    exchange: AllReduce
    latent: LatentCore
    latent_prefill: LatentPrefill
    measured: Mapping[str, MeasuredShapes]
    mixers: MixerFits = field(default_factory=MixerFits)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def fit(
        tables: KernelTables,
        *,
        exclude: Exclusion | None = None,
        seed: int = 0,
        plans: Mapping[str, TrainingPlan] | None = None,
        shared: Path | None = None,
    ) -> KernelSurrogates:
        """Fit all surrogates, which takes about 100 seconds on one core.

        Args:
            tables: Measured kernels.
            exclude: Held-out models and GPUs; None to hold out nothing.
            seed: Random seed for all random choices.
            plans: Training plans that differ from the default, by name of the kernel type.
            shared: Folder in which the fit of each kernel type is cached, for reuse by exclusions
                that remove no row of this type; None for no cache.

        Raises:
            PinnError: If the exclusion leaves a kernel type without rows.
        """
        exclude = exclude or Exclusion()
        kept = exclude.apply(tables)
        fitted: dict[str, OperatorSurrogate] = {}
        measured: dict[str, MeasuredShapes] = {}
        for operator in OPERATORS:
            progress.doing(f"fitting kernel surrogates: {exclude.slug()}, {operator.name}")
            rows = getattr(kept, operator.name)
            how = rows, kept.gpus, seed, (plans or {}).get(operator.name, operator.plan)
            fitted[operator.name] = stored.shared_operator(shared, operator, *how)
            series = operator.axes[:1] if operator.name == "gemm" else operator.axes
            names = [c for c in (*operator.axes, *operator.shape) if c not in series]
            measured[operator.name] = MeasuredShapes.of(rows, names, series, operator.format_column)
        progress.doing(f"fitting kernel surrogates: {exclude.slug()}, communication and mixers")
        products = fitted["gemm"].seconds
        return KernelSurrogates(
            **fitted,
            other_experts=OtherExperts.fit(kept.other_experts, kept.gpus, fitted["moe"]),
            all_reduce=AllReduce.fit(kept.all_reduce, kept.gpus),
            fused_all_reduce=AllReduce.fit(kept.fused_all_reduce, kept.gpus),
            exchange=AllReduce.fit(kept.exchange, kept.gpus),
            latent=LatentCore.fit(kept.latent_decode, kept.gpus),
            latent_prefill=LatentPrefill.fit(kept.latent_prefill, kept.gpus, products),
            measured=measured | mixer_shapes(kept.mixers),
            mixers=MixerFits.fit(kept.mixers, kept.gpus, products),
            metadata={
                "seed": seed,
                "excluded": exclude.describe(),
                "rows": {o.name: len(getattr(kept, o.name)) for o in OPERATORS},
                "code": code_digest(KernelSurrogates),
            },
        )

    def other_experts_seconds(
        self, gpu: GpuSpec, precision: str, kernels: str, *sizes: Numbers
    ) -> Seconds:
        """Return the time of experts with CUTLASS or TRITON kernels in seconds; see ``Moe``."""
        own = self.moe.seconds(gpu, precision, *sizes)
        more = self.other_experts.extra_seconds(gpu, precision, kernels, *sizes)
        return np.where(own > 0, own + more, 0.0)

    def latent_decode_attention_seconds(
        self, gpu: GpuSpec, kv_precision: str, *sizes: Numbers
    ) -> Seconds:
        """Return the time of MLA's decode attention in seconds, without projections.

        Args:
            gpu: GPU of the kernel.
            kv_precision: Number format of the cache.
            sizes: Sizes in the order of :meth:`LatentCore.seconds`.
        """
        sequences, context = (np.asarray(size, float) for size in sizes[:2])
        tokens = np.minimum(context, 1.0)
        launch = self.decode_attention.seconds(
            gpu, kv_precision, sequences, tokens, sizes[2], 1, 256, 0
        )
        core = self.latent.seconds(gpu, kv_precision, sequences, context, *sizes[2:])
        return np.where(launch > 0, launch + core, 0.0)

    def latent_prefill_attention_seconds(self, gpu: object, *sizes: Numbers) -> Seconds:
        """Return the time of MLA's prefill attention in seconds, with 16-bit keys and values.

        The time is one launch of ordinary attention, plus a time that grows with operands and FLOP.
        The expansion of keys and values, including those of cached tokens, is counted with the
        matrix products.

        Args:
            gpu: GPU of the kernel, or one GPU per row as a ``Coded``.
            sizes: Sizes in the order of :meth:`LatentPrefill.seconds`.
        """
        sequences, tokens = (np.asarray(size, float) for size in sizes[:2])
        one = np.minimum(sequences, 1.0), np.minimum(tokens, 1.0)
        launch = self.prefill_attention.seconds(gpu, "bf16", *one, 8, 8, 128, 0)
        core = self.latent_prefill.seconds(gpu, sequences, tokens, *sizes[2:])
        return np.where(launch > 0, launch + core, 0.0)

    def digest(self) -> str:
        """Return the SHA-256 of all fitted numbers, which does not depend on code."""
        tensors, structure = self._parts()
        found = hashlib.sha256(files.sorted_json(structure | {"metadata": None}).encode())
        for name, values in sorted(tensors.items()):
            found.update(name.encode())
            found.update(np.ascontiguousarray(values).tobytes())
        return found.hexdigest()

    def save(self, folder: Path) -> None:
        """Write ``kernels.safetensors``, and ``kernels.json`` with its hash."""
        stored.write(Path(folder), *self._parts())

    @staticmethod
    def load(folder: Path) -> KernelSurrogates:
        """Read surrogates from the files that :meth:`save` wrote.

        Raises:
            PinnError: If a file is missing, has a different layout, lacks a fit, or does not match
                its hash.
        """
        found = stored.read(Path(folder))
        names = [key for keys in _KEYS.values() for key in keys.values()]
        stored.check_fits(Path(folder), found[1], names)
        parts: dict[str, Any] = {o.name: stored.read_operator(o, *found) for o in OPERATORS}
        for part, keys in _KEYS.items():
            parts[part] = _FITS[part](*(stored.read_keyed(key, *found) for key in keys.values()))
        measured = {name: stored.read_measured(name, *found) for name in found[1]["measured"]}
        return KernelSurrogates(**parts, measured=measured, metadata=found[1]["metadata"])

    def _parts(self) -> tuple[dict[str, np.ndarray], dict[str, object]]:
        """Return all fitted arrays by name, and all other data of the surrogates as JSON values."""
        operators: list[OperatorSurrogate] = [getattr(self, o.name) for o in OPERATORS]
        keyed = {
            key: dict(getattr(getattr(self, part), name))
            for part, keys in _KEYS.items()
            for name, key in keys.items()
        }
        tensors = {name: np.stack(list(of.values())) for name, of in keyed.items() if of}
        for surrogate in operators:
            tensors |= stored.operator_tensors(surrogate)
        for name, shapes in self.measured.items():
            tensors |= stored.measured_tensors(name, shapes)
        return tensors, {
            "operators": {o.operator.name: stored.operator_structure(o) for o in operators},
            "measured": {
                name: {"names": m.names, "axes": m.axes, "tables": m.tables}
                for name, m in self.measured.items()
            },
            "keys": {name: list(of) for name, of in keyed.items()},
            "metadata": dict(self.metadata),
        }
