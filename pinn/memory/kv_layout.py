"""Layout of a KV cache: its groups of layers, bytes per block, and blocks per request.

Source: ``vllm/v1/core/kv_cache_utils.py: get_kv_cache_groups``.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from pinn.engines.deployment import (
    Deployment,
    cached_attention,
    cached_width,
    keeps_state_ends,
    page_ratios,
)
from pinn.memory.compressed_layout import compressed, compressed_layout
from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.model import (
    Attention,
    LatentAttentionSpec,
    LayerGroup,
    ModelSpec,
)
from pinn.specs.serving import VLLM

IntOrArray = TypeVar("IntOrArray", int, np.ndarray)

#: Tensor-parallel size larger than any number of heads, so that each GPU has one head.
_A_GPU_A_HEAD = 1 << 20


@dataclass(frozen=True)
class KvLayout:
    """KV cache groups of layers, as vLLM's ``_get_kv_cache_groups_uniform_page_size`` forms them.

    Attributes:
        block_bytes: Bytes of one block on one GPU.
        blocks: Number of usable blocks, excluding vLLM's null block.
        full_groups: Number of groups of layers that cache every token; 1 if all layers are alike.
        window_groups: Number of groups of layers that cache a window or a recurrent state.
        window_blocks: Blocks per request in one of these groups: the blocks of its window, and one
            more, since the window may begin inside a block. A recurrent state has one block, or two
            if states of prefixes are kept. Additional blocks for a long prompt chunk, which are
            freed after its step, are not modelled.
        window_share: Number of blocks in one of these groups that cover the tokens of one block of
            the full groups.
    """

    block_bytes: float
    blocks: int
    full_groups: int = 1
    window_groups: int = 0
    window_blocks: int = 0
    window_share: int = 1

    def request_blocks(self, tokens: IntOrArray, block_size: int) -> IntOrArray:
        """Return the number of blocks of a running request of ``tokens`` tokens."""
        blocks = -(-tokens // block_size)
        windowed = np.minimum(blocks * self.window_share, self.window_blocks)
        return self.full_groups * blocks + self.window_groups * windowed

    def token_bytes(self, block_size: int) -> float:
        """Return the KV cache bytes per token per GPU, over the layers that cache every token."""
        return self.block_bytes / block_size * self.full_groups


def tokens_beyond(deployment: Deployment) -> int:
    """Return the maximum number of draft tokens after a request's last token that need blocks.

    It is 0 without speculative decoding. At most two steps are in flight, and the draft model
    writes ahead of the second one.
    """
    drafts = deployment.recipe.speculation
    return 4 * drafts.tokens if drafts else 0


def max_model_len(deployment: Deployment) -> int:
    """Return ``max_model_len`` in tokens: the flag, or else the model's maximum context."""
    return deployment.serving.max_model_len or deployment.model.max_position


def empty_layout(deployment: Deployment) -> KvLayout:
    """Return the KV cache groups and block size of a deployment, with 0 blocks."""
    recipe = deployment.recipe
    ranks = (recipe.tensor_parallel_size, recipe.pipeline_parallel_size)
    sizes = (recipe.block_tokens, CacheBytes.of(deployment))
    in_blocks, rules = deployment.serving.engine == VLLM, recipe.scheduler
    if in_blocks and compressed(deployment.model) is not None:
        layout = _of_compressed(deployment)
    else:
        held = 1 + keeps_state_ends(deployment)
        layout = _layout(deployment.model, *ranks, *sizes, in_blocks, rules.group_padding, held)
    return _with_draft(layout, deployment)


def _of_compressed(deployment: Deployment) -> KvLayout:
    """Return DeepSeek-V4's KV cache layout: one group of keys, and one of everything else."""
    recipe = deployment.recipe
    found = compressed_layout(deployment.model, recipe.scheduler.mixed_pages)
    block = found.block_bytes / recipe.pipeline_parallel_size
    return KvLayout(block, 0, 1, 1, found.decode_blocks, found.window_share)


def state_bytes(deployment: Deployment) -> float:
    """Return the bytes per request of recurrent states on one GPU, over all layers."""
    return _model_state_bytes(deployment.model, deployment.recipe.tensor_parallel_size)


def _model_state_bytes(model: ModelSpec, tp: int) -> float:
    return sum(count * mixer.state_bytes(tp) for count, mixer in state_layers(model))


def state_layers(model: ModelSpec) -> list[tuple[int, LinearMixerSpec]]:
    """Return (number of layers, sizes) for each type of layer with a recurrent state."""
    mixers = [(group.count, group.attention) for group in model.layer_groups]
    return [(count, mixer) for count, mixer in mixers if isinstance(mixer, LinearMixerSpec)]


