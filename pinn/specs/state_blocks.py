"""What recurrent states change of a recipe: larger blocks in vLLM, and no prefix caching.

vLLM keeps states in the blocks of the one pool that keys and values lie in, so it enlarges a block
until a layer's keys and values take as much as a layer's state, and a request holds one block per
group of such layers. A state stands for one exact prefix; engines find common ones only where a
state was kept. vLLM does so from 0.28 on, at the ends of blocks; that is not modelled.
"""

from __future__ import annotations

from dataclasses import replace

from pinn.specs.engine_defaults import engine_default
from pinn.specs.gpu import GpuSpec
from pinn.specs.limits import MOST_MODEL_SIZE
from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.model import Attention, LatentAttentionSpec, ModelSpec
from pinn.specs.precision import Precision
from pinn.specs.recipe import ASSUMED, DEFAULT, DESIGN, EffectiveRecipe, Origin
from pinn.specs.serving import VLLM

#: A block holds a multiple of what attention kernels take at once: FlashAttention 16 tokens. MLA
#: kernels take what ``latent_state_block`` of the defaults' table says.
KERNEL_TOKENS = 16

_NOT_MODELLED = "prefixes of states, which vLLM finds at the ends of blocks, are not modelled: "
_OTHERS = "prefixes of states are not modelled"


def with_states(
    recipe: EffectiveRecipe,
    model: ModelSpec,
    kv: Precision,
    max_model_len: int,
    version: str | None,
    gpu: GpuSpec,
) -> EffectiveRecipe:
    """The recipe of a model that has recurrent states; any other's as it is.

    Args:
        recipe: By flags and defaults.
        model: What is served.
        kv: Format of the KV cache.
        max_model_len: Longest context; a model without keys and values has one block of it.
        version: The release of vLLM, whose states lie in the blocks; None for other engines, which
            keep a pool of their own.
        gpu: What it runs on.
    """
    states = [g.attention for g in model.layer_groups if isinstance(g.attention, LinearMixerSpec)]
    if not states:
        return recipe
    changes: dict[str, object] = {"prefix_caching": False}
    origins = {**recipe.origins, "prefix_caching": Origin(ASSUMED, _OTHERS)}
    if version is not None:
        found = engine_default(VLLM, "state_prefix_caching", version, gpu)
        origins["prefix_caching"] = (
            Origin(ASSUMED, _NOT_MODELLED + found.source)
            if found.value == "yes"
            else Origin(DEFAULT, found.source)
        )
        aligned = engine_default(VLLM, "latent_state_block", version, gpu)
        changes["block_tokens"] = _block_tokens(
            recipe, model, states[0], kv, max_model_len, int(aligned.value)
        )
        origins["block_tokens"] = Origin(DESIGN, aligned.source)
    return replace(recipe, **changes, origins=origins)  # type: ignore[arg-type]


def _block_tokens(
    recipe: EffectiveRecipe,
    model: ModelSpec,
    state: LinearMixerSpec,
    kv: Precision,
    max_model_len: int,
    latent_tokens: int,
) -> int:
    attention = [g.attention for g in model.layer_groups if isinstance(g.attention, Attention)]
    if not attention:
        return max_model_len
    tp, mixer = recipe.tensor_parallel_size, attention[0]
    step = latent_tokens if isinstance(mixer, LatentAttentionSpec) else KERNEL_TOKENS
    token_bytes = cached_width(mixer, tp) * kv.bytes_per_weight
    steps = -(-state.state_bytes(tp) // (step * token_bytes))
    return max(recipe.block_tokens, min(int(steps) * step, MOST_MODEL_SIZE))


def cached_width(mixer: Attention, tensor_parallel_size: int) -> float:
    """Elements of a token's keys and values in one layer on one GPU; MLA's are not divided."""
    if isinstance(mixer, LatentAttentionSpec):
        return float(mixer.kv_width)
    return 2 * max(mixer.kv_heads // tensor_parallel_size, 1) * mixer.head_dim
