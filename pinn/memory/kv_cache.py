"""Size of a replica's KV cache, and whether its engine starts.

Source: ``vllm/v1/core/kv_cache_utils.py: get_kv_cache_configs``.
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
from pinn.specs.batch import Batch
from pinn.specs.serving import SGLANG, VLLM, ServingSpec
from pinn.units import GIB

#: Maximum share of the memory left by weights that SGLang uses for recurrent states; keys and
#: values get the rest (server_args.py: mamba_full_memory_ratio 0.9). TensorRT-LLM is assumed to use
#: an equal share.
STATE_SHARE = 0.9 / 1.9
#: Tensor-parallel sizes tried, in ascending order, to find one with which the server starts.
TENSOR_PARALLEL_SIZES = (1, 2, 4, 8, 16, 32)
DEFAULT_SETTINGS = EngineSpec()

#: Verdicts on a start: certain, certain only above the lower bound of KV memory, or impossible even
#: at the upper bound of KV memory.
STARTS, MAY_NOT_START, DOES_NOT_START = "starts", "may not start", "does not start"


class NoStartError(PinnError):
    """Error for an engine that does not start.

    Attributes:
        fault: Reason why the engine does not start, without the remedy.
    """

    def __init__(self, fault: str, remedy: str) -> None:
        super().__init__(f"{fault}: {remedy}")
        self.fault = fault


def kv_layout(deployment: Deployment, engine: EngineSpec) -> KvLayout:
    """Return the layout of one replica's KV cache, with its number of blocks.

    Raises:
        PinnError: If the weights do not fit, or if the engine requires room for one request of
            max_model_len tokens and the cache is smaller; the message states the sizes.
    """
    layout, total = empty_layout(deployment), engine.num_gpu_blocks_override
    if total is None:
        total = _blocks(layout, kv_cache_bytes(deployment, engine))
    layout = replace(layout, blocks=max(total - 1, 0))
    needed = least_blocks(deployment, layout)
    # vLLM's own check is one block more lenient: it also counts the null block, which no request
    # can use.
    if needed > layout.blocks:
        raise _too_small(deployment, layout, needed)
    return layout


def started(
    deployment: Deployment, engine: EngineSpec | None = None, tokens: int = 0
) -> EngineSpec:
    """Return the engine settings of a server that is known to have started.

    A predicted KV cache that is too small is enlarged. It then has room for one request of
    ``tokens`` tokens, and for the request of max_model_len tokens that the engine requires.

    Raises:
        PinnError: If the weights do not fit, so that the server cannot have started.
    """
    engine = engine or DEFAULT_SETTINGS
    if engine.num_gpu_blocks_override is not None:
        return engine
    size, layout = deployment.recipe.block_tokens, empty_layout(deployment)
    least = max(least_blocks(deployment, layout), int(layout.request_blocks(tokens, size)))
    try:
        predicted = _blocks(layout, kv_cache_bytes(deployment, engine))
    except NoStartError:  # the weights are known, but all other memory is only estimated
        ledger = memory_ledger(deployment, engine)
        if ledger.weights >= ledger.usable_bytes:
            raise
        predicted = 0
    return engine if predicted > least else replace(engine, num_gpu_blocks_override=least + 1)


def cache_ends(
    deployment: Deployment, engine: EngineSpec | None, tokens: int
) -> tuple[EngineSpec, EngineSpec]:
    """Return the engine settings with the upper and with the lower bound of the KV cache size.

    Both caches have room for at least one request of ``tokens`` tokens. The two bounds are equal if
    the user specifies the cache's memory or blocks.
    """
    engine = engine or DEFAULT_SETTINGS
    if engine.num_gpu_blocks_override is not None:
        return engine, engine
    low, high = memory_fit(deployment, engine).byte_ends or (0.0, 0.0)
    ends = (replace(engine, kv_cache_memory_bytes=end) for end in (high, low))
    most, least = (started(deployment, end, tokens) for end in ends)
    return most, least


def least_blocks(deployment: Deployment, layout: KvLayout) -> int:
    """Return the minimum number of KV cache blocks with which an engine starts.

    vLLM needs the blocks of one request of max_model_len tokens (``check_enough_kv_cache_memory``),
    which is also assumed for TensorRT-LLM. SGLang starts with a single block, and rejects requests
    that do not fit (``managers/tp_worker.py: max_req_len``, 0.4.9 to 0.5.23).
    """
    if deployment.serving.engine == SGLANG:
        return 1
    return start_blocks(deployment, layout, max_model_len(deployment))


def _blocks(layout: KvLayout, kv_bytes: float) -> int:
    return int(min(kv_bytes // layout.block_bytes, MOST_BLOCKS))


def _too_small(deployment: Deployment, layout: KvLayout, needed: int) -> NoStartError:
    """Return the error for a cache with fewer blocks than its engine needs to start."""
    longest, size = max_model_len(deployment), deployment.recipe.block_tokens
    fitting = bisect_right(
        range(longest), layout.blocks, key=lambda tokens: start_blocks(deployment, layout, tokens)
    )
    return NoStartError(
        f"one request of --max-model-len {longest} needs {needed:,} KV cache blocks "
        f"of {size} tokens ({needed * layout.block_bytes / GIB:.2f} GiB), but the GPU "
        f"has room for {layout.blocks:,} blocks",
        f"use --max-model-len {max(fitting - 1, 0)} or less (estimated), a higher "
        "--gpu-memory-utilization or more GPUs",
    )


def kv_cache_bytes(deployment: Deployment, engine: EngineSpec) -> float:
    """Return the size of the KV cache on one GPU, in bytes.

    Raises:
        PinnError: If weights and other reserved memory leave no memory for the cache.
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
    if deployment.serving.engine == VLLM:  # vLLM stores recurrent states in KV blocks
        return left
    states = recipe.max_requests * state_bytes(deployment) / recipe.pipeline_parallel_size
    return left - min(states, left * STATE_SHARE)


