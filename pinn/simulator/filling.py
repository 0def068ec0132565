"""What a batch holds: its requests, and the sums that step features are made of."""

from __future__ import annotations

from pinn.simulator import arrays
from pinn.simulator.blocks import key_blocks
from pinn.simulator.jit import inner
from pinn.simulator.state import ARRIVED


@inner
def add_to_batch(engine, replica, column, r, tokens):
    """Put a request into the batch and advance it.

    In vLLM full blocks become findable before they are computed (``KVCacheManager.
    allocate_slots``), so that requests of one step can share them; in SGLang afterwards.
    """
    request, state = arrays.requests(engine, r), arrays.replicas(engine, replica)
    cached, known = request.computed, request.prompt + request.generated
    # What is left of a prompt whose keys and values came over the network is a step like a decode.
    prompt_left = cached < request.prompt and request.transferred != ARRIVED
    prefill = tokens > 1 + engine.drafts or prompt_left
    request.computed = cached + tokens
    request.worked += tokens
    request.in_flight += 1
    if not engine.prefill_first:
        key_blocks(engine, replica, r, min(request.computed, known))
    # The next token, and one more for each drafted one that is verified with it.
    sampled = max(request.computed - known - request.placeholders + 1, 0)
    if sampled > 1:
        request.unverified += sampled - 1
    if engine.asynchronous:
        request.placeholders += sampled
    if sampled > 0:
        request.eligible = state.schedulings + engine.stagger
    i = arrays.batch_size(engine, replica, column)
    arrays.batch_request(engine, replica, column)[i] = r
    arrays.batch_sampled(engine, replica, column)[i] = sampled
    if engine.keeps_batches:
        arrays.batch_new(engine, replica, column)[i] = tokens
        arrays.batch_cached(engine, replica, column)[i] = cached
        arrays.batch_prefill(engine, replica, column)[i] = prefill
    arrays.batch_size(engine, replica)[column] = i + 1
    state.tokens += tokens
    sums = arrays.sums(engine, replica)
    _account(sums, tokens, cached, prefill, engine.window)
    if prefill:
        sums[9] += tokens * (request.prompt + tokens / 2)


@inner
def _account(sums, new, cached, prefill, window):
    """Add a request to the sums of ``pinn.physics.batch_sums.BatchSums``, in order."""
    if prefill:
        sums[0] += 1
        sums[2] += new
        sums[4] += cached
        sums[5] += new * cached + new * (new + 1) / 2
        sums[7] += min(cached, window)
        sums[8] += _pairs(cached + new, window) - _pairs(cached, window)
    else:
        sums[1] += 1
        sums[3] += cached + 1
        sums[6] += min(cached + 1, window)


@inner
def _pairs(tokens, window):
    """(query, key) pairs of a prompt: the i-th token sees min(i, window) keys."""
    inside = min(tokens, window)
    return inside * (inside + 1) / 2 + (tokens - inside) * inside


@inner
def round_up_decodes(engine, replica):
    """A step of decodes alone runs as the next larger CUDA graph, with rows of one token added.

    Beyond the largest graph it is launched as it is; ``graph_requests`` of the costs tells.
    """
    state, sums = arrays.replicas(engine, replica), arrays.sums(engine, replica)
    state.padding = 0
    if sums[0] > 0 or sums[1] == 0:
        return
    decodes = int(sums[1])
    added = arrays.graph_size(engine, decodes) - decodes
    state.padding = added
    sums[1] += added
    sums[3] += added
    sums[6] += added
