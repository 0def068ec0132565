"""KV blocks of the longest request, which determine vLLM's start and logged concurrency."""

from pinn.engines.deployment import Deployment, cached_attention
from pinn.memory.compressed_layout import CompressedLayout, compressed, compressed_layout
from pinn.memory.kv_layout import (
    KvLayout,
    cached_window,
    state_layers,
    window_block_tokens,
)
from pinn.specs.serving import VLLM

#: Tokens of DeepSeek-V4's smallest block, the unit in which vLLM 0.20.0 counts cache tokens.
_SMALLEST = 4


def start_blocks(deployment: Deployment, layout: KvLayout, tokens: int) -> int:
    """Return the maximum number of blocks that a request of ``tokens`` tokens uses in prefill.

    For a windowed layer, blocks cover the window and the tokens of the batches in flight, but at
    most the request's tokens, plus one block because the window may begin inside a block
    (v1/kv_cache_interface.py: SlidingWindowSpec). A recurrent state has one or two blocks, and one
    more if states within the prompt are kept (MambaSpec).
    """
    recipe, size = deployment.recipe, deployment.recipe.block_tokens
    full = layout.full_groups * -(-tokens // size)
    packed = _compressed(deployment)
    if packed is not None:
        return full + packed.start_blocks(_in_flight(deployment), tokens)
    states = state_layers(deployment.model)
    if states:
        kinds = {mixer.kind for _, mixer in states}
        amid = layout.window_blocks > 1 and kinds <= set(recipe.scheduler.state_checkpoints.split())
        return full + layout.window_groups * (layout.window_blocks + amid)
    if not (layout.window_groups or _only_windows(deployment)):
        return full
    held = cached_window(deployment.model) - 1 + _in_flight(deployment)
    windowed = -(-min(held, tokens) // window_block_tokens(deployment)) + 1
    return full + layout.window_groups * windowed if layout.window_groups else windowed


def counted_blocks(deployment: Deployment, layout: KvLayout, tokens: int) -> int:
    """Return the number of a request's blocks, as vLLM counts them for logged cache sizes.

    vLLM logs the tokens and the concurrency of its KV cache.
    """
    packed = _compressed(deployment)
    if packed is None or deployment.recipe.scheduler.mixed_pages:
        return start_blocks(deployment, layout, tokens)
    blocks = -(-tokens // deployment.recipe.block_tokens)
    return packed.counted_blocks(blocks, _in_flight(deployment), tokens)


def logged_groups(deployment: Deployment, layout: KvLayout) -> tuple[int, int]:
    """Return the number of layer groups, and the tokens per block.

    vLLM up to 0.20.0 computes the cache size that it logs from these two numbers.
    """
    packed = _compressed(deployment)
    if packed is not None:
        return packed.groups, _SMALLEST
    tokens = min(deployment.recipe.block_tokens, window_block_tokens(deployment))
    return layout.full_groups + layout.window_groups, tokens


def _compressed(deployment: Deployment) -> CompressedLayout | None:
    model = deployment.model
    if deployment.serving.engine != VLLM or compressed(model) is None:
        return None
    return compressed_layout(model, deployment.recipe.scheduler.mixed_pages)


def _in_flight(deployment: Deployment) -> int:
    """Return the maximum number of tokens of the steps in flight.

    vLLM up to 0.25 counts a single step, later releases all steps in flight. Source:
    config/vllm.py: VllmConfig.max_in_flight_tokens.
    """
    recipe = deployment.recipe
    batches = 1
    if recipe.scheduler.windows_in_flight:
        batches = recipe.pipeline_parallel_size + recipe.overlap
    return batches * recipe.token_budget


def _only_windows(deployment: Deployment) -> bool:
    kept = [mixer.window_tokens for mixer in cached_attention(deployment.model)]
    return bool(kept) and all(kept)