@dataclass(frozen=True)
class MemoryFit:
    """Predicted KV cache of a replica, with lower and upper bounds.

    Attributes:
        kv_tokens: Number of tokens in the KV cache, as logged by the engine at start; None if the
            engine does not start.
        reason: Why the engine does not start, with the remedy; empty if it starts. To start,
            weights, activations and ``least_blocks`` blocks must fit.
        fault: Why the engine does not start, or may not start at the lower bound, without the
            remedy.
        kv_bytes: Bytes of the KV cache on one GPU; None if weights leave no memory.
        byte_ends: Lower and upper bound of ``kv_bytes``, from prediction errors on logged
            start-ups.
        token_ends: Tokens in the KV cache at the lower and the upper bound; None for a bound at
            which the engine does not start.
        longest_requests: Number of requests of max_model_len tokens that fit simultaneously.
        layout: Layout of the predicted KV cache; None if the engine does not start.
    """

    kv_tokens: int | None
    reason: str = ""
    fault: str = ""
    kv_bytes: float | None = None
    byte_ends: tuple[float, float] | None = None
    token_ends: tuple[int | None, int | None] = (None, None)
    longest_requests: float | None = None
    layout: KvLayout | None = None

    @property
    def fits(self) -> bool:
        """Return whether the engine starts with the predicted KV cache."""
        return self.kv_tokens is not None

    @property
    def is_certain(self) -> bool:
        """Return whether the engine also starts with the lower bound of the KV cache."""
        return self.fits and self.token_ends[0] is not None

    @property
    def verdict(self) -> str:
        """Return ``STARTS``, ``MAY_NOT_START`` or ``DOES_NOT_START``."""
        if self.is_certain:
            return STARTS
        return DOES_NOT_START if self.token_ends[1] is None else MAY_NOT_START

    def holds(self, batch: Batch, deployment: Deployment) -> bool:
        """Return whether all requests of a batch fit in the predicted KV cache simultaneously."""
        layout = self.layout
        return layout is not None and batch_blocks(batch, deployment, layout) <= layout.blocks


def batch_blocks(batch: Batch, deployment: Deployment, layout: KvLayout) -> int:
    """Return the KV cache blocks of a batch's requests after its step, ignoring shared prefixes."""
    if deployment.model.bidirectional:  # an encoder has no KV cache
        return 0
    size = deployment.recipe.block_tokens
    entries = zip(batch.entry_counts, batch.new_tokens, batch.cached_tokens, strict=True)
    return sum(n * int(layout.request_blocks(new + old, size)) for n, new, old in entries)


def memory_fit(deployment: Deployment, engine: EngineSpec = DEFAULT_SETTINGS) -> MemoryFit:
    """Return the predicted KV cache of a replica with given engine settings."""
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
        fault = refused.fault + (" as predicted" if tokens[1] is not None else "")
        return MemoryFit(None, str(refused), fault, left, ends, (tokens[0], tokens[1]))
    requests = (blocks[0] + 1) / counted_blocks(deployment, layout, max_model_len(deployment))
    fault, layout = "", replace(layout, blocks=blocks[0])
    if tokens[0] is None:
        at_low = _too_small(deployment, replace(layout, blocks=blocks[1]), needed)
        fault = f"{at_low.fault} at the lower bound of KV memory"
    return MemoryFit(here, "", fault, left, ends, (tokens[0], tokens[1]), requests, layout)


def _given_bytes(deployment: Deployment, engine: EngineSpec) -> float | None:
    """Return the KV cache bytes per GPU set by the user, directly or as blocks; else None."""
    if engine.num_gpu_blocks_override is None:
        return engine.kv_cache_memory_bytes
    # Add half a block to the bytes, so that rounding cannot lose a block in the division into whole
    # blocks.
    return (engine.num_gpu_blocks_override + 0.5) * empty_layout(deployment).block_bytes


def token_count(deployment: Deployment, layout: KvLayout) -> Callable[[int], int]:
    """Return a function that converts a number of usable blocks to KV cache tokens.

    The number of tokens is the one that the engine's release logs. Up to vLLM 0.20.0, the number
    of tokens is blocks / groups x tokens of the smallest block. Since 0.20.1, it is the number
    of tokens in as many requests of max_model_len tokens as fit (vllm/v1/core/kv_cache_utils.py:
    _report_kv_cache_config).
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
    """Return the smallest tensor-parallel size that starts with the lower bound of the KV cache.

    Args:
        deployment: Deployment that provides all other settings.
        known: KV caches already predicted, by tensor-parallel size.

    Returns:
        One of ``TENSOR_PARALLEL_SIZES``; None if the engine does not start with any of them.
    """
    for size in TENSOR_PARALLEL_SIZES:
        with suppress(PinnError):  # the tensor-parallel size may not divide the heads
            fit = (known or {}).get(size)
            if fit is None:
                fit = memory_fit(replace(deployment, serving=_of_size(deployment.serving, size)))
            if fit.is_certain:
                return size
    return None


@lru_cache(maxsize=4096)
def _of_size(serving: ServingSpec, size: int) -> ServingSpec:
    """Return the engine's flags with another tensor-parallel size."""
    return replace(serving, tensor_parallel_size=size)
