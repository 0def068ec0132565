"""Size of a replica's KV cache, and whether its engine starts.

Follows ``vllm/v1/core/kv_cache_utils.py: get_kv_cache_configs``.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from pinn.common.documents import MOST_BLOCKS
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.recipe import FLAGS
from pinn.errors import PinnError
from pinn.memory.kv_layout import (
    KvLayout,
    empty_layout,
    max_model_len,
    state_bytes,
)
from pinn.memory.ledger import MemoryLedger, half_share, memory_ledger
from pinn.memory.longest_request import counted_blocks, logged_groups, start_blocks
from pinn.specs.serving import SGLANG, VLLM, ServingSpec
from pinn.units import GIB

#: Largest share of the memory left by weights that SGLang gives to recurrent states; keys and
#: values get the rest (server_args.py: mamba_full_memory_ratio 0.9). TensorRT-LLM's is assumed to
#: be equal.
STATE_SHARE = 0.9 / 1.9
#: Tensor-parallel sizes to try, smallest first.
TENSOR_PARALLEL_SIZES = (1, 2, 4, 8, 16, 32)
DEFAULT_SETTINGS = EngineSpec()


class NoStartError(PinnError):
    """Error of an engine that does not start.

    Attributes:
        fault: Reason without the remedy.
    """

    def __init__(self, fault: str, remedy: str) -> None:
        super().__init__(f"{fault}: {remedy}")
        self.fault = fault


def kv_layout(deployment: Deployment, engine: EngineSpec) -> KvLayout:
    """Size the KV cache of one replica.

    Raises:
        PinnError: If the weights do not fit, or the cache cannot hold one request of max_model_len
            where the engine asks for that, with the numbers.
    """
    layout, total = empty_layout(deployment), engine.num_gpu_blocks_override
    if total is None:
        total = _blocks(layout, kv_cache_bytes(deployment, engine))
    layout = replace(layout, blocks=max(total - 1, 0))
    needed = least_blocks(deployment, layout)
    # vLLM compares with all blocks, including its null block.
    if needed > layout.blocks:
        raise _too_small(deployment, layout, needed)
    return layout


def started(
    deployment: Deployment, engine: EngineSpec | None = None, tokens: int = 0
) -> EngineSpec:
    """Return the settings of a server that is known to have started.

    Whatever is predicted, its cache holds one request of ``tokens`` tokens, and the request of
    max_model_len that its engine checks for.

    Raises:
        PinnError: If its weights do not fit: then it did not start as described.
    """
    engine = engine or DEFAULT_SETTINGS
    if engine.num_gpu_blocks_override is not None:
        return engine
    size, layout = deployment.recipe.block_tokens, empty_layout(deployment)
    least = max(least_blocks(deployment, layout), int(layout.request_blocks(tokens, size)))
    try:
        predicted = _blocks(layout, kv_cache_bytes(deployment, engine))
    except NoStartError:  # the weights are known, but the reserve beside them is an estimate
        ledger = memory_ledger(deployment, engine)
        if ledger.weights >= ledger.usable_bytes:
            raise
        predicted = 0
    return engine if predicted > least else replace(engine, num_gpu_blocks_override=least + 1)


def cache_ends(
    deployment: Deployment, engine: EngineSpec | None, tokens: int
) -> tuple[EngineSpec, EngineSpec]:
    """Return settings with the upper and the lower bound of the KV cache.

    Both caches hold at least one request of ``tokens`` tokens. If memory or blocks of the cache
    are given, both bounds are equal.
    """
    engine = engine or DEFAULT_SETTINGS
    if engine.num_gpu_blocks_override is not None:
        return engine, engine
    low, high = memory_fit(deployment, engine).byte_ends or (0.0, 0.0)
    ends = (replace(engine, kv_cache_memory_bytes=end) for end in (high, low))
    most, least = (started(deployment, end, tokens) for end in ends)
    return most, least


def least_blocks(deployment: Deployment, layout: KvLayout) -> int:
    """Return the blocks that an engine needs to start.

    vLLM needs those of one request of max_model_len (``check_enough_kv_cache_memory``);
    TensorRT-LLM is assumed to do the same. SGLang starts with a single block and rejects requests
    that do not fit (``managers/tp_worker.py: max_req_len``, 0.4.9 to 0.5.23).
    """
    if deployment.serving.engine == SGLANG:
        return 1
    return start_blocks(deployment, layout, max_model_len(deployment))


def _blocks(layout: KvLayout, kv_bytes: float) -> int:
    return int(min(kv_bytes // layout.block_bytes, MOST_BLOCKS))


def _too_small(deployment: Deployment, layout: KvLayout, needed: int) -> NoStartError:
    """Return the error of a cache that has fewer blocks than its engine needs to start."""
    longest, size = max_model_len(deployment), deployment.recipe.block_tokens
    fitting = bisect_right(
        range(longest), layout.blocks, key=lambda tokens: start_blocks(deployment, layout, tokens)
    )
    return NoStartError(
        f"one request of --max-model-len {longest} needs {needed} KV cache blocks "
        f"of {size} tokens ({needed * layout.block_bytes / GIB:.2f} GiB), the GPU "
        f"has room for {layout.blocks}",
        f"use --max-model-len {max(fitting - 1, 0)} or less by the estimate, a higher "
        "--gpu-memory-utilization or more GPUs",
    )


def kv_cache_bytes(deployment: Deployment, engine: EngineSpec) -> float:
    """Return the memory of the KV cache on one GPU, in bytes.

    Raises:
        PinnError: If weights and reserve leave no memory.
    """
    if engine.kv_cache_memory_bytes is not None:
        return engine.kv_cache_memory_bytes
    return _left_bytes(deployment, memory_ledger(deployment, engine))


def _left_bytes(deployment: Deployment, ledger: MemoryLedger) -> float:
    recipe, left = deployment.recipe, ledger.left_bytes
    if left <= 0:
        weights, reserve = ledger.weights, ledger.lora + ledger.reserved_bytes
        flag = FLAGS["gpu_memory_utilization"].spelled_for(deployment.serving.engine)
        buffers = f", activations and buffers {reserve / GIB:.2f} GiB" if reserve else ""
        raise NoStartError(
            f"{deployment.model.title} does not fit: its weights take {weights / GIB:.2f} GiB on "
            f"each GPU{buffers}, but {deployment.gpu.name} offers "
            f"{ledger.usable_bytes / GIB:.2f} GiB at {flag} {recipe.memory_share}",
            "raise --tensor-parallel-size or --cpu-offload-gb",
        )
    if deployment.serving.engine == VLLM:  # vLLM keeps recurrent states in KV blocks
        return left
    states = recipe.max_requests * state_bytes(deployment) / recipe.pipeline_parallel_size
    return left - min(states, left * STATE_SHARE)


@dataclass(frozen=True)
class MemoryFit:
    """KV cache of a replica, with its bounds.

    Attributes:
        kv_tokens: Tokens in the KV cache, as the engine logs them at start; None if it does not
            start.
        reason: Why it does not start, with the remedy. Weights, activations and the blocks of
            ``least_blocks`` have to fit.
        fault: The reason without the remedy.
        kv_bytes: Memory of the KV cache on one GPU; None if weights leave none.
        byte_ends: Lower and upper bound of ``kv_bytes``, from errors on logged start-ups.
        token_ends: Tokens at both bounds; None for a bound at which the engine does not start.
        longest_requests: Requests of max_model_len tokens that fit at once.
    """

    kv_tokens: int | None
    reason: str = ""
    fault: str = ""
    kv_bytes: float | None = None
    byte_ends: tuple[float, float] | None = None
    token_ends: tuple[int | None, int | None] = (None, None)
    longest_requests: float | None = None

    @property
    def fits(self) -> bool:
        """Return whether the engine starts with the predicted memory."""
        return self.kv_tokens is not None

    @property
    def is_certain(self) -> bool:
        """Return whether the engine also starts at the lower bound."""
        return self.fits and self.token_ends[0] is not None


def memory_fit(deployment: Deployment, engine: EngineSpec = DEFAULT_SETTINGS) -> MemoryFit:
    """Return the KV cache of a replica, by default without further engine settings."""
    try:
        left, half = _given_bytes(deployment, engine), 0.0
        if left is None:
            ledger = memory_ledger(deployment, engine)
            left, half = _left_bytes(deployment, ledger), half_share(deployment) * ledger.visible
    except NoStartError as error:
        return MemoryFit(None, str(error), error.fault)
    layout = empty_layout(deployment)
    needed, count = least_blocks(deployment, layout), token_count(deployment, layout)
    ends = (max(left - half, 0.0), left + half)
    blocks = [max(_blocks(layout, size) - 1, 0) for size in (left, *ends)]
    here, *tokens = (count(held) if held >= needed else None for held in blocks)
    if here is None:
        refused = _too_small(deployment, replace(layout, blocks=blocks[0]), needed)
        return MemoryFit(None, str(refused), refused.fault, left, ends, (tokens[0], tokens[1]))
    requests = (blocks[0] + 1) / counted_blocks(deployment, layout, max_model_len(deployment))
    return MemoryFit(here, "", "", left, ends, (tokens[0], tokens[1]), requests)


def _given_bytes(deployment: Deployment, engine: EngineSpec) -> float | None:
    """Return the bytes per GPU of a cache whose size is given; None if it is not."""
    if engine.num_gpu_blocks_override is None:
        return engine.kv_cache_memory_bytes
    # Half a block is added, so that rounding loses none.
    return (engine.num_gpu_blocks_override + 0.5) * empty_layout(deployment).block_bytes


def token_count(deployment: Deployment, layout: KvLayout) -> Callable[[int], int]:
    """Return the function from usable blocks to tokens as the release logs them.

    Blocks / groups x the smallest block; from 0.20.1 on, the tokens of as many requests of
    max_model_len as fit (vllm/v1/core/kv_cache_utils.py: _report_kv_cache_config).
    """
    if not deployment.recipe.counts_longest_requests:
        groups, size = logged_groups(deployment, layout)
        null = deployment.serving.engine == VLLM  # vLLM's count includes the null block
        return lambda blocks: (blocks + null) // groups * size
    longest = max_model_len(deployment)
    counted = counted_blocks(deployment, layout, longest)
    return lambda blocks: int((blocks + 1) / counted * longest)


def smallest_tensor_parallel_size(
    deployment: Deployment, known: Mapping[int, MemoryFit] | None = None
) -> int | None:
    """Return the smallest tensor-parallel size that starts at the lower bound, all else equal.

    Args:
        deployment: Deployment whose other settings are kept.
        known: Tensor-parallel size -> fit, for sizes that were evaluated before.

    Returns:
        One of ``TENSOR_PARALLEL_SIZES``; None where none of them starts.
    """
    for size in TENSOR_PARALLEL_SIZES:
        with suppress(PinnError):  # the size may not divide the heads
            fit = (known or {}).get(size)
            if fit is None:
                fit = memory_fit(replace(deployment, serving=_of_size(deployment.serving, size)))
            if fit.is_certain:
                return size
    return None


@lru_cache(maxsize=4096)
def _of_size(serving: ServingSpec, size: int) -> ServingSpec:
    """Return the flags with another tensor-parallel size."""
    return replace(serving, tensor_parallel_size=size)
