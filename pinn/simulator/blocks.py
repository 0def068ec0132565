"""Queues of requests, and the blocks of the KV cache that they hold."""

from pinn.simulator import arrays
from pinn.simulator.compiler import compiled_inside
from pinn.simulator.state import ARRIVED, PREEMPTED, RUNNING

# Queues of requests: linked lists for arrival order, binary heaps for moments in time.


def append(engine, queue, r):
    """``FCFSRequestQueue.add_request``, or ``EngineCoreProc.process_input_sockets``."""
    _join(engine, queue, queue.tail, r)
    _join(engine, queue, r, -1)
    queue.size += 1


def prepend(engine, queue, r):
    """``FCFSRequestQueue.prepend_request``."""
    head = queue.head
    _join(engine, queue, -1, r)
    _join(engine, queue, r, head)
    queue.size += 1


def remove(engine, queue, r):
    """``FCFSRequestQueue.remove_request``."""
    request = arrays.requests(engine, r)
    _join(engine, queue, request.before, request.after)
    queue.size -= 1


def _join(engine, queue, before, after):
    """Two requests become neighbours; -1 stands for an end of the queue."""
    if before >= 0:
        arrays.requests(engine, before).after = after
    else:
        queue.head = after
    if after >= 0:
        arrays.requests(engine, after).before = before
    else:
        queue.tail = before


