"""SGLang's HiCache: nodes of the radix tree that are stored in host memory, and loaded back.

Mirrors ``sglang/srt/mem_cache/hiradix_cache.py`` and ``managers/cache_controller.py`` (to 0.5.12),
later ``mem_cache/unified_radix_cache.py`` (0.5.23), without a storage backend. Written through, a
node is stored as soon as it has been put into the tree often enough; written back, when it is
evicted from the GPU, which the scheduler waits for. Stores and loads have a stream of their own
each, so that the link carries both at once. A batch of prompts begins beside its loads: each layer
waits for its own part of them.
"""

import numpy as np

from pinn.simulator import radix_tree as tree
from pinn.simulator.compiler import compiled_inside
from pinn.simulator.engine import Engine
from pinn.simulator.radix_tree import GPU, HOST, ROOT
from pinn.simulator.state import (
    DONE,
    FINISHED,
    LOAD,
    MOVING,
    PLANNED,
    RUNNING,
    STORE,
    Job,
    Request,
)

#: ``load_back_threshold``, in tokens: shorter hits in host memory are computed again.
LEAST_LOADED = 10

# Transfers: a job stores a node, or loads all nodes up to one.


def _job(engine: Engine, replica: int, number: int) -> Job:
    return engine.jobs[replica, number % engine.config.n_jobs]


def _plan(engine: Engine, replica: int, r: int, kind: int, n: int, size: int) -> None:
    state = engine.replicas[replica]
    job = _job(engine, replica, state.jobs_made)
    job.request, job.kind, job.first, job.blocks = r, kind, n, size
    job.progress, job.end_s = PLANNED, np.inf
    state.jobs_made += 1
    state.planned += 1
    state.loads += kind == LOAD


def _begin(engine: Engine, replica: int, kind: int, ready_s: float) -> float:
    """Begin all planned transfers of a kind as one; how long it takes."""
    state = engine.replicas[replica]
    size, r = 0, -1
    for number in range(_first_planned(engine, replica), state.jobs_made):
        job = _job(engine, replica, number)
        if job.progress == PLANNED and job.kind == kind:
            size, r = size + job.blocks, job.request
    if size == 0:
        return 0.0
    seconds = engine.config.host_latency_s + size * engine.config.host_block_s
    start = max(ready_s, state.load_free_s if kind == LOAD else state.link_free_s)
    if kind == LOAD:
        state.load_free_s, state.load_start_s = start + seconds, start
    else:
        state.link_free_s = start + seconds
    for number in range(_first_planned(engine, replica), state.jobs_made):
        job = _job(engine, replica, number)
        if job.progress == PLANNED and job.kind == kind:
            job.progress, job.end_s = MOVING, start + seconds
            state.planned -= 1
    row = engine.transfers[engine.counters.n_transfers]
    row.request, row.replica, row.kind, row.blocks = r, replica, kind, size
    row.planned_s, row.start_s, row.end_s = ready_s, start, start + seconds
    engine.counters.n_transfers += 1
    return float(seconds)


def _first_planned(engine: Engine, replica: int) -> int:
    """The oldest transfer that has not begun."""
    state = engine.replicas[replica]
    number, left = state.jobs_made, state.planned
    while left > 0:
        number -= 1
        left -= _job(engine, replica, number).progress == PLANNED
    return int(number)


def _hear(engine: Engine, replica: int) -> None:
    """``writing_check`` and ``loading_check``: what has been moved is locked no longer.

    Each stream is in order, so its first transfer that has not ended ends the search.
    """
    state, loads = engine.replicas[replica], True
    stores = True
    for number in range(state.jobs_first, state.jobs_made):
        if not (stores or (loads and state.loads > 0)):
            break
        job = _job(engine, replica, number)
        if job.progress != MOVING:
            continue
        if job.end_s > state.heard_s:
            stores, loads = stores and job.kind == LOAD, loads and job.kind == STORE
            continue
        job.progress = DONE
        tree.unlock(engine, replica, job.first)
        if job.kind == LOAD:
            state.loads -= 1
            _finish_load(engine, replica, job.first, number + 1)
    while state.jobs_first < state.jobs_made:
        if _job(engine, replica, state.jobs_first).progress != DONE:
            break
        state.jobs_first += 1


