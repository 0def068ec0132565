"""What recurrent states change of a recipe: larger blocks in vLLM, and no prefix caching.

vLLM keeps states in the blocks of the one pool that keys and values lie in, so it enlarges a block
until a layer's keys and values take as much as a layer's state, and a request holds one block per
group of such layers. A state stands for one exact prefix; engines find common ones only where a
state was kept, which vLLM 0.15.1 does not do unless asked for an experimental mode.
"""

from __future__ import annotations

from dataclasses import replace

from pinn.specs.limits import MOST_MODEL_SIZE
from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.model import Attention, LatentAttentionSpec, ModelSpec
from pinn.specs.precision import Precision
from pinn.specs.recipe import DESIGN, EffectiveRecipe, Origin

#: A block holds a multiple of what attention kernels take at once: FlashAttention 16 tokens, the
#: MLA kernels 64 (vLLM's HybridAttentionMambaModelConfig.verify_and_update_config).
KERNEL_TOKENS, LATENT_KERNEL_TOKENS = 16, 64

_BLOCK = "vllm 0.15.1 model_executor/models/config.py: HybridAttentionMambaModelConfig"
_NO_PREFIXES = "vllm 0.15.1 vllm/config/model.py: is_prefix_caching_supported, not of states"


def with_states(
    recipe: EffectiveRecipe, model: ModelSpec, kv: Precision, max_model_len: int, is_vllm: bool
) -> EffectiveRecipe:
    """The recipe of a model that has recurrent states; any other's as it is.

    Args:
        recipe: By flags and defaults.
        model: What is served.
        kv: Format of the KV cache.
        max_model_len: Longest context; a model without keys and values has one block of it.
        is_vllm: Whether states lie in the blocks; other engines keep a pool of their own.
    """
    states = [g.attention for g in model.layer_groups if isinstance(g.attention, LinearMixerSpec)]
    if not states:
        return recipe
    changes: dict[str, object] = {"prefix_caching": False}
    origins = {**recipe.origins, "prefix_caching": Origin(DESIGN, _NO_PREFIXES)}
    if is_vllm:
        changes["block_tokens"] = _block_tokens(recipe, model, states[0], kv, max_model_len)
        origins["block_tokens"] = Origin(DESIGN, _BLOCK)
    return replace(recipe, **changes, origins=origins)  # type: ignore[arg-type]


def _block_tokens(
    recipe: EffectiveRecipe,
    model: ModelSpec,
    state: LinearMixerSpec,
    kv: Precision,
    max_model_len: int,
) -> int:
    attention = [g.attention for g in model.layer_groups if isinstance(g.attention, Attention)]
    if not attention:
        return max_model_len
    tp, mixer = recipe.tensor_parallel_size, attention[0]
    latent = isinstance(mixer, LatentAttentionSpec)
    step = LATENT_KERNEL_TOKENS if latent else KERNEL_TOKENS
    token_bytes = cached_width(mixer, tp) * kv.bytes_per_weight
    steps = -(-state.state_bytes(tp) // (step * token_bytes))
    return max(recipe.block_tokens, min(int(steps) * step, MOST_MODEL_SIZE))


def cached_width(mixer: Attention, tensor_parallel_size: int) -> float:
    """Elements of a token's keys and values in one layer on one GPU; MLA's are not divided."""
    if isinstance(mixer, LatentAttentionSpec):
        return float(mixer.kv_width)
    return 2 * max(mixer.kv_heads // tensor_parallel_size, 1) * mixer.head_dim
