"""Whether an engine would start on its GPUs, with how large a KV cache, and from which size on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from pinn.errors import PinnError
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.memory import kv_layout
from pinn.specs.deployment import Deployment
from pinn.specs.serving import ServingSpec

#: Tensor-parallel sizes that are tried, smallest first.
TENSOR_PARALLEL_SIZES = (1, 2, 4, 8, 16, 32)
_DEFAULTS = EngineSpec()


@dataclass(frozen=True)
class MemoryFit:
    """What the memory of a replica's GPUs allows.

    Attributes:
        kv_tokens: Tokens that the KV cache holds, as vLLM logs it at start; None where the engine
            does not start.
        reason: Why it does not: weights, activations and one request of max_model_len have to fit.
    """

    kv_tokens: int | None
    reason: str = ""

    @property
    def fits(self) -> bool:
        """Whether the engine starts."""
        return self.kv_tokens is not None


def memory_fit(deployment: Deployment) -> MemoryFit:
    """What the memory of a replica allows, under the engine's defaults.

    ``vllm/v1/core/kv_cache_utils.py: _report_kv_cache_config`` counts the tokens: blocks / groups x
    block size.
    """
    try:
        layout = kv_layout(deployment, _DEFAULTS)
    except PinnError as error:
        return MemoryFit(None, str(error))
    groups = layout.full_groups + layout.window_groups
    return MemoryFit(layout.blocks // groups * deployment.recipe.block_tokens)


def smallest_tensor_parallel_size(
    deployment: Deployment, known: Mapping[int, MemoryFit] | None = None
) -> int | None:
    """The fewest GPUs that share each layer with which the engine starts, all else equal.

    Args:
        deployment: The rest of it.
        known: Tensor-parallel size -> fit, where it was found before.

    Returns:
        One of ``TENSOR_PARALLEL_SIZES``; None where it starts with none of them.
    """
    for size in TENSOR_PARALLEL_SIZES:
        fit = (known or {}).get(size) or _resized(deployment, size)
        if fit is not None and fit.fits:
            return size
    return None


def _resized(deployment: Deployment, size: int) -> MemoryFit | None:
    """The fit at another tensor-parallel size; None where that does not divide the heads."""
    try:
        serving = _of_size(deployment.serving, size)
        return memory_fit(replace(deployment, serving=serving))
    except PinnError:
        return None


@lru_cache(maxsize=4096)
def _of_size(serving: ServingSpec, size: int) -> ServingSpec:
    """The flags with another tensor-parallel size."""
    return replace(serving, tensor_parallel_size=size)
