"""Linked-list queues of requests, and the allocator of KV cache blocks to requests."""

import numpy as np

from pinn.simulator.compiler import compiled_inside
from pinn.simulator.engine import Engine
from pinn.simulator.state import (
    ARRIVED,
    BY_JOB,
    DONE,
    PREEMPTED,
    REACH,
    RUNNING,
    Event,
    Job,
    Queue,
    Records,
    Request,
)

# Queues: linked lists of requests in order of arrival, and binary heaps of events in order of time.


def append(engine: Engine, queue: Queue, r: int) -> None:
    """Append a request to a queue, as vLLM's ``FCFSRequestQueue.add_request`` does."""
    _join(engine, queue, queue.tail, r)
    _join(engine, queue, r, -1)
    queue.size += 1


def prepend(engine: Engine, queue: Queue, r: int) -> None:
    """Insert a request at the head of a queue (vLLM's ``FCFSRequestQueue.prepend_request``)."""
    head = queue.head
    _join(engine, queue, -1, r)
    _join(engine, queue, r, head)
    queue.size += 1


def move_after_holders(engine: Engine, queue: Queue, r: int) -> None:
    """Move a request behind the requests at the head of its queue that already own KV blocks.

    vLLM keeps requests with KV blocks in a separate queue, ``Scheduler.kv_holding_waiting``, and
    schedules that queue first.
    """
    remove(engine, queue, r)
    before, after = -1, queue.head
    while after >= 0 and engine.requests[after].slot >= 0:
        before, after = after, engine.requests[after].after
    _join(engine, queue, before, r)
    _join(engine, queue, r, after)
    queue.size += 1


def remove(engine: Engine, queue: Queue, r: int) -> None:
    """Remove a request from its queue, as vLLM's ``FCFSRequestQueue.remove_request`` does."""
    _join(engine, queue, engine.requests[r].before, engine.requests[r].after)
    queue.size -= 1


def _join(engine: Engine, queue: Queue, before: int, after: int) -> None:
    """Link two requests of a queue so that ``after`` directly follows ``before``.

    If ``before`` is -1, ``after`` becomes the head of the queue. If ``after`` is -1, ``before``
    becomes the tail.
    """
    if before >= 0:
        engine.requests[before].after = after
    else:
        queue.head = after
    if after >= 0:
        engine.requests[after].before = before
    else:
        queue.tail = before