def _finish_load(engine: Engine, replica: int, n: int, number: int) -> None:
    while n != ROOT:
        node = engine.nodes[replica, n]
        if node.loading == number:
            node.loading = 0
            tree.note_double(engine, replica, n)
        n = node.parent


# Stores.


def _writes_back(engine: Engine) -> bool:
    return bool(engine.config.tier_hits == 0)


def _hit(engine: Engine, replica: int, r: int, n: int, ready_s: float) -> None:
    """``_inc_hit_count``: a node that was put into the tree often enough is stored."""
    config, node = engine.config, engine.nodes[replica, n]
    if _writes_back(engine):
        return
    node.hits += 1
    if node.on_host or node.hits < config.tier_hits:
        return
    if not config.tier_unified:
        if _stored_up_to(engine, replica, node.parent):
            _store(engine, replica, r, n, True)
            _begin(engine, replica, STORE, ready_s)
        return
    while not _stored_up_to(engine, replica, n):
        top = n
        while not _stored_up_to(engine, replica, engine.nodes[replica, top].parent):
            top = engine.nodes[replica, top].parent
        if not _store(engine, replica, r, top, True):
            return


def _stored_up_to(engine: Engine, replica: int, n: int) -> bool:
    return n == ROOT or bool(engine.nodes[replica, n].on_host)


def _store(engine: Engine, replica: int, r: int, n: int, locks: bool) -> bool:
    """``write_backup``: plan to store a node, if the tier has or gets room for it."""
    config, state, node = engine.config, engine.replicas[replica], engine.nodes[replica, n]
    missing = node.blocks - state.host_free
    if missing > 0:
        _evict_host(engine, replica, missing if config.tier_unified else node.blocks)
    if node.blocks > state.host_free or state.jobs_made - state.jobs_first >= config.n_jobs:
        state.full_stores += 1
        return False
    state.host_free -= node.blocks
    state.stored_chunks += node.blocks
    node.on_host = 1
    if r >= 0:
        engine.requests[r].stored_tokens += node.blocks * config.block_tokens
    _plan(engine, replica, r, STORE, n, node.blocks)
    if locks:
        tree.lock(engine, replica, n)
    return True


def _drop_host(engine: Engine, replica: int, n: int) -> int:
    state, node = engine.replicas[replica], engine.nodes[replica, n]
    node.on_host = 0
    state.host_free += node.blocks
    state.evicted_chunks += node.blocks
    return int(node.blocks)


def _evict_host(engine: Engine, replica: int, blocks: int) -> None:
    """``evict_host``: copies of what is on the GPU too, where it writes back, then leaves."""
    dropped = 0
    if _writes_back(engine) and engine.config.tier_unified:
        dropped = _drop_doubles(engine, replica, blocks)
    while dropped < blocks:
        n = tree.least_used(engine, replica, HOST)
        if n == 0:
            return
        dropped += _drop_host(engine, replica, n)
        tree.delete_node(engine, replica, n)


def _drop_doubles(engine: Engine, replica: int, blocks: int) -> int:
    """``_reclaim_full_host_duplicates``: first of nodes that are not about to leave the GPU."""
    dropped = 0
    for spares in range(1, -1, -1):
        n = engine.replicas[replica].doubles
        while n > 0 and dropped < blocks:
            node = engine.nodes[replica, n]
            after = node.double_after
            if not (node.on_gpu and node.on_host):
                tree.forget_double(engine, replica, n)
            elif not ((spares and node.place[GPU] >= 0) or node.loading > 0 or node.held > 0):
                dropped += _drop_host(engine, replica, n)
                tree.forget_double(engine, replica, n)
            n = after
    return dropped


# Evictions from the GPU.