@lru_cache(maxsize=16384)
def _layout(
    model: ModelSpec,
    tp: int,
    pp: int,
    size: int,
    each: "CacheBytes",
    in_blocks: bool,
    most: float,
    state_blocks: int,
) -> KvLayout:
    """Return the KV cache groups and block size of a model.

    With ``in_blocks``, recurrent states are stored in blocks. All groups have the same number of
    layers and share one pool of blocks. Layers have two types: full attention, or windows and
    states. A group has as many layers as the rarer type. If the other type has fewer than ``most``
    times as many layers, a group has as many layers as that type.
    """
    kept = [(g, layer_kv_bytes(g, tp, each)) for g in model.layer_groups]
    own = sum(getattr(g.attention, "request_bytes", 0.0) * g.count for g in model.layer_groups)
    # A block contains the compressed keys of all layers. Other data of a request, such as its
    # attention window, are in additional blocks.
    if own:
        block = size * sum(g.count * kv_bytes for g, kv_bytes in kept)
        return KvLayout(block / pp, 0, 1, 1, -int(-own // block))
    groups = [g for g, kv_bytes in kept if kv_bytes]
    states = sum(count for count, _ in state_layers(model)) if in_blocks else 0
    if not groups:
        return KvLayout(_model_state_bytes(model, tp) / pp if in_blocks else 1.0, 0)
    full = sum(g.count for g in groups if not getattr(g.attention, "window_tokens", None))
    windowed = sum(g.count for g in groups) - full + states
    layer_bytes = max(kv_bytes for _, kv_bytes in kept)
    every = states * layer_bytes + sum(g.count * kv_bytes for g, kv_bytes in kept)
    if full == 0 or windowed == 0 or not in_blocks:
        layer_bytes = every / (full + windowed)
    if full == 0 or windowed == 0:
        # A model with only windowed layers could free tokens outside the window, which is not
        # modelled.
        return KvLayout(-(-(full + windowed) // pp) * layer_bytes * size, 0)
    few, many = min(full, windowed), max(full, windowed)
    group = many if many < few * most else few
    wider, narrower = _pages(model, tp, in_blocks)
    held = state_blocks if states else -(-cached_window(model) // (size // wider * narrower)) + 1
    block = -(-group // pp) * layer_bytes * (size // wider)
    share = max(wider // narrower, 1)
    return KvLayout(block, 0, -(-full // group), -(-windowed // group), held, share)


def cached_window(model: ModelSpec) -> int:
    """Return the number of tokens in the widest window of all layers; 0 if there are no windows."""
    return max((mixer.window_tokens or 0 for mixer in cached_attention(model)), default=0)


def window_block_tokens(deployment: Deployment) -> int:
    """Return the number of tokens per block in layers with a window."""
    recipe = deployment.recipe
    wider, narrower = _pages(
        deployment.model, recipe.tensor_parallel_size, deployment.serving.engine == VLLM
    )
    return recipe.block_tokens // wider * narrower


def _pages(model: ModelSpec, tp: int, in_blocks: bool) -> tuple[int, int]:
    return page_ratios(model, tp) if in_blocks else (1, 1)


def _with_draft(layout: KvLayout, deployment: Deployment) -> KvLayout:
    """Add the draft model's keys and values to the groups of full attention.

    vLLM forms a separate group for the draft model, which uses the same number of bytes per token.
    """
    if deployment.draft is None:
        return layout
    groups, tp = deployment.draft.model.layer_groups, deployment.recipe.tensor_parallel_size
    each = CacheBytes.of(deployment)
    token_bytes = sum(g.count * layer_kv_bytes(g, tp, each) for g in groups)
    added = token_bytes * deployment.recipe.block_tokens / layout.full_groups
    return replace(layout, block_bytes=layout.block_bytes + added)


def gpu_cache_tokens(deployment: Deployment) -> float:
    """Return how many tokens' keys and values of one head and layer fit in the L2 cache."""
    mixers = (group.attention for group in deployment.model.layer_groups)
    widths = (cached_width(m, _A_GPU_A_HEAD) for m in mixers if isinstance(m, Attention))
    widest, each = int(max(widths, default=0)), deployment.kv_cache_precision.bytes_per_weight
    return deployment.gpu.l2_bytes / (widest * each) if widest else 0.0


@dataclass(frozen=True)
class CacheBytes:
    """Size of the number format of cached keys and values.

    Attributes:
        element: Bytes per element.
        packs_sparse: Whether sparse latent attention (MLA) stores fp8 keys in the packed format
            ``fp8_ds_mla``.
    """

    element: float
    packs_sparse: bool

    @classmethod
    def of(cls, deployment: Deployment) -> "CacheBytes":
        """Return the bytes per element of a deployment's KV cache, and whether fp8 keys are packed.

        For an fp8 cache, FlashMLA's kernels for sparse attention use the format ``fp8_ds_mla``. On
        data-center Blackwell, FlashInfer's kernels use plain fp8. SGLang runs FlashInfer's kernels
        there, and vLLM prefers them since 0.17 (vllm platforms/cuda.py: _get_backend_priorities,
        layers/attention/mla_attention.py; sglang 0.5.12 mem_cache/memory_pool.py:
        NSATokenToKVPool).
        """
        blackwell = 10 <= deployment.gpu.compute_capability < 11
        older = deployment.serving.engine == VLLM and deployment.recipe.scheduler.packs_sparse_keys
        each = deployment.kv_cache_precision.bytes_per_weight
        return cls(each, each == 1 and (older or not blackwell))


def layer_kv_bytes(group: LayerGroup, tp: int, each: CacheBytes) -> float:
    """Return the cached bytes per token per layer per GPU, including the indexer's key.

    A layer without keys, or with another layer's keys, has 0 bytes. Sparse latent attention in
    format ``fp8_ds_mla`` has 656 bytes: 512 of 8-bit elements, a float32 scale per 128 elements,
    and a 16-bit rotary key (vllm v1/kv_cache_interface.py: MLAAttentionSpec, 0.11.0 to 0.33.0).
    """
    mixer = group.attention
    if not isinstance(mixer, Attention) or mixer.shares_cache:
        return 0.0
    found = cached_width(mixer, tp) * each.element * getattr(mixer, "cached_share", 1.0)
    if mixer.indexer is None:
        return found
    of_its_own = each.packs_sparse and not hasattr(mixer, "cached_share")
    if isinstance(mixer, LatentAttentionSpec) and of_its_own:
        found = mixer.kv_lora_rank * (1 + 4 / 128) + mixer.qk_rope_head_dim * 2
    return found + mixer.indexer.key_bytes
