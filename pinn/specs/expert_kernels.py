"""Which kernels multiply routed experts: the engine's own choice, or others, timed apart."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from functools import cache

from pinn.errors import PinnError
from pinn.specs.data_folder import data_folder
from pinn.specs.engine_defaults import release
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import ModelSpec
from pinn.specs.recipe import DEFAULT, EffectiveRecipe, Origin

AUTO, TRITON, CUTLASS, MARLIN = "auto", "triton", "cutlass", "marlin"
_HOPPER = 9.0

#: The format whose experts Marlin was timed with: it expands weights of 4 bits, whichever they are.
MARLIN_FORMAT = "int4_wo"

#: Names of kernels in the engines' own spellings: vLLM's ``--moe-backend``, SGLang's
#: ``--moe-runner-backend`` and TensorRT-LLM's ``moe_config.backend``. Those that are timed as the
#: engine's own choice in the kernel tables are ``AUTO``.
NAMES: dict[str, str] = {
    "triton": TRITON,
    "cutlass": CUTLASS,
    "flashinfer_cutlass": CUTLASS,
    "marlin": MARLIN,
    **dict.fromkeys(
        (
            AUTO, "aiter", "cutedsl", "deep_gemm", "deepgemm", "emulation", "flashinfer_cutedsl",
            "flashinfer_mxfp4", "flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_b12x",
            "trtllm", "triton_kernel", "triton_kernels", "vanilla", "wideep",
            # What a release picks by itself (data/engines/expert_kernels.csv).
            "flashinfer_trtllm_mxfp4_bf16", "sm100_fi_mxfp4_bf16", "vllm_cutlass",
        ),
        AUTO,
    ),
}  # fmt: skip


def named_kernels(name: str) -> str:
    """``AUTO``, ``TRITON``, ``CUTLASS`` or ``MARLIN`` of a flag's value.

    Raises:
        PinnError: If no engine has such kernels.
    """
    found = NAMES.get(name.lower())
    if found is None:
        raise PinnError(
            f"--moe-backend {name!r} is none of {', '.join(sorted(NAMES))}: give one of them or "
            "leave it out"
        )
    return found


def known_kernels(name: str) -> str:
    """A flag's value in small letters, where it names kernels that some engine has.

    Raises:
        PinnError: If no engine has such kernels.
    """
    named_kernels(name)
    return name.lower()


@dataclass(frozen=True)
class KernelDefault:
    """A line of the table of what releases pick; the first that fits counts.

    Attributes:
        engine: ``vllm`` and other engines of the table.
        form: Number format of the experts' weights.
        since: First release; None for all before.
        until: First release that it no longer holds for; None for all after.
        least: Lowest compute capability.
        below: Capability that the GPU's is below.
        spread: Ways to spread experts, of ``tp``, ``ep`` and ``dp``; empty for any.
        kernels: The engine's own name of them.
        source: Where it is from.
    """

    engine: str
    form: str
    since: tuple[int, ...] | None
    until: tuple[int, ...] | None
    least: float
    below: float
    spread: tuple[str, ...]
    kernels: str
    source: str


@cache
def kernel_defaults() -> tuple[KernelDefault, ...]:
    """Every line of ``expert_kernels.csv``, which ``scripts/read_engines.py`` writes."""
    path = data_folder("engines") / "expert_kernels.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(
            KernelDefault(
                row["engine"],
                row["format"],
                release(row["since"]) if row["since"] else None,
                release(row["until"]) if row["until"] else None,
                float(row["least_capability"] or 0),
                float(row["below_capability"] or math.inf),
                tuple(row["spread"].split()),
                row["kernels"],
                row["source"],
            )
            for row in csv.DictReader(file)
        )


@cache
def release_kernels(
    engine: str, version: str, form: str, capability: float, spread: str
) -> KernelDefault | None:
    """What a release picks by itself; None where that was not read.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: As ``--engine-version``.
        form: Number format of the experts' weights.
        capability: Compute capability of the GPU.
        spread: ``tp`` where each expert is cut over tensor-parallel GPUs, ``ep`` where whole ones
            are spread over those, ``dp`` where over ranks of data parallelism.
    """
    numbers = release(version)
    for line in kernel_defaults():
        if (
            (line.engine, line.form) == (engine, form)
            and (line.since is None or line.since <= numbers)
            and (line.until is None or numbers < line.until)
            and line.least <= capability < line.below
            and (not line.spread or spread in line.spread)
        ):
            return line
    return None


def with_release_kernels(
    recipe: EffectiveRecipe, model: ModelSpec, gpu: GpuSpec, engine: str, version: str
) -> EffectiveRecipe:
    """The recipe with the kernels that the release picks, where no flag names any.

    Args:
        recipe: By flags and defaults.
        model: What is served.
        gpu: What it runs on.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: The release whose defaults hold.
    """
    if model.moe is None or recipe.moe_kernels != AUTO:
        return recipe
    whole, replicas = recipe.expert_parallel_size > 1, recipe.data_parallel_size > 1
    spread = "dp" if whole and replicas else "ep" if whole else "tp"
    form = model.precisions.experts.name
    found = release_kernels(engine, version, form, gpu.compute_capability, spread)
    if found is None:
        return recipe
    origins = {**recipe.origins, "moe_kernels": Origin(DEFAULT, found.source)}
    return replace(recipe, moe_kernels=found.kernels, origins=origins)


def as_in_tables(gpu: GpuSpec) -> str:
    """A flag's value whose kernels are timed as ``AUTO`` on a GPU, whatever a release picks."""
    return TRITON if gpu.compute_capability == _HOPPER else "flashinfer_trtllm"


def timed_apart(kernels: str, expert_format: str, gpu: GpuSpec, spread: int) -> str:
    """The kernels where they differ from those that are timed as ``AUTO``; else ``AUTO``.

    Of block-scaled fp8, ``AUTO`` is Triton's kernel on Hopper, CUTLASS's where whole experts are
    spread there, and TensorRT-LLM's on data-centre Blackwell (tables of vLLM 0.24.0). So CUTLASS's
    differs on Hopper where experts are not spread, Triton's on Blackwell. Of mxfp4, ``AUTO`` is a
    kernel of its own on both, so Marlin's differs (vLLM's VLLM_MXFP4_USE_MARLIN); elsewhere Marlin
    is what ``AUTO`` picks.

    Args:
        kernels: ``AUTO``, ``TRITON``, ``CUTLASS`` or ``MARLIN``.
        expert_format: Number format of the experts' weights.
        gpu: What they run on.
        spread: GPUs over which whole experts are spread.
    """
    hopper = gpu.compute_capability == _HOPPER
    blackwell = 10.0 <= gpu.compute_capability < 11.0
    if kernels == MARLIN:
        return MARLIN if expert_format == "mxfp4" and (hopper or blackwell) else AUTO
    differs = (kernels == CUTLASS and hopper and spread == 1) or (kernels == TRITON and blackwell)
    return kernels if differs and expert_format == "fp8_block" else AUTO
