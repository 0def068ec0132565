"""Choice of kernels by an engine, for attention and for experts."""

from dataclasses import replace
from functools import cache

from pinn.engines.recipe import DEFAULT, EffectiveRecipe, Origin, engine_rows, release_kernels
from pinn.errors import PinnError
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import ModelSpec

# Engines whose kernels differ from vLLM's, and the relative time of these kernels.

#: Kernels of decode attention: ``AUTO`` for those that vLLM runs on the GPU, ``XQA`` for
#: TensorRT-LLM's own (this name is from memory, not from a source). By the labels of
#: aiconfigurator-core 0.12.0 (``generation_attention_perf``) vLLM runs FlashAttention 3 on Hopper
#: and TensorRT-LLM's kernels, which FlashInfer brings, on Blackwell; SGLang does the same.
AUTO, XQA = "auto", "xqa"
HOPPER = 9.0
#: Time of XQA's kernels on Hopper relative to FlashAttention 3's in vLLM 0.24.0, by the bits of a
#: cached element: geometric means over H100 and H200 (1.10 and 1.14; 0.69 and 0.63) of all shapes
#: that both tables have, without a window, with heads of 64 or 128 elements, where vLLM's take
#: 30 us or more. Shorter ones do not compare: TensorRT-LLM's operator rotates and stores keys as
#: well. On Blackwell, where both run the same kernels, the same means are 1.06 and 1.04. Of Ampere,
#: Ada and RTX one card each was timed: nothing is said of them.
XQA_TIME = {16: 1.12, 8: 0.66}


# Kernels of routed experts: the engine's own choice, or others with timings of their own.

AUTO, TRITON, CUTLASS, MARLIN = "auto", "triton", "cutlass", "marlin"

#: Format with which Marlin's expert kernels were timed; they expand any weights of 4 bits alike.
MARLIN_FORMAT = "int4_wo"


#: Names of kernels in the engines' own spellings: vLLM's ``--moe-backend``, SGLang's
#: ``--moe-runner-backend`` and TensorRT-LLM's ``moe_config.backend``. Those that are timed as the
#: engine's own choice in the kernel tables are ``AUTO``.
@cache
def kernel_names() -> dict[str, str]:
    """Return every name in ``data/engines/kernel_names.csv`` with the kernels that it means."""
    return {row["name"]: row["kernels"] for row in engine_rows("kernel_names.csv")}


def named_kernels(name: str) -> str:
    """Return ``AUTO``, ``TRITON``, ``CUTLASS`` or ``MARLIN`` for a flag's value.

    Raises:
        PinnError: If no engine has such kernels.
    """
    found = kernel_names().get(name.lower())
    if found is None:
        known = ", ".join(sorted(kernel_names()))
        remedy = "give one of these, or omit --moe-backend"
        raise PinnError(f"--moe-backend {name!r} is unknown: known are {known}: {remedy}")
    return found


def known_kernels(name: str) -> str:
    """Return a flag's value in lower case, if some engine has kernels of that name.

    Raises:
        PinnError: If no engine has such kernels.
    """
    named_kernels(name)
    return name.lower()


def with_release_kernels(
    recipe: EffectiveRecipe, model: ModelSpec, gpu: GpuSpec, engine: str, version: str
) -> EffectiveRecipe:
    """Return the recipe with the kernels that the release picks, unless a flag names some.

    Args:
        recipe: Recipe from flags and defaults.
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
    """Return the flag value whose kernels are timed as ``AUTO`` on a GPU, for any release."""
    return TRITON if gpu.compute_capability == HOPPER else "flashinfer_trtllm"
