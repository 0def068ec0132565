"""Kernels that an engine selects for decode attention and for experts."""

from dataclasses import replace
from functools import cache

from pinn.engines.recipe import DEFAULT, EffectiveRecipe, Origin, engine_rows, release_kernels
from pinn.errors import PinnError
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import ModelSpec

# Decode attention kernels of other engines, and their times relative to vLLM's kernels.

#: Kernels of decode attention. ``AUTO`` means the kernels that vLLM runs on the GPU: FlashAttention
#: 3 on Hopper, and TensorRT-LLM's kernels, which FlashInfer includes, on Blackwell. SGLang runs the
#: same kernels (labels of aiconfigurator-core 0.12.0, ``generation_attention_perf``). ``XQA`` are
#: TensorRT-LLM's own kernels on Hopper (the name was not verified in a source).
AUTO, XQA = "auto", "xqa"
HOPPER = 9.0
#: Time of XQA's kernels on Hopper relative to FlashAttention 3's in vLLM 0.24.0, by bits of a
#: cached element. The values are geometric means over H100 and H200 (1.10 and 1.14 for 16 bits;
#: 0.69 and 0.63 for 8 bits). They cover all shapes in both engines' tables that have no window,
#: heads of 64 or 128 elements, and a time of at least 30 us in vLLM. Shorter times cannot be
#: compared, because TensorRT-LLM's operator also rotates and stores keys. On Blackwell, where the
#: kernels are the same, the means are 1.06 and 1.04. Ampere, Ada and RTX have no ratio: only one
#: GPU of each was measured.
XQA_TIME = {16: 1.12, 8: 0.66}


# Kernels of routed experts: the kernel that the engine selects itself (``AUTO``), or kernels
# measured separately.

AUTO, TRITON, CUTLASS, MARLIN = "auto", "triton", "cutlass", "marlin"

#: Weight format under which Marlin's expert kernels were measured. Marlin takes the same time for
#: every 4-bit format, because it expands all of them to 16 bits.
MARLIN_FORMAT = "int4_wo"


#: Names of expert kernels as the engines spell them: vLLM's ``--moe-backend``, SGLang's
#: ``--moe-runner-backend`` and TensorRT-LLM's ``moe_config.backend``. ``AUTO`` means the kernels
#: measured under the engine's own selection.
@cache
def kernel_names() -> dict[str, str]:
    """Map each name in ``kernel_names.csv`` to the kernels that it denotes, such as ``AUTO``."""
    return {row["name"]: row["kernels"] for row in engine_rows("kernel_names.csv")}


def named_kernels(name: str) -> str:
    """Return the kernels (``AUTO``, ``TRITON``, ``CUTLASS``, ``MARLIN``) that a name denotes.

    Raises:
        PinnError: If no engine has kernels with this name.
    """
    found = kernel_names().get(name.lower())
    if found is None:
        known = ", ".join(sorted(kernel_names()))
        raise PinnError(
            f"--moe-backend {name!r} is unknown: use one of {known}, or omit --moe-backend"
        )
    return found


def known_kernels(name: str) -> str:
    """Return a name of expert kernels in lower case, after checking that an engine has them.

    Raises:
        PinnError: If no engine has kernels with this name.
    """
    named_kernels(name)
    return name.lower()


def with_release_kernels(
    recipe: EffectiveRecipe, model: ModelSpec, gpu: GpuSpec, engine: str, version: str
) -> EffectiveRecipe:
    """Set the release's default expert kernels unless a flag selects the kernels.

    Args:
        recipe: Resolved engine configuration from flags and defaults.
        model: Served model.
        gpu: GPU of the deployment.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: Release whose defaults apply.
    """
    if model.moe is None or recipe.moe_kernels != AUTO:
        return recipe
    whole, replicas = recipe.expert_parallel_size > 1, recipe.data_parallel_size > 1
    spread = "dp" if whole and replicas else "ep" if whole else "tp"
    found = release_kernels(engine, version, model.precisions.experts.name, gpu, spread)
    if found is None:
        return recipe
    origins = {**recipe.origins, "moe_kernels": Origin(DEFAULT, found.source)}
    return replace(recipe, moe_kernels=found.value, origins=origins)


def as_in_tables(gpu: GpuSpec) -> str:
    """Return the ``--moe-backend`` value that selects the kernels measured as ``AUTO``.

    The value depends on the compute capability of the GPU.
    """
    return TRITON if gpu.compute_capability == HOPPER else "flashinfer_trtllm"
