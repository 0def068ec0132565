"""SGLang's HiCache: nodes of the radix tree are stored in host memory and loaded back.

Mirrors ``sglang/srt/mem_cache/hiradix_cache.py`` (to 0.5.12), later ``unified_radix_cache.py`` and
``unified_cache/unified_tree_core.py`` (0.5.23), without a storage backend. With write-through, a
node is stored once it has been inserted into the tree often enough. With write-back, a node is
stored when it is evicted from the GPU, and the scheduler waits for the store.
"""

from pinn.simulator import blocks, hicache_link
from pinn.simulator import radix_tree as tree
from pinn.simulator.compiler import compiled_inside
from pinn.simulator.engine import Engine
from pinn.simulator.radix_tree import GPU, HOST, ROOT
from pinn.simulator.state import DONE, LOAD, MOVING, STORE

#: Minimum length, in tokens, of a hit in host memory for it to be loaded (``load_back_threshold``).
#: Shorter hits are recomputed.
LEAST_LOADED = 10

# Storing nodes of the radix tree in host memory.


def _writes_back(engine: Engine) -> bool:
    return bool(engine.config.tier_hits == 0)


def hit(engine: Engine, replica: int, r: int, n: int, ready_s: float) -> None:
    """Count an insertion of node ``n``; after ``tier_hits`` insertions store it in host memory."""
    config, node = engine.config, engine.nodes[replica, n]
    if _writes_back(engine):
        return
    node.hits += 1
    if node.on_host or node.hits < config.tier_hits:
        return
    if not config.tier_unified:
        if _stored_up_to(engine, replica, node.parent):
            _store(engine, replica, r, n, True)
            hicache_link.begin(engine, replica, STORE, ready_s)
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
    """Plan to store a node in host memory (``write_backup``); return whether there is room."""
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
    hicache_link.plan(engine, replica, r, STORE, n, node.blocks)
    if locks:
        tree.lock(engine, replica, n)
    return True


def _drop_host(engine: Engine, replica: int, n: int) -> int:
    state, node = engine.replicas[replica], engine.nodes[replica, n]
    node.on_host = 0
    state.host_free += node.blocks
    state.evicted_chunks += node.blocks
    return int(node.blocks)


def _evict_host(engine: Engine, replica: int, wanted: int) -> None:
    """Evict nodes with ``wanted`` blocks from host memory (``evict_host``), if possible.

    With write-back in ``UnifiedRadixCache``, host copies of nodes on the GPU are evicted first.
    """
    dropped = 0
    if _writes_back(engine) and engine.config.tier_unified:
        dropped = _drop_doubles(engine, replica, wanted)
    while dropped < wanted:
        n = tree.least_used(engine, replica, HOST)
        if n == 0:
            return
        dropped += _drop_host(engine, replica, n)
        tree.delete_node(engine, replica, n)


def _drop_doubles(engine: Engine, replica: int, wanted: int) -> int:
    """Drop host copies of nodes that are also on the GPU; return the number of freed blocks."""
    dropped = 0
    for spares in range(1, -1, -1):
        n = engine.replicas[replica].doubles
        while n > 0 and dropped < wanted:
            node = engine.nodes[replica, n]
            after = node.double_after
            if not (node.on_gpu and node.on_host):
                tree.forget_double(engine, replica, n)
            elif not ((spares and node.place[GPU] >= 0) or node.loading > 0 or node.held > 0):
                dropped += _drop_host(engine, replica, n)
                tree.forget_double(engine, replica, n)
            n = after
    return dropped


# Evicting nodes of the radix tree from the GPU.


def make_room(engine: Engine, replica: int, wanted: int) -> None:
    """Evict nodes from the GPU until ``wanted`` KV blocks are unused or no node is evictable."""
    state = engine.replicas[replica]
    if state.unused >= wanted:
        return
    stored, aside, evicted = 0, 0, 0
    while state.unused < wanted if engine.config.tier_unified else evicted < wanted:
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
    """Store a node in host memory; evict the node from the GPU when the store completes."""
    if engine.config.tier_unified:
        _wait_for_stores(engine, replica)
        tree.note_double(engine, replica, n)
    else:
        hicache_link.begin(engine, replica, STORE, engine.replicas[replica].heard_s)
        # The host copy must not be evicted before the store has completed.
        engine.nodes[replica, n].held = 1
    tree.leave_gpu(engine, replica, n)


def _wait_for_stores(engine: Engine, replica: int) -> None:
    """Wait until all stores to host memory complete (``writing_check(write_back=True)``)."""
    state = engine.replicas[replica]
    hicache_link.begin(engine, replica, STORE, state.heard_s)
    for number in range(state.jobs_first, state.jobs_made):
        job = blocks.job_of(engine, replica, number)
        if job.progress == MOVING and job.kind == STORE:
            state.heard_s = max(state.heard_s, job.end_s)
            job.progress = DONE


def _drop_subtree(engine: Engine, replica: int, n: int) -> bool:
    """Drop node ``n`` and its descendants because host memory is full (``drop_subtree_no_host``).

    Return whether they were dropped; nodes that are locked or being transferred prevent this.
    """
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


# Loading nodes back into GPU memory.


def load_back(engine: Engine, replica: int, r: int) -> int:
    """Load the blocks of the last prefix match that are only in host memory (``load_back``).

    Return the number of loaded blocks: all of them, or 0 if there are too few or they do not fit.
    """
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
    hicache_link.plan(engine, replica, r, LOAD, best, size)
    state.matched = best
    return size


def _hold_path(engine: Engine, replica: int, n: int, last: int, change: int) -> None:
    """Protect nodes' host copies from eviction (``change`` 1), or remove the protection (-1).

    The nodes are on the path from node ``n`` up to its ancestor ``last``, which is not included.
    """
    while n != last:
        engine.nodes[replica, n].held += change
        tree.note_leaf(engine, replica, n)
        n = engine.nodes[replica, n].parent


def _come_down(engine: Engine, replica: int, n: int, last: int) -> None:
    while n != last:
        tree.come_to_gpu(engine, replica, n)
        n = engine.nodes[replica, n].parent


compiled_inside(__name__)
