"""How large the KV cache of a replica is, and whether its engine starts.

Follows ``vllm/v1/core/kv_cache_utils.py: get_kv_cache_configs``.
"""

from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from pinn.common.documents import MOST_BLOCKS
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.memory.kv_layout import (
    KvLayout,
    empty_layout,
    max_model_len,
    state_bytes,
)
from pinn.memory.ledger import Reserve, memory_ledger
from pinn.memory.longest_request import counted_blocks, logged_blocks, start_blocks
from pinn.specs.serving import VLLM, ServingSpec
from pinn.units import GIB

#: Most of what weights leave that SGLang gives to recurrent states, against keys and values
#: (server_args.py: mamba_full_memory_ratio 0.9); TensorRT-LLM's is taken to be the same.
STATE_SHARE = 0.9 / 1.9


def kv_layout(deployment: Deployment, engine: EngineSpec) -> KvLayout:
    """Size the KV cache of one replica.

    Raises:
        PinnError: If the weights do not fit, or the cache cannot hold one request of max_model_len
            (as ``check_enough_kv_cache_memory``), with the numbers.
    """
    layout = empty_layout(deployment)
    total = engine.num_gpu_blocks_override
    if total is None:
        total = int(min(kv_cache_bytes(deployment, engine) // layout.block_bytes, MOST_BLOCKS))
    layout = replace(layout, blocks=max(total - 1, 0))
    _check_longest_request(deployment, layout)
    return layout


def _check_longest_request(deployment: Deployment, layout: KvLayout) -> None:
    longest, size = max_model_len(deployment), deployment.recipe.block_tokens
    needed = start_blocks(deployment, layout, longest)
    # vLLM compares with all blocks, but never gives out its null block.
    if needed <= layout.blocks:
        return
    fitting = bisect_right(
        range(longest), layout.blocks, key=lambda tokens: start_blocks(deployment, layout, tokens)
    )
    raise PinnError(
        f"one request of --max-model-len {longest} needs {needed} KV cache blocks of {size} tokens "
        f"({needed * layout.block_bytes / GIB:.2f} GiB), the GPU has room for {layout.blocks}: use "
        f"--max-model-len {max(fitting - 1, 0)} or less, a higher --gpu-memory-utilization or "
        "more GPUs"
    )


def kv_cache_bytes(deployment: Deployment, engine: EngineSpec) -> float:
    """Memory of the KV cache on one GPU.

    Raises:
        PinnError: If nothing is left.
    """
    if engine.kv_cache_memory_bytes is not None:
        return engine.kv_cache_memory_bytes
    recipe = deployment.recipe
    ledger = memory_ledger(deployment)
    if engine.activation_reserve_bytes is not None:
        ledger = replace(ledger, reserve=Reserve(given=engine.activation_reserve_bytes))
    left = ledger.left_bytes
    if left <= 0:
        weights, reserve = ledger.weights, ledger.reserved_bytes
        raise PinnError(
            f"{deployment.model.title} does not fit: its weights take {weights / GIB:.2f} GiB on "
            f"each GPU and activations {reserve / GIB:.2f} GiB, but {deployment.gpu.name} offers "
            f"{ledger.usable_bytes / GIB:.2f} GiB at --gpu-memory-utilization "
            f"{recipe.memory_share}: raise --tensor-parallel-size or --cpu-offload-gb"
        )
    if deployment.serving.engine == VLLM:  # which keeps states in its blocks
        return left
    states = recipe.max_requests * state_bytes(deployment) / recipe.pipeline_parallel_size
    return left - min(states, left * STATE_SHARE)


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
    """What the memory of a replica allows, under the engine's defaults."""
    try:
        layout = kv_layout(deployment, _DEFAULTS)
    except PinnError as error:
        return MemoryFit(None, str(error))
    return MemoryFit(logged_tokens(deployment, layout))


def logged_tokens(deployment: Deployment, layout: KvLayout) -> int:
    """Tokens of the cache as the release counts them.

    Blocks / groups x the smallest block; from 0.20.1 on what requests of max_model_len tokens hold
    of as many blocks (vllm/v1/core/kv_cache_utils.py: _report_kv_cache_config).
    """
    if not deployment.recipe.counts_longest_requests:
        groups, size = logged_blocks(deployment, layout)
        null = deployment.serving.engine == VLLM  # counts its null block, too
        return (layout.blocks + null) // groups * size
    longest = max_model_len(deployment)
    return int((layout.blocks + 1) / counted_blocks(deployment, layout, longest) * longest)


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
        with suppress(PinnError):  # of a size that does not divide the heads
            fit = (known or {}).get(size)
            if fit is None:
                fit = memory_fit(replace(deployment, serving=_of_size(deployment.serving, size)))
            if fit.fits:
                return size
    return None


@lru_cache(maxsize=4096)
def _of_size(serving: ServingSpec, size: int) -> ServingSpec:
    """The flags with another tensor-parallel size."""
    return replace(serving, tensor_parallel_size=size)
