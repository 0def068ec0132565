"""Memory of a deployment, its KV cache, and what would fit."""

from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from pinn.common.documents import MOST_BLOCKS
from pinn.engines.deployment import Deployment, cached_width
from pinn.errors import PinnError
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.memory_ledger import Reserve, memory_ledger
from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.model import Attention, LatentAttentionSpec, LayerGroup, ModelSpec
from pinn.specs.serving import VLLM, ServingSpec
from pinn.units import GIB

# The KV cache: how much memory the ledger leaves it, and how many blocks that is.
#
# Follows ``vllm/v1/core/kv_cache_utils.py: get_kv_cache_configs``.

IntOrArray = TypeVar("IntOrArray", int, np.ndarray)

#: Most of what weights leave that SGLang gives to recurrent states, against keys and values
#: (server_args.py: mamba_full_memory_ratio 0.9); TensorRT-LLM's is taken to be the same.
STATE_SHARE = 0.9 / 1.9
#: More GPUs than a layer has heads.
_A_GPU_A_HEAD = 1 << 20


@dataclass(frozen=True)
class KvLayout:
    """KV cache groups, as ``_get_kv_cache_groups_uniform_page_size`` forms them.

    Attributes:
        block_bytes: Memory of one block on one GPU.
        blocks: Usable blocks; vLLM's null block is not among them.
        full_groups: Groups of layers that keep every token; 1 where nothing is mixed.
        window_groups: Groups of layers that keep a window.
        window_blocks: Blocks that a request holds in one of those: its window, and one more where
            it straddles a block; one for a recurrent state. The rest of a long chunk, freed after
            its step, is not modelled.
    """

    block_bytes: float
    blocks: int
    full_groups: int = 1
    window_groups: int = 0
    window_blocks: int = 0

    def request_blocks(self, tokens: IntOrArray, block_size: int) -> IntOrArray:
        """Blocks that a request of so many tokens holds."""
        blocks = -(-tokens // block_size)
        windowed = np.minimum(blocks, self.window_blocks)
        return self.full_groups * blocks + self.window_groups * windowed

    def token_bytes(self, block_size: int) -> float:
        """Keys and values of a token on one GPU, in the layers that keep those of every token."""
        return self.block_bytes / block_size * self.full_groups


def tokens_beyond(deployment: Deployment) -> int:
    """Tokens past a request's end for which it may hold blocks: drafts of two steps and a third's.

    Two steps are in flight at most, and the draft writes ahead of the second.
    """
    drafts = deployment.recipe.speculation
    return 4 * drafts.tokens if drafts else 0


def max_model_len(deployment: Deployment) -> int:
    """The flag, or the model's own maximum."""
    return deployment.serving.max_model_len or deployment.model.max_position


def kv_layout(deployment: Deployment, engine: EngineSpec) -> KvLayout:
    """Size the KV cache of one replica.

    Raises:
        PinnError: If the weights do not fit, or the cache cannot hold one request of max_model_len
            (as ``check_enough_kv_cache_memory``), with the numbers.
    """
    recipe = deployment.recipe
    ranks = (recipe.tensor_parallel_size, recipe.pipeline_parallel_size)
    sizes = (recipe.block_tokens, deployment.kv_cache_precision.bytes_per_weight)
    rules = (deployment.serving.engine == VLLM, recipe.scheduler.group_padding)
    layout = _with_draft(_layout(deployment.model, *ranks, *sizes, *rules), deployment)
    total = engine.num_gpu_blocks_override
    if total is None:
        total = int(min(kv_cache_bytes(deployment, engine) // layout.block_bytes, MOST_BLOCKS))
    layout = replace(layout, blocks=max(total - 1, 0))
    _check_longest_request(deployment, layout)
    return layout


def _check_longest_request(deployment: Deployment, layout: KvLayout) -> None:
    recipe, longest = deployment.recipe, max_model_len(deployment)
    size, prefill = recipe.block_tokens, _of_prompt(deployment, layout)
    needed = _longest_request_blocks(deployment, layout)
    # vLLM compares with all blocks, but never gives out its null block.
    if needed <= layout.blocks:
        return
    fitting = bisect_right(
        range(longest), layout.blocks, key=lambda tokens: int(prefill.request_blocks(tokens, size))
    )
    raise PinnError(
        f"one request of --max-model-len {longest} needs {needed} KV cache blocks of {size} tokens "
        f"({needed * layout.block_bytes / GIB:.2f} GiB), the GPU has room for {layout.blocks}: use "
        f"--max-model-len {max(fitting - 1, 0)} or less, a higher --gpu-memory-utilization or "
        "more GPUs"
    )


def _of_prompt(deployment: Deployment, layout: KvLayout) -> KvLayout:
    """Prefill holds a window and a whole chunk (``SlidingWindowSpec.max_memory_usage_bytes``)."""
    recipe, window = deployment.recipe, deployment.model.window_tokens or 0
    chunk = -(-(window - 1 + recipe.token_budget) // recipe.block_tokens) + 1
    holds_chunk = layout.window_groups and not _state_layers(deployment.model)
    return replace(layout, window_blocks=chunk) if holds_chunk else layout


def _longest_request_blocks(deployment: Deployment, layout: KvLayout) -> int:
    prefill, size = _of_prompt(deployment, layout), deployment.recipe.block_tokens
    return int(prefill.request_blocks(max_model_len(deployment), size))


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


def state_bytes(deployment: Deployment) -> float:
    """Recurrent states of one request on one GPU, over all layers."""
    return _model_state_bytes(deployment.model, deployment.recipe.tensor_parallel_size)


def _model_state_bytes(model: ModelSpec, tp: int) -> float:
    return sum(count * mixer.state_bytes(tp) for count, mixer in _state_layers(model))


def _state_layers(model: ModelSpec) -> list[tuple[int, LinearMixerSpec]]:
    """Layers of each kind that keeps a state, and their mixer."""
    mixers = [(group.count, group.attention) for group in model.layer_groups]
    return [(count, mixer) for count, mixer in mixers if isinstance(mixer, LinearMixerSpec)]


@lru_cache(maxsize=16384)
def _layout(
    model: ModelSpec, tp: int, pp: int, size: int, item_bytes: float, in_blocks: bool, most: float
) -> KvLayout:
    """Groups and block size, without blocks yet; ``in_blocks`` where states lie in the blocks.

    Layers of both kinds are cut into groups of as many layers as the rarer kind has, or as the
    commoner one where it has fewer than ``most`` times as many; the groups share one pool.
    """
    kept = [(g, layer_kv_bytes(g, tp, item_bytes)) for g in model.layer_groups]
    own = sum(getattr(g.attention, "request_bytes", 0.0) * g.count for g in model.layer_groups)
    if own:  # Compressed keys of all layers lie in a block, and what a request keeps in some more.
        block = size * sum(g.count * kv_bytes for g, kv_bytes in kept)
        return KvLayout(block / pp, 0, 1, 1, -int(-own // block))
    groups = [g for g, kv_bytes in kept if kv_bytes]
    states = sum(count for count, _ in _state_layers(model)) if in_blocks else 0
    if not groups:
        return KvLayout(_model_state_bytes(model, tp) / pp if in_blocks else 1.0, 0)
    full = sum(g.count for g in groups if not getattr(g.attention, "window_tokens", None))
    windowed = sum(g.count for g in groups) - full + states
    layer_bytes = max(kv_bytes for _, kv_bytes in kept)
    if full == 0 or windowed == 0:
        # A model of windowed layers only frees what falls out of the window; not modelled.
        return KvLayout(-(-(full + windowed) // pp) * layer_bytes * size, 0)
    few, many = min(full, windowed), max(full, windowed)
    group = many if many < few * most else few
    held = 1 if states else -(-(model.window_tokens or 0) // size) + 1
    block = -(-group // pp) * layer_bytes * size
    return KvLayout(block, 0, -(-full // group), -(-windowed // group), held)


def _with_draft(layout: KvLayout, deployment: Deployment) -> KvLayout:
    """Blocks that hold the keys and values of the draft's layers too, in the groups of full ones.

    vLLM gives them a group of their own; the bytes of a token are the same.
    """
    if deployment.draft is None:
        return layout
    groups, tp = deployment.draft.model.layer_groups, deployment.recipe.tensor_parallel_size
    each = deployment.kv_cache_precision.bytes_per_weight
    token_bytes = sum(g.count * layer_kv_bytes(g, tp, each) for g in groups)
    added = token_bytes * deployment.recipe.block_tokens / layout.full_groups
    return replace(layout, block_bytes=layout.block_bytes + added)


def gpu_cache_tokens(deployment: Deployment) -> float:
    """Tokens whose keys and values of one head in one layer fit the last-level cache."""
    mixers = (group.attention for group in deployment.model.layer_groups)
    widths = (cached_width(m, _A_GPU_A_HEAD) for m in mixers if isinstance(m, Attention))
    widest, each = int(max(widths, default=0)), deployment.kv_cache_precision.bytes_per_weight
    return deployment.gpu.l2_bytes / (widest * each) if widest else 0.0


def layer_kv_bytes(group: LayerGroup, tp: int, element_bytes: float) -> float:
    """Keys and values of one token in one layer on one GPU, and its indexer's key.

    A layer that keeps none, or another's, has 0.
    """
    mixer = group.attention
    if not isinstance(mixer, Attention) or getattr(mixer, "shares_cache", False):
        return 0.0
    found = cached_width(mixer, tp) * element_bytes * getattr(mixer, "cached_share", 1.0)
    indexer = mixer.indexer if isinstance(mixer, LatentAttentionSpec) else None
    return found if indexer is None else found + indexer.key_bytes


# Whether an engine would start on its GPUs, with how large a KV cache, and from which size on.

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
    return MemoryFit(_logged_tokens(deployment, layout))


def _logged_tokens(deployment: Deployment, layout: KvLayout) -> int:
    """Tokens of the cache as the release counts them.

    Blocks / groups x block size; where a recipe says so, what requests of max_model_len tokens
    hold of as many blocks (``vllm/v1/core/kv_cache_utils.py: _report_kv_cache_config``).
    """
    recipe = deployment.recipe
    if not recipe.counts_longest_requests:
        return layout.blocks // (layout.full_groups + layout.window_groups) * recipe.block_tokens
    longest = max_model_len(deployment)
    return int((layout.blocks + 1) / _longest_request_blocks(deployment, layout) * longest)


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
