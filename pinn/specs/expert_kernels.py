"""Which kernels multiply routed experts: the engine's own choice, or others, timed apart."""

from __future__ import annotations

from pinn.errors import PinnError
from pinn.specs.gpu import GpuSpec

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