def make_room(engine: Engine, replica: int, blocks: int) -> None:
    """``evict_from_tree_cache``: at least so many blocks hold nothing, if that can be."""
    state = engine.replicas[replica]
    if state.unused >= blocks:
        return
    stored, aside, evicted = 0, 0, 0
    while state.unused < blocks if engine.config.tier_unified else evicted < blocks:
        n = tree.least_used(engine, replica, GPU)
        if n == 0:
            break
        node = engine.nodes[replica, n]
        size = int(node.blocks)
        if node.on_host:
            tree.leave_gpu(engine, replica, n)
        elif not _writes_back(engine):
            tree.leave_gpu(engine, replica, n)
            tree.delete_node(engine, replica, n)
        elif _store(engine, replica, -1, n, False):
            _write_back(engine, replica, n)
            if not engine.config.tier_unified:
                engine.node_list[replica, stored] = n
                stored += 1
        elif not _drop_subtree(engine, replica, n):
            tree.set_leaf(engine, replica, GPU, n, False)
            aside += 1
            engine.node_list[replica, engine.config.n_nodes - aside] = n
            size = 0
        evicted += size
    if stored > 0:
        _wait_for_stores(engine, replica)
    for i in range(stored):
        n = engine.node_list[replica, i]
        engine.nodes[replica, n].held = 0
        tree.note_leaf(engine, replica, n)
    for i in range(1, aside + 1):
        tree.note_leaf(engine, replica, engine.node_list[replica, engine.config.n_nodes - i])


def _write_back(engine: Engine, replica: int, n: int) -> None:
    """A node leaves the GPU when it is stored; at first all of an eviction were together."""
    if engine.config.tier_unified:
        _wait_for_stores(engine, replica)
        tree.note_double(engine, replica, n)
    else:
        _begin(engine, replica, STORE, engine.replicas[replica].heard_s)
        engine.nodes[replica, n].held = 1  # its copy cannot go before the wait is over
    tree.leave_gpu(engine, replica, n)


def _wait_for_stores(engine: Engine, replica: int) -> None:
    """``writing_check(write_back=True)``: the scheduler goes on when all is stored."""
    state = engine.replicas[replica]
    _begin(engine, replica, STORE, state.heard_s)
    for number in range(state.jobs_first, state.jobs_made):
        job = _job(engine, replica, number)
        if job.progress == MOVING and job.kind == STORE:
            state.heard_s = max(state.heard_s, job.end_s)
            job.progress = DONE


def _drop_subtree(engine: Engine, replica: int, n: int) -> bool:
    """``drop_subtree_no_host``: where host memory is full, a node goes with all below it."""
    if not engine.config.tier_unified:
        return False
    size = 1
    engine.node_list[replica, 0] = n
    i = 0
    while i < size:
        node = engine.nodes[replica, engine.node_list[replica, i]]
        if node.locks > 0 or node.held > 0 or node.loading > 0:
            return False
        child = node.child
        while child > 0:
            engine.node_list[replica, size] = child
            size += 1
            child = engine.nodes[replica, child].after
        i += 1
    for i in range(size - 1, 0, -1):
        _drop_host(engine, replica, engine.node_list[replica, i])
        tree.delete_node(engine, replica, engine.node_list[replica, i])
    tree.leave_gpu(engine, replica, n)
    tree.delete_node(engine, replica, n)
    return True


# Loads.


def load_back(engine: Engine, replica: int, r: int) -> int:
    """``load_back`` of the last match: its blocks in host memory get places, all or none."""
    state, n = engine.replicas[replica], engine.replicas[replica].best
    size = int(state.host_hits)
    if size * engine.config.block_tokens < LEAST_LOADED:
        return 0
    if state.jobs_made - state.jobs_first >= engine.config.n_jobs:
        return 0
    best, last = n, state.matched
    _hold_path(engine, replica, best, last, 1)
    tree.lock(engine, replica, last)
    make_room(engine, replica, size)
    enough = state.unused >= size
    tree.unlock(engine, replica, last)
    _hold_path(engine, replica, best, last, -1)
    if not enough:
        return 0
    state.unused -= size
    state.free_blocks -= size
    while n != last:
        node = engine.nodes[replica, n]
        if _writes_back(engine):
            node.loading = state.jobs_made + 1
        n = node.parent
    _come_down(engine, replica, best, last)
    tree.lock(engine, replica, best)
    _plan(engine, replica, r, LOAD, best, size)
    state.matched = best
    return size


