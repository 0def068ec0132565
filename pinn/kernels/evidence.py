"""Kernels of a predicted step: their sizes and times, and the nearest measured kernels."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pinn.engines.deployment import Deployment
from pinn.kernels.all_reduce import SIZES_BYTES, AllReduce
from pinn.kernels.composition import COMPOSED_PARTS, Kernels
from pinn.kernels.hardware import Coded
from pinn.kernels.mixer_operators import RECURRENT, SPARSE
from pinn.kernels.stored import MeasuredShapes, Nearest
from pinn.kernels.surrogates import KernelSurrogates
from pinn.kernels.tables.attention import SHAPE
from pinn.physics.batch_sums import UniformBatches
from pinn.specs.gpu import GpuSpec
from pinn.specs.precision import precision

#: Sizes of a kernel by name.
Sizes = Mapping[str, float]


@dataclass(frozen=True)
class KernelUse:
    """One kernel of a predicted step, with its sizes, its number of runs and its time.

    Attributes:
        operator: Part of the step, a key of ``pinn.kernels.composition.COMPOSED_PARTS``.
        precision: Number format; for recurrent layers and sparse attention, the name of the kernel
            type.
        sizes: Sizes of the kernel, by name.
        count: Number of runs per step.
        seconds: Time of one run in seconds.
        nearest: Nearest measured kernel; None if no comparable kernel was measured.
    """

    operator: str
    precision: str
    sizes: Sizes
    count: float
    seconds: float
    nearest: Nearest | None

    @property
    def total_seconds(self) -> float:
        """Return the time in seconds of all runs of the kernel in one step."""
        return self.count * self.seconds


def kernels_used(
    kernels: KernelSurrogates, deployment: Deployment, batches: UniformBatches
) -> list[KernelUse]:
    """Return the kernels of one step, longest total time first; identical kernels are merged.

    Args:
        kernels: Fitted surrogates.
        deployment: Model, GPU and engine configuration.
        batches: The batch of the step; exactly one.
    """
    found: dict[tuple[object, ...], KernelUse] = {}
    for use in _uses(kernels, deployment, batches):
        key = (use.operator, use.precision, *use.sizes.items())
        known = found.get(key)
        found[key] = use if known is None else replace(use, count=known.count + use.count)
    used = (use for use in found.values() if use.seconds > 0)
    return sorted(used, key=lambda use: -use.total_seconds)


def _uses(
    kernels: KernelSurrogates, deployment: Deployment, batches: UniformBatches
) -> Iterator[KernelUse]:
    gpu, one = Coded((deployment.gpu,), np.zeros((1, 1), int)), np.zeros((1, 1), int)
    for part, kinds in COMPOSED_PARTS.items():
        for kind in kinds:
            for call in kind.calls(deployment, batches) if kind.sizes else ():
                arguments = [np.full((1, 1), size, dtype=np.float64) for size in call.sizes]
                seconds = kind.seconds(kernels, gpu, Coded((call.form,), one), *arguments).item()
                # Sizes without a name, such as whether a norm is fused, are not shown.
                named = zip(kind.sizes, arguments[: len(kind.sizes)], strict=True)
                sizes = {name: size.item() for name, size in named}
                nearest = _nearest(kernels, part, kind, deployment.gpu, call.form, sizes)
                count = np.asarray(call.count, dtype=np.float64).item()
                yield KernelUse(part, call.form, sizes, count, seconds, nearest)


def _nearest(
    kernels: KernelSurrogates, part: str, kind: Kernels, gpu: GpuSpec, form: str, sizes: Sizes
) -> Nearest | None:
    if kind.operator in (RECURRENT, SPARSE):
        shapes = kernels.measured.get(kind.operator)
        if shapes is None or form not in {operator for _, operator in shapes.tables}:
            return None
        return shapes.nearest(gpu.name, form, sizes)
    if kind.operator:
        measured = kernels.measured[kind.operator]
        return measured.nearest(gpu.name, _timed_format(measured, form), sizes)
    if "bytes" in sizes:
        timed_messages = kernels.exchange if part == "exchange" else kernels.all_reduce
        return _nearest_message(timed_messages, gpu, form, sizes)
    chips = [chip for chip, cache in kernels.latent.weights if cache == form]
    if "v_head_dim" in sizes:
        chips = [chip for (chip,) in kernels.latent_prefill.weights]
    return _nearest_latent(chips, gpu, form, sizes)


def _timed_format(measured: MeasuredShapes, form: str) -> str:
    """Return the format if its kernels were measured, or else a format with the same arithmetic."""
    formats, form = sorted({timed for _, timed in measured.tables}), precision(form).kernels
    if form in formats:
        return form
    math = precision(form).math
    return next((timed for timed in formats if precision(timed).math == math), form)


def _nearest_message(timed: AllReduce, gpu: GpuSpec, form: str, sizes: Sizes) -> Nearest | None:
    """Return the nearest all-reduce measured on this GPU or, if there is none, on its link type."""
    own = [n for name, n in timed.curves if name == gpu.name]
    link = "nvlink" if gpu.has_nvlink else "pcie"
    pooled = [n for name, n in timed.pools if name == link]
    if not own and not pooled:
        return None
    ranks = min(own or pooled, key=lambda n: abs(np.log(n / sizes["gpus"])))
    size = max(sizes["bytes"], 1.0)
    inside = float(np.clip(size, SIZES_BYTES[0], SIZES_BYTES[-1]))
    stretch = float(max(abs(np.log(ranks / sizes["gpus"])), abs(np.log(size / inside))))
    place = gpu.name if own else f"all with {link}"
    return Nearest({"gpus": float(ranks), "bytes": inside}, place, form, stretch)


#: Shape of latent attention in the tables, which contain only this one.
_LATENT_SHAPE = {
    "kv_lora_rank": SHAPE.kv_lora_rank, "rope_dim": SHAPE.qk_rope_head_dim,
    "qk_head_dim": SHAPE.head_dim, "v_head_dim": SHAPE.v_head_dim,
}  # fmt: skip


def _nearest_latent(chips: Sequence[str], gpu: GpuSpec, form: str, sizes: Sizes) -> Nearest | None:
    """Return the measured MLA shape that is nearest to the given sizes; None if there is none.

    Tables contain one MLA shape, measured on this GPU or on others. Batch sizes are not compared.
    """
    shape = {name: size for name, size in _LATENT_SHAPE.items() if name in sizes}
    if not chips or not shape:
        return None
    stretch = max(abs(float(np.log(sizes[name] / size))) for name, size in shape.items())
    place = gpu.name if gpu.name in chips else "all chips"
    return Nearest({name: float(size) for name, size in shape.items()}, place, form, stretch)