def push_heap(heap: Records[Event], size: int, moment_s: float, r: int) -> None:
    """Insert an event into a binary heap of ``size`` events, ordered by time."""
    i = size
    while i > 0 and moment_s < heap[(i - 1) // 2].moment_s:
        _put(heap[i], heap[(i - 1) // 2].moment_s, heap[(i - 1) // 2].request)
        i = (i - 1) // 2
    _put(heap[i], moment_s, r)


def pop_heap(heap: Records[Event], size: int) -> int:
    """Remove the earliest event from a heap of ``size`` events, and return its request index."""
    first, last = heap[0].request, heap[size - 1]
    moment_s, r = last.moment_s, last.request
    i, child = 0, 1
    while child < size - 1:
        if child + 1 < size - 1 and heap[child + 1].moment_s < heap[child].moment_s:
            child += 1
        if heap[child].moment_s >= moment_s:
            break
        _put(heap[i], heap[child].moment_s, heap[child].request)
        i, child = child, 2 * child + 1
    _put(heap[i], moment_s, r)
    return first


def _put(event: Event, moment_s: float, r: int) -> None:
    event.moment_s, event.request = moment_s, r


# The pool of KV cache blocks: allocation, prefix cache, eviction.
#
# Mirrors ``vllm/v1/core/block_pool.py`` and ``FullAttentionManager`` of
# ``single_type_kv_cache_manager.py``. A block's hash is an integer key here; two keys are equal if
# vLLM's chained hashes would be equal. In models with windowed layers, a request also has blocks
# without keys, and only the full-attention group determines prefix hits.


def blocks_for(engine: Engine, tokens: int) -> int:
    """Return the number of KV blocks that one KV cache group needs for ``tokens`` tokens."""
    return -(-tokens // engine.config.block_tokens)


def extra_blocks_for(engine: Engine, tokens: int) -> int:
    """Return the number of KV blocks for ``tokens`` tokens in all KV cache groups after the first.

    These groups contain other full-attention layers and layers with sliding-window attention.
    """
    config = engine.config
    blocks = blocks_for(engine, tokens)
    windowed = min(blocks * config.window_share, config.window_blocks)
    return (config.full_groups - 1) * blocks + config.window_groups * windowed


def take_block(engine: Engine, replica: int) -> int:
    """Allocate the first free KV block, drop it from the prefix cache, and return its number."""
    block = engine.cache[replica, 0].after
    unlink_block(engine, replica, block)
    forget_key(engine, replica, block)
    engine.cache[replica, block].references = 1
    engine.replicas[replica].held_blocks += 1
    if engine.config.tier == BY_JOB:
        note_block(engine, replica, block)
    return block


def note_block(engine: Engine, replica: int, block: int) -> None:
    """Record that a KV block is reused.

    If a transfer is still copying the block's old contents to host memory, the next batch waits for
    it.
    """
    engine.stamps[replica, block] = engine.replicas[replica].schedulings
    if engine.fences[replica, block] > 0:
        flush(engine, replica, engine.fences[replica, block] - 1)


def flush(engine: Engine, replica: int, number: int) -> None:
    """Make the next batch wait until a KV transfer to or from host memory completes."""
    if number >= engine.replicas[replica].jobs_first:
        job = job_of(engine, replica, number)
        if job.progress != DONE:
            job.flush = 1
            engine.replicas[replica].flushes += 1


def job_of(engine: Engine, replica: int, number: int) -> Job:
    """Return the record of a KV transfer to or from host memory, given its number."""
    return engine.jobs[replica, number % engine.config.n_jobs]


def unlink_block(engine: Engine, replica: int, block: int) -> None:
    """Unlink a block from the free list, as vLLM's ``FreeKVCacheBlockQueue.remove`` does."""
    taken = engine.cache[replica, block]
    engine.cache[replica, taken.before].after = taken.after
    engine.cache[replica, taken.after].before = taken.before
    engine.replicas[replica].free_blocks -= 1


def release_block(engine: Engine, replica: int, block: int, first: bool) -> None:
    """Decrement a block's reference count; at 0, add the block to the free list.

    If ``first`` is true the block is added at the head of the list and reused first.
    """
    freed, state = engine.cache[replica, block], engine.replicas[replica]
    freed.references -= 1
    state.held_blocks -= 1
    if freed.references > 0:
        return
    # The free list is circular: block 0, the sentinel, precedes its first block and ends the list.
    sentinel = engine.cache[replica, 0]
    before, after = sentinel.before, 0
    if first:
        before, after = 0, sentinel.after
    freed.before, freed.after = before, after
    engine.cache[replica, before].after = block
    engine.cache[replica, after].before = block
    state.free_blocks += 1


def touch_block(engine: Engine, replica: int, block: int) -> None:
    """Increment a cached block's reference count, as vLLM's ``BlockPool.touch`` does."""
    touched = engine.cache[replica, block]
    if touched.references == 0:
        unlink_block(engine, replica, block)
    touched.references += 1
    engine.replicas[replica].held_blocks += 1


def remember_key(engine: Engine, replica: int, block: int, key: int) -> None:
    """Add a block to the prefix cache under its key, an integer in place of vLLM's block hash.

    Blocks with equal keys form a linked list.
    """
    fresh = engine.cache[replica, block]
    fresh.key, fresh.twin = key, 0
    if engine.holder[replica, key] == 0:
        engine.holder[replica, key] = block
        _watch(engine, replica, key)
        return
    last = engine.cache[replica, engine.holder[replica, key]]
    while last.twin != 0:
        last = engine.cache[replica, last.twin]
    last.twin = block


def forget_key(engine: Engine, replica: int, block: int) -> None:
    """Remove a block from the prefix cache (vLLM's ``BlockPool._maybe_evict_cached_block``)."""
    forgotten = engine.cache[replica, block]
    key = forgotten.key
    if key < 0:
        return
    forgotten.key = -1
    if engine.holder[replica, key] == block:
        engine.holder[replica, key] = forgotten.twin
        if forgotten.twin == 0:
            _watch(engine, replica, key)
        return
    before = engine.cache[replica, engine.holder[replica, key]]
    while before.twin != block:
        before = engine.cache[replica, before.twin]
    before.twin = forgotten.twin


def _watch(engine: Engine, replica: int, key: int) -> None:
    """Record the time at which a block key enters or leaves the prefix cache.

    A router that updates its view at intervals needs this time to know which blocks it saw.
    Without such a router, nothing is recorded.
    """
    if engine.config.n_watched > 1:
        engine.key_s[replica, key] = engine.replicas[replica].now_s


def cached_blocks(engine: Engine, replica: int, r: int) -> int:
    """Return the length of the longest cached prefix of a request, in blocks.

    As in ``get_computed_blocks`` of vLLM, at least one token is left to compute: if a prompt is
    fully cached, its last block is recomputed.
    """
    config, request = engine.config, engine.requests[r]
    if not config.prefix_caching:
        return 0
    longest = (request.prompt + request.generated - 1) // config.block_tokens
    for hits in range(longest):
        if engine.holder[replica, engine.keys[request.first_key + hits]] == 0:
            return hits
    return longest


def grow(engine: Engine, replica: int, request: Request, tokens: int) -> bool:
    """Allocate the additional KV blocks that a request needs for ``tokens`` tokens.

    Return whether enough blocks were free; otherwise no blocks are allocated.
    """
    if tokens <= request.blocks * engine.config.block_tokens:
        return True
    return _take_blocks(engine, replica, request, tokens)


def _take_blocks(engine: Engine, replica: int, request: Request, tokens: int) -> bool:
    blocks, extra = blocks_for(engine, tokens), extra_blocks_for(engine, tokens)
    needed = blocks - request.blocks + max(extra - request.extra_blocks, 0)
    if needed > engine.replicas[replica].free_blocks:
        return False
    while request.blocks < blocks:
        engine.table[replica, request.slot, request.blocks] = take_block(engine, replica)
        request.blocks += 1
    while request.extra_blocks < extra:
        place = engine.config.row - 1 - request.extra_blocks
        engine.table[replica, request.slot, place] = take_block(engine, replica)
        request.extra_blocks += 1
    return True


def fits(engine: Engine, replica: int, r: int, hits: int, tokens: int, reserved: int = 0) -> bool:
    """Return whether enough blocks are free for a waiting request with ``hits`` cached blocks.

    Cached blocks that no request uses also leave the free list, so they count as allocations
    (``SingleTypeKVCacheManager.get_num_blocks_to_allocate``). The last ``reserved`` free blocks
    must stay free.
    """
    request = engine.requests[r]
    needed = max(blocks_for(engine, tokens) - hits - request.blocks, 0)
    needed += max(extra_blocks_for(engine, tokens) - request.extra_blocks, 0)
    needed += idle_hits(engine, replica, request, hits)
    return needed <= engine.replicas[replica].free_blocks - reserved


def idle_hits(engine: Engine, replica: int, request: Request, hits: int) -> int:
    """Return the number of a request's first ``hits`` cached blocks that no other request uses."""
    idle = 0
    for i in range(hits):
        block = engine.holder[replica, engine.keys[request.first_key + i]]
        idle += engine.cache[replica, block].references == 0
    return idle


def admit(engine: Engine, replica: int, r: int, hits: int, tokens: int) -> bool:
    """Allocate KV blocks for ``tokens`` tokens to a request that has none.

    The first ``hits`` blocks come from the prefix cache. Return whether enough blocks were free.
    """
    request, state = engine.requests[r], engine.replicas[replica]
    if state.free_slots == 0 or not fits(engine, replica, r, hits, tokens):
        return False
    state.free_slots -= 1
    request.slot = engine.slot_stack[replica, state.free_slots]
    for i in range(hits):
        block = engine.holder[replica, engine.keys[request.first_key + i]]
        engine.table[replica, request.slot, i] = block
        touch_block(engine, replica, block)
    request.blocks = request.keyed_blocks = hits
    return grow(engine, replica, request, tokens)


def key_blocks(engine: Engine, replica: int, request: Request, tokens: int) -> None:
    """Add a request's full blocks to the prefix cache, as vLLM's ``cache_blocks`` does."""
    config = engine.config
    if tokens >= (request.keyed_blocks + 1) * config.block_tokens and config.prefix_caching:
        _remember_keys(engine, replica, request, tokens // config.block_tokens)


def _remember_keys(engine: Engine, replica: int, request: Request, blocks: int) -> None:
    for i in range(request.keyed_blocks, blocks):
        block = engine.table[replica, request.slot, i]
        remember_key(engine, replica, block, engine.keys[request.first_key + i])
    request.keyed_blocks = blocks


def free_request(engine: Engine, replica: int, r: int) -> None:
    """Free a request's blocks from last to first, so that the tail of a prefix is evicted first.

    If ``uncached_first`` is set, blocks outside the prefix cache, such as a partly filled last
    block, are reused before all other blocks.
    """
    request, state = engine.requests[r], engine.replicas[replica]
    if request.slot >= 0:
        engine.slot_stack[replica, state.free_slots] = request.slot
        state.free_slots += 1
        free_blocks(engine, replica, r)


def free_blocks(engine: Engine, replica: int, r: int) -> None:
    """Free a request's KV blocks, but retain its row in the block table."""
    config, request = engine.config, engine.requests[r]
    if config.uncached_first:
        for i in range(request.keyed_blocks, request.blocks):
            release_block(engine, replica, engine.table[replica, request.slot, i], True)
        request.blocks = request.keyed_blocks
    for i in range(request.blocks - 1, -1, -1):
        release_block(engine, replica, engine.table[replica, request.slot, i], False)
    for i in range(request.extra_blocks - 1, -1, -1):
        place = config.row - 1 - i
        release_block(engine, replica, engine.table[replica, request.slot, place], False)
    request.slot, request.blocks, request.keyed_blocks, request.extra_blocks = -1, 0, 0, 0


def enter(engine: Engine, replica: int, r: int, computed: int) -> None:
    """Move a waiting request to the running list.

    The request's first ``computed`` tokens are already in the KV cache.
    """
    request, state = engine.requests[r], engine.replicas[replica]
    remove(engine, engine.waiting[replica], r)
    if request.scheduled_s < 0:
        request.scheduled_s = state.now_s
        request.cached_tokens = computed
        engine.started[replica, state.new] = r
        state.new += 1
    request.reused_tokens += computed
    request.computed = computed
    request.status = RUNNING
    engine.running[replica, state.running] = r
    state.running += 1


def preempt(engine: Engine, replica: int, r: int) -> None:
    """Preempt a running request: free its blocks and reset its progress.

    The caller puts the request back into the waiting queue.
    """
    request, state = engine.requests[r], engine.replicas[replica]
    free_request(engine, replica, r)
    request.status = PREEMPTED
    request.computed = request.unverified = 0
    request.preemptions += 1
    engine.preempted[replica, state.preempted] = r
    state.preempted += 1


# Contents of a batch: its requests, and the sums from which the features of a step are computed.


def add_to_batch(engine: Engine, replica: int, r: int, tokens: int) -> None:
    """Add a request to the batch under construction and advance its token counts.

    vLLM adds full blocks to the prefix cache before they are computed
    (``KVCacheManager.allocate_slots``), so that requests of one step can share them. SGLang adds
    them after the step.
    """
    config, request, state = engine.config, engine.requests[r], engine.replicas[replica]
    cached, known = request.computed, request.prompt + request.generated
    # After the KV transfer of a prompt, its last token is computed like a decode token.
    prompt_left = cached < request.prompt and request.transferred != ARRIVED
    prefill = tokens > 1 + config.drafts or prompt_left
    request.computed = cached + tokens
    request.worked += tokens
    request.in_flight += 1
    if not config.prefill_first:
        key_blocks(engine, replica, request, min(request.computed, known))
    # A decode computes its next token and verifies all its draft tokens.
    sampled = max(request.computed - known - request.placeholders + 1, 0)
    if sampled > 1:
        request.unverified += sampled - 1
    if config.asynchronous:
        request.placeholders += sampled
    request.is_chunk = sampled == 0
    if sampled > 0:
        request.eligible = state.schedulings + config.stagger
    batch = engine.batches[replica, state.column]
    entry = engine.entries[replica, state.column, batch.size]
    entry.request, entry.sampled = r, sampled
    if config.keeps_batches:
        entry.new, entry.cached, entry.prefill = tokens, cached, prefill
    batch.size += 1
    state.tokens += tokens
    _account(state.sums, tokens, cached, prefill, config.window)
    if prefill:
        state.sums[REACH] += tokens * (request.prompt + tokens / 2)


def _account(sums: np.ndarray, new: int, cached: int, prefill: bool, window: int) -> None:
    """Add one request to the sums over its batch (and to the maximum, ``longest_prefill``).

    Step features are computed from these sums. The sums are the fields of
    ``pinn.physics.batch_sums.BatchSums``, in order.
    """
    if prefill:
        sums[0] += 1
        sums[2] += new
        sums[4] += cached
        sums[5] += new * cached + new * (new + 1) / 2
        sums[7] += min(cached, window)
        sums[8] += _pairs(cached + new, window) - _pairs(cached, window)
        sums[9] = max(sums[9], cached + new)
    else:
        sums[1] += 1
        sums[3] += cached + 1
        sums[6] += min(cached + 1, window)


def _pairs(tokens: int, window: int) -> float:
    """Return the (query, key) pairs of window attention in a prompt's first ``tokens`` tokens.

    The i-th token attends to min(i, ``window``) keys.
    """
    inside = min(tokens, window)
    return inside * (inside + 1) / 2 + (tokens - inside) * inside


def padding_rows(engine: Engine, replica: int) -> float:
    """Return the number of rows that pad a replica's decode batch to the next CUDA graph size.

    Batches with prompts, and batches larger than the largest graph, are not padded.
    """
    sums = engine.replicas[replica].sums
    if sums[0] > 0:
        return 0.0
    decodes = int(sums[1])
    return float(engine.graph_size[decodes] - decodes)


compiled_inside(__name__)