def _hold_path(engine: Engine, replica: int, n: int, last: int, change: int) -> None:
    """Copies that are about to be loaded are not evicted from host memory."""
    while n != last:
        engine.nodes[replica, n].held += change
        tree.note_leaf(engine, replica, n)
        n = engine.nodes[replica, n].parent


def _come_down(engine: Engine, replica: int, n: int, last: int) -> None:
    while n != last:
        tree.come_to_gpu(engine, replica, n)
        n = engine.nodes[replica, n].parent


# Requests: admitted, grown, put into the tree, gone.


def take(engine: Engine, replica: int, r: int, hits: int, tokens: int) -> bool:
    """A waiting request gets its match and blocks for so many tokens; whether there are enough."""
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
    """Give a request blocks for so many tokens: all it needs, or nothing."""
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
    """``alloc_for_extend`` or ``alloc_for_decode``: what a batch's requests get is taken at once.

    With pages of several tokens room is made for a page for each request, beside those of prompts.
    """
    state = engine.replicas[replica]
    room = state.wanted
    if engine.config.block_tokens > 1:
        room = state.wanting + state.wanted * prompts
    make_room(engine, replica, room)
    state.unused -= state.wanted
    state.wanted = state.wanting = 0


def begin_loads(engine: Engine, replica: int) -> None:
    """``ready_to_load_host_cache``: a batch's loads begin beside whatever runs."""
    state = engine.replicas[replica]
    state.load_s = _begin(engine, replica, LOAD, state.heard_s)


def put(engine: Engine, replica: int, r: int, blocks: int, chunked: bool, ready_s: float) -> None:
    """``insert``: a request's first blocks are in the tree, and it is locked up to there."""
    request = engine.requests[r]
    last, overlap = _walk(engine, replica, r, blocks, chunked, ready_s)
    kept = int(request.keyed_blocks)
    _free(engine, replica, request, max(overlap - kept, 0))
    # The prompt gets a node of its own, so that the output can go without it.
    full = request.prompt // engine.config.block_tokens
    if engine.config.tier_unified and 0 < full < blocks:
        request.inserted = blocks
        _walk(engine, replica, r, full, True, ready_s)
    tree.lock(engine, replica, last)
    tree.unlock(engine, replica, request.node)
    request.node = last
    request.keyed_blocks = blocks
    request.inserted = max(request.inserted, blocks)


def _free(engine: Engine, replica: int, request: Request, blocks: int) -> None:
    """Blocks of a request that hold nothing any more."""
    state = engine.replicas[replica]
    state.unused += blocks
    state.free_blocks += blocks


def _walk(
    engine: Engine, replica: int, r: int, blocks: int, chunked: bool, ready_s: float
) -> tuple[int, int]:
    """Put blocks into the tree: (the last one's node, how many were on the GPU already)."""
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
            _hit(engine, replica, r, n, ready_s)
        last = n
    return last, overlap


def leave(engine: Engine, replica: int, r: int) -> None:
    """A request's blocks outside the tree are free, and its place in the tree is unlocked."""
    request, state = engine.requests[r], engine.replicas[replica]
    if request.slot < 0:
        return
    engine.slot_stack[replica, state.free_slots] = request.slot
    state.free_slots += 1
    state.held_blocks -= request.blocks
    _free(engine, replica, request, request.blocks - request.keyed_blocks)
    tree.unlock(engine, replica, request.node)
    request.slot, request.node = -1, ROOT
    request.blocks = request.keyed_blocks = request.inserted = 0


def hear(engine: Engine, replica: int) -> None:
    """What has become of the batches that have ended, and of transfers: begin of a scheduling."""
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
    _begin(engine, replica, STORE, done_s if state.gone > 0 else state.now_s)
    state.gone = 0
    state.heard_s, state.load_s = max(state.heard_s, state.now_s), 0.0
    _hear(engine, replica)


def put_chunk(engine: Engine, replica: int, r: int) -> None:
    """``stash_chunked_request``: what is computed of a prompt is in the tree."""
    blocks = engine.requests[r].computed // engine.config.block_tokens
    put(engine, replica, r, blocks, True, engine.replicas[replica].now_s)


compiled_inside(__name__)