def push_heap(times, ids, size, time, r):
    """Insert into a heap of ``size`` entries."""
    i = size
    while i > 0 and time < times[(i - 1) // 2]:
        times[i], ids[i] = times[(i - 1) // 2], ids[(i - 1) // 2]
        i = (i - 1) // 2
    times[i], ids[i] = time, r


def pop_heap(times, ids, size):
    """Remove the earliest of ``size`` entries and return its request."""
    first, time, r = ids[0], times[size - 1], ids[size - 1]
    i, child = 0, 1
    while child < size - 1:
        if child + 1 < size - 1 and times[child + 1] < times[child]:
            child += 1
        if times[child] >= time:
            break
        times[i], ids[i] = times[child], ids[child]
        i, child = child, 2 * child + 1
    times[i], ids[i] = time, r
    return first


# The pool of KV cache blocks: allocation, prefix cache, eviction.
#
# Mirrors ``vllm/v1/core/block_pool.py`` and ``FullAttentionManager`` of
# ``single_type_kv_cache_manager.py``. A block's hash is an integer key here, equal where vLLM's
# chained hashes would be equal. Models with windowed layers hold further, unkeyed blocks per
# request; their prefix hits follow the full-attention group alone.


def blocks_for(engine, tokens):
    """Blocks of one KV cache group that hold so many tokens."""
    return -(-tokens // engine.block_tokens)


def extra_blocks_for(engine, tokens):
    """Blocks of the other KV cache groups: further full ones, and windowed ones up to a window."""
    blocks = blocks_for(engine, tokens)
    windowed = min(blocks, engine.window_blocks)
    return (engine.full_groups - 1) * blocks + engine.window_groups * windowed


def take_block(engine, replica):
    """``BlockPool.get_new_blocks``: the least recently freed block, dropped from the cache."""
    block = arrays.next_free(engine, replica, 0)
    unlink_block(engine, replica, block)
    forget_key(engine, replica, block)
    arrays.references(engine, replica)[block] = 1
    arrays.replicas(engine, replica).held_blocks += 1
    return block


def unlink_block(engine, replica, block):
    """``FreeKVCacheBlockQueue.remove``."""
    after = arrays.next_free(engine, replica, block)
    before = arrays.previous_free(engine, replica, block)
    arrays.next_free(engine, replica)[before] = after
    arrays.previous_free(engine, replica)[after] = before
    arrays.replicas(engine, replica).free_blocks -= 1


def release_block(engine, replica, block, first):
    """``BlockPool.free_blocks`` of one block: to the end of the free list, or to its beginning."""
    arrays.references(engine, replica)[block] -= 1
    arrays.replicas(engine, replica).held_blocks -= 1
    if arrays.references(engine, replica, block) > 0:
        return
    # The free list begins after the sentinel 0 and ends before it.
    before, after = arrays.previous_free(engine, replica, 0), 0
    if first:
        before, after = 0, arrays.next_free(engine, replica, 0)
    arrays.next_free(engine, replica)[before] = block
    arrays.previous_free(engine, replica)[block] = before
    arrays.next_free(engine, replica)[block] = after
    arrays.previous_free(engine, replica)[after] = block
    arrays.replicas(engine, replica).free_blocks += 1


def touch_block(engine, replica, block):
    """``BlockPool.touch``: one more request uses a cached block."""
    if arrays.references(engine, replica, block) == 0:
        unlink_block(engine, replica, block)
    arrays.references(engine, replica)[block] += 1
    arrays.replicas(engine, replica).held_blocks += 1


def remember_key(engine, replica, block, key):
    """``BlockHashToBlockMap.insert``: blocks of equal content queue up behind the first."""
    arrays.block_key(engine, replica)[block] = key
    arrays.twin(engine, replica)[block] = 0
    last = arrays.holder(engine, replica, key)
    if last == 0:
        arrays.holder(engine, replica)[key] = block
        return
    while arrays.twin(engine, replica, last) != 0:
        last = arrays.twin(engine, replica, last)
    arrays.twin(engine, replica)[last] = block


def forget_key(engine, replica, block):
    """``BlockPool._maybe_evict_cached_block``."""
    key = arrays.block_key(engine, replica, block)
    if key < 0:
        return
    arrays.block_key(engine, replica)[block] = -1
    after = arrays.twin(engine, replica, block)
    if arrays.holder(engine, replica, key) == block:
        arrays.holder(engine, replica)[key] = after
        return
    before = arrays.holder(engine, replica, key)
    while arrays.twin(engine, replica, before) != block:
        before = arrays.twin(engine, replica, before)
    arrays.twin(engine, replica)[before] = after


def cached_blocks(engine, replica, r):
    """``KVCacheManager.get_computed_blocks``: length of the longest cached prefix, in blocks.

    At least one token is left to compute, so a wholly cached prompt recomputes its last block.
    """
    request = arrays.requests(engine, r)
    if not engine.prefix_caching:
        return 0
    longest = (request.prompt + request.generated - 1) // engine.block_tokens
    for hits in range(longest):
        if arrays.holder(engine, replica, arrays.keys(engine, request.first_key + hits)) == 0:
            return hits
    return longest


def grow(engine, replica, r, tokens):
    """``KVCacheManager.allocate_slots`` of a request that has blocks: all it needs, or nothing."""
    request = arrays.requests(engine, r)
    if tokens <= request.blocks * engine.block_tokens:
        return True
    blocks, extra = blocks_for(engine, tokens), 0
    if engine.full_groups + engine.window_groups > 1:
        extra = extra_blocks_for(engine, tokens)
    needed = blocks - request.blocks + max(extra - request.extra_blocks, 0)
    if needed > arrays.replicas(engine, replica).free_blocks:
        return False
    row = arrays.table(engine, replica, request.slot)
    while request.blocks < blocks:
        row[request.blocks] = take_block(engine, replica)
        request.blocks += 1
    while request.extra_blocks < extra:
        row[engine.row - 1 - request.extra_blocks] = take_block(engine, replica)
        request.extra_blocks += 1
    return True


def fits(engine, replica, r, hits, tokens):
    """Whether so many tokens of a waiting request have room, its first ``hits`` blocks cached.

    Cached blocks that nobody uses leave the free list too, so they count against it
    (``SingleTypeKVCacheManager.get_num_blocks_to_allocate``).
    """
    request = arrays.requests(engine, r)
    needed = max(blocks_for(engine, tokens) - hits - request.blocks, 0)
    needed += max(extra_blocks_for(engine, tokens) - request.extra_blocks, 0)
    for i in range(hits):
        block = arrays.holder(engine, replica, arrays.keys(engine, request.first_key + i))
        needed += arrays.references(engine, replica, block) == 0
    return needed <= arrays.replicas(engine, replica).free_blocks


def admit(engine, replica, r, hits, tokens):
    """``allocate_slots`` of a request without blocks, whose first ``hits`` blocks are cached."""
    request, state = arrays.requests(engine, r), arrays.replicas(engine, replica)
    if state.free_slots == 0 or not fits(engine, replica, r, hits, tokens):
        return False
    state.free_slots -= 1
    request.slot = arrays.slot_stack(engine, replica, state.free_slots)
    row = arrays.table(engine, replica, request.slot)
    for i in range(hits):
        row[i] = arrays.holder(engine, replica, arrays.keys(engine, request.first_key + i))
        touch_block(engine, replica, row[i])
    request.blocks = request.keyed_blocks = hits
    request.extra_blocks = 0
    return grow(engine, replica, r, tokens)


def key_blocks(engine, replica, r, tokens):
    """``SingleTypeKVCacheManager.cache_blocks``: full blocks become findable."""
    request = arrays.requests(engine, r)
    if tokens < (request.keyed_blocks + 1) * engine.block_tokens or not engine.prefix_caching:
        return
    full = tokens // engine.block_tokens
    row = arrays.table(engine, replica, request.slot)
    for i in range(request.keyed_blocks, full):
        remember_key(engine, replica, row[i], arrays.keys(engine, request.first_key + i))
    request.keyed_blocks = full


def free_request(engine, replica, r):
    """``KVCacheManager.free``: last block first, so that the tail of a prefix is evicted first.

    Where blocks without a key go first, the last of them is the very first.
    """
    request, state = arrays.requests(engine, r), arrays.replicas(engine, replica)
    if request.slot < 0:
        return
    row = arrays.table(engine, replica, request.slot)
    if engine.uncached_first:
        for i in range(request.keyed_blocks, request.blocks):
            release_block(engine, replica, row[i], True)
        request.blocks = request.keyed_blocks
    for i in range(request.blocks - 1, -1, -1):
        release_block(engine, replica, row[i], False)
    for i in range(request.extra_blocks - 1, -1, -1):
        release_block(engine, replica, row[engine.row - 1 - i], False)
    arrays.slot_stack(engine, replica)[state.free_slots] = request.slot
    state.free_slots += 1
    request.slot, request.blocks, request.keyed_blocks, request.extra_blocks = -1, 0, 0, 0


def enter(engine, replica, r, computed):
    """A waiting request becomes a running one, so many of its tokens found in the cache."""
    request, state = arrays.requests(engine, r), arrays.replicas(engine, replica)
    remove(engine, arrays.waiting(engine, replica), r)
    if request.scheduled_s < 0:
        request.scheduled_s = state.now_s
        request.cached_tokens = computed
        arrays.new(engine, replica)[state.new] = r
        state.new += 1
    request.reused_tokens += computed
    request.computed = computed
    request.status = RUNNING
    arrays.running(engine, replica)[state.running] = r
    state.running += 1


def preempt(engine, replica, r):
    """A running request loses its blocks and begins anew; where it waits is the caller's to say."""
    request, state = arrays.requests(engine, r), arrays.replicas(engine, replica)
    free_request(engine, replica, r)
    request.status = PREEMPTED
    request.computed = request.unverified = 0
    request.preemptions += 1
    arrays.preempted(engine, replica)[state.preempted] = r
    state.preempted += 1


# What a batch holds: its requests, and the sums that step features are made of.


def add_to_batch(engine, replica, r, tokens):
    """Put a request into the batch that is being made up, and advance it.

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
    column = state.column
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


def _pairs(tokens, window):
    """(query, key) pairs of a prompt: the i-th token sees min(i, window) keys."""
    inside = min(tokens, window)
    return inside * (inside + 1) / 2 + (tokens - inside) * inside


def round_up_decodes(engine, replica):
    """A step of decodes alone runs as the next larger CUDA graph, with rows of one token added.

    Beyond the largest graph it is launched as it is; ``graph_requests`` of the costs tells.
    """
    state, sums = arrays.replicas(engine, replica), arrays.sums(engine, replica)
    state.padding = 0
    if sums[0] > 0 or sums[1] == 0:
        return
    added = arrays.graph_size(engine, int(sums[1])) - int(sums[1])
    state.padding = added
    sums[1] += added
    sums[3] += added
    sums[6] += added


compiled_inside(__name__)
