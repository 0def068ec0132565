"""Requests of an engine with a radix tree and a second tier: admission, growth, insertion, end.

Mirrors ``sglang/srt/mem_cache/common.py: alloc_for_extend``, ``radix_cache.py:
cache_unfinished_req`` and ``cache_finished_req`` (to 0.5.12), later ``unified_radix_cache.py:
checkpoint_into_tree``. A prefill batch overlaps with its loads: each layer waits for its own keys
and values.
"""

from pinn.simulator import hicache, hicache_link
from pinn.simulator import radix_tree as tree
from pinn.simulator.compiler import compiled_inside
from pinn.simulator.engine import Engine
from pinn.simulator.radix_tree import ROOT
from pinn.simulator.state import FINISHED, LOAD, RUNNING, STORE, Request


def take(engine: Engine, replica: int, r: int, hits: int, tokens: int) -> bool:
    """Assign a waiting request its cached prefix, and new KV blocks for its other tokens.

    Return whether enough blocks are free; otherwise the request is assigned nothing.
    """
    request, state = engine.requests[r], engine.replicas[replica]
    tree.lock(engine, replica, state.matched)
    request.node, request.blocks, request.keyed_blocks = state.matched, hits, hits
    request.inserted = 0
    if state.free_slots > 0 and grow(engine, replica, request, tokens):
        state.free_slots -= 1
        request.slot = engine.slot_stack[replica, state.free_slots]
        state.held_blocks += hits
        return True
    tree.unlock(engine, replica, request.node)
    request.node, request.blocks, request.keyed_blocks = ROOT, 0, 0
    return False


def grow(engine: Engine, replica: int, request: Request, tokens: int) -> bool:
    """Allocate all KV blocks that a request needs for ``tokens`` tokens.

    Return whether enough blocks are free; otherwise no block is allocated.
    """
    size, state = engine.config.block_tokens, engine.replicas[replica]
    needed = max(-(-tokens // size) - request.blocks, 0)
    if needed > state.free_blocks:
        return False
    request.blocks += needed
    state.free_blocks -= needed
    state.held_blocks += needed
    state.wanted += needed
    state.wanting += 1
    return True


def allocate(engine: Engine, replica: int, prompts: bool) -> None:
    """Allocate blocks for all requests of a batch (``alloc_for_extend``, ``alloc_for_decode``).

    With pages of several tokens, one additional page per request is kept free.
    """
    state = engine.replicas[replica]
    room = state.wanted
    if engine.config.block_tokens > 1:
        room = state.wanting + state.wanted * prompts
    hicache.make_room(engine, replica, room)
    state.unused -= state.wanted
    state.wanted = state.wanting = 0


def begin_loads(engine: Engine, replica: int) -> None:
    """Begin the batch's KV loads from host memory, which overlap with the running batch."""
    state = engine.replicas[replica]
    state.load_s = hicache_link.begin(engine, replica, LOAD, state.heard_s)


def put(engine: Engine, replica: int, r: int, blocks: int, chunked: bool, ready_s: float) -> None:
    """Insert a request's first ``blocks`` KV blocks into the radix tree, and lock their nodes."""
    request = engine.requests[r]
    last, overlap = _walk(engine, replica, r, blocks, chunked, ready_s)
    kept = int(request.keyed_blocks)
    _free(engine, replica, max(overlap - kept, 0))
    # Make the prompt a separate node, so that the output can be evicted without it.
    full = request.prompt // engine.config.block_tokens
    if engine.config.tier_unified and 0 < full < blocks:
        request.inserted = blocks
        _walk(engine, replica, r, full, True, ready_s)
    tree.lock(engine, replica, last)
    tree.unlock(engine, replica, request.node)
    request.node = last
    request.keyed_blocks = blocks
    request.inserted = max(request.inserted, blocks)


def _free(engine: Engine, replica: int, blocks: int) -> None:
    """Return ``blocks`` KV blocks to a replica's pool of unused blocks."""
    state = engine.replicas[replica]
    state.unused += blocks
    state.free_blocks += blocks


def _walk(
    engine: Engine, replica: int, r: int, blocks: int, chunked: bool, ready_s: float
) -> tuple[int, int]:
    """Insert a request's first ``blocks`` KV blocks into the radix tree (``insert``).

    Return the index of the last node, and the number of blocks that were already on the GPU.
    """
    request, config = engine.requests[r], engine.config
    place, end = request.first_key, request.first_key + blocks
    last, overlap = ROOT, 0
    while place < end:
        n = tree.child_at(engine, replica, place)
        fresh = n == 0
        if fresh:
            n = tree.new_node(engine, replica, last, place, end - place)
        else:
            tree.touch(engine, replica, n)
            equal = tree.equal_blocks(engine, engine.nodes[replica, n], place, end - place)
            if equal < engine.nodes[replica, n].blocks:
                n = tree.split(engine, replica, n, equal)
        node = engine.nodes[replica, n]
        place += node.blocks
        known = node.on_gpu > 0
        if known:
            overlap += node.blocks
        else:
            tree.come_to_gpu(engine, replica, n)
            tree.note_double(engine, replica, n)
        if config.tier_unified:
            counts = place - request.first_key > request.inserted
        else:
            counts = not chunked and (known or fresh)
        if counts:
            hicache.hit(engine, replica, r, n, ready_s)
        last = n
    return last, overlap


def leave(engine: Engine, replica: int, r: int) -> None:
    """Free a request's blocks that are not in the radix tree, and unlock its nodes."""
    request, state = engine.requests[r], engine.replicas[replica]
    if request.slot < 0:
        return
    engine.slot_stack[replica, state.free_slots] = request.slot
    state.free_slots += 1
    state.held_blocks -= request.blocks
    _free(engine, replica, request.blocks - request.keyed_blocks)
    tree.unlock(engine, replica, request.node)
    request.slot, request.node = -1, ROOT
    request.blocks = request.keyed_blocks = request.inserted = 0


def hear(engine: Engine, replica: int) -> None:
    """Process completed batches, requests and KV transfers before the next batch is scheduled."""
    state, done_s = engine.replicas[replica], 0.0
    for i in range(state.gone):
        r = engine.gone[replica, i]
        request = engine.requests[r]
        if request.slot < 0:
            continue
        done_s = max(done_s, request.last_s)
        if request.status in (RUNNING, FINISHED):
            computed = request.computed - request.placeholders * (request.status == RUNNING)
            computed = min(computed, request.prompt + request.generated)
            put(engine, replica, r, computed // engine.config.block_tokens, False, request.last_s)
        if request.status != RUNNING:
            leave(engine, replica, r)
    hicache_link.begin(engine, replica, STORE, done_s if state.gone > 0 else state.now_s)
    state.gone = 0
    state.heard_s, state.load_s = max(state.heard_s, state.now_s), 0.0
    hicache_link.hear_ended(engine, replica)


def put_chunk(engine: Engine, replica: int, r: int) -> None:
    """Insert the computed part of a prompt into the radix tree (``stash_chunked_request``)."""
    blocks = engine.requests[r].computed // engine.config.block_tokens
    put(engine, replica, r, blocks, True, engine.replicas[replica].now_s)


compiled_inside(__name__)
