"""The pool of KV cache blocks: allocation, prefix cache, eviction.

Mirrors ``vllm/v1/core/block_pool.py`` and ``FullAttentionManager`` of
``single_type_kv_cache_manager.py``. A block's hash is an integer key here, equal where vLLM's
chained hashes would be equal. Models with windowed layers hold further, unkeyed blocks per
request; their prefix hits follow the full-attention group alone.
"""

from __future__ import annotations

from pinn.simulator.jit import inner


@inner
def blocks_for(limits, tokens):
    """Blocks of one KV cache group that hold so many tokens."""
    return -(-tokens // limits.block_size)


@inner
def extra_blocks_for(limits, tokens):
    """Blocks of the other KV cache groups: further full ones, and windowed ones up to a window."""
    blocks = blocks_for(limits, tokens)
    windowed = min(blocks, limits.window_blocks)
    return (limits.full_groups - 1) * blocks + limits.window_groups * windowed


@inner
def take_block(engine, replica):
    """``BlockPool.get_new_blocks``: the least recently freed block, dropped from the cache."""
    block = engine.next_free[replica, 0]
    unlink_block(engine, replica, block)
    forget_key(engine, replica, block)
    engine.references[replica, block] = 1
    return block


@inner
def unlink_block(engine, replica, block):
    """``FreeKVCacheBlockQueue.remove``."""
    after, before = engine.next_free[replica, block], engine.previous_free[replica, block]
    engine.next_free[replica, before] = after
    engine.previous_free[replica, after] = before
    engine.replicas[replica].free_blocks -= 1


@inner
def release_block(engine, replica, block):
    """``BlockPool.free_blocks`` of one block: unused ones go to the end of the free list."""
    engine.references[replica, block] -= 1
    if engine.references[replica, block] > 0:
        return
    last = engine.previous_free[replica, 0]
    engine.next_free[replica, last] = block
    engine.previous_free[replica, block] = last
    engine.next_free[replica, block] = 0
    engine.previous_free[replica, 0] = block
    engine.replicas[replica].free_blocks += 1


@inner
def touch_block(engine, replica, block):
    """``BlockPool.touch``: one more request uses a cached block."""
    if engine.references[replica, block] == 0:
        unlink_block(engine, replica, block)
    engine.references[replica, block] += 1


@inner
def remember_key(engine, replica, block, key):
    """``BlockHashToBlockMap.insert``: blocks of equal content queue up behind the first."""
    engine.block_key[replica, block] = key
    engine.twin[replica, block] = 0
    last = engine.holder[replica, key]
    if last == 0:
        engine.holder[replica, key] = block
        return
    while engine.twin[replica, last] != 0:
        last = engine.twin[replica, last]
    engine.twin[replica, last] = block


@inner
def forget_key(engine, replica, block):
    """``BlockPool._maybe_evict_cached_block``."""
    key = engine.block_key[replica, block]
    if key < 0:
        return
    engine.block_key[replica, block] = -1
    after = engine.twin[replica, block]
    if engine.holder[replica, key] == block:
        engine.holder[replica, key] = after
        return
    before = engine.holder[replica, key]
    while engine.twin[replica, before] != block:
        before = engine.twin[replica, before]
    engine.twin[replica, before] = after


@inner
def cached_blocks(engine, replica, r):
    """``KVCacheManager.get_computed_blocks``: length of the longest cached prefix, in blocks.

    At least one token is left to compute, so a wholly cached prompt recomputes its last block.
    """
    limits, request = engine.limits, engine.requests[r]
    if not limits.caching:
        return 0
    longest = (request.prompt + request.generated - 1) // limits.block_size
    hits = 0
    while hits < longest and engine.holder[replica, engine.keys[request.first_key + hits]] != 0:
        hits += 1
    return hits


@inner
def grow(engine, replica, r, tokens):
    """``KVCacheManager.allocate_slots`` of a request that has blocks: all it needs, or nothing."""
    limits, request = engine.limits, engine.requests[r]
    blocks, extra = blocks_for(limits, tokens), 0
    if blocks <= request.blocks:
        return True
    if limits.full_groups + limits.window_groups > 1:
        extra = extra_blocks_for(limits, tokens)
    needed = blocks - request.blocks + max(extra - request.extra_blocks, 0)
    if needed > engine.replicas[replica].free_blocks:
        return False
    row = engine.table[replica, request.slot]
    while request.blocks < blocks:
        row[request.blocks] = take_block(engine, replica)
        request.blocks += 1
    while request.extra_blocks < extra:
        row[limits.row - 1 - request.extra_blocks] = take_block(engine, replica)
        request.extra_blocks += 1
    return True


@inner
def admit(engine, replica, r, hits, tokens):
    """``allocate_slots`` of a request without blocks, whose first ``hits`` blocks are cached.

    Cached blocks that nobody uses leave the free list too, so they count against it
    (``SingleTypeKVCacheManager.get_num_blocks_to_allocate``).
    """
    limits, request, state = engine.limits, engine.requests[r], engine.replicas[replica]
    needed = blocks_for(limits, tokens) - hits + extra_blocks_for(limits, tokens)
    for i in range(hits):
        block = engine.holder[replica, engine.keys[request.first_key + i]]
        needed += engine.references[replica, block] == 0
    if needed > state.free_blocks or state.free_slots == 0:
        return False
    state.free_slots -= 1
    request.slot = engine.slot_stack[replica, state.free_slots]
    row = engine.table[replica, request.slot]
    for i in range(hits):
        row[i] = engine.holder[replica, engine.keys[request.first_key + i]]
        touch_block(engine, replica, row[i])
    request.blocks = request.keyed_blocks = hits
    request.extra_blocks = 0
    return grow(engine, replica, r, tokens)


@inner
def key_blocks(engine, replica, r, tokens):
    """``SingleTypeKVCacheManager.cache_blocks``: full blocks become findable."""
    limits, request = engine.limits, engine.requests[r]
    full = tokens // limits.block_size
    if not limits.caching or full <= request.keyed_blocks:
        return
    row = engine.table[replica, request.slot]
    for i in range(request.keyed_blocks, full):
        remember_key(engine, replica, row[i], engine.keys[request.first_key + i])
    request.keyed_blocks = full


@inner
def free_request(engine, replica, r):
    """``KVCacheManager.free``: last block first, so that the tail of a prefix is evicted first."""
    limits, request, state = engine.limits, engine.requests[r], engine.replicas[replica]
    if request.slot < 0:
        return
    row = engine.table[replica, request.slot]
    for i in range(request.blocks - 1, -1, -1):
        release_block(engine, replica, row[i])
    for i in range(request.extra_blocks - 1, -1, -1):
        release_block(engine, replica, row[limits.row - 1 - i])
    engine.slot_stack[replica, state.free_slots] = request.slot
    state.free_slots += 1
    request.slot, request.blocks, request.keyed_blocks, request.extra_blocks = -1, 0, 0, 0
