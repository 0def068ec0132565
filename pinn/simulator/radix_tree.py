"""SGLang's radix tree: nodes of KV blocks on the GPU and in host memory, and their users.

Mirrors ``sglang/srt/mem_cache/radix_cache.py`` and ``hiradix_cache.py`` (to 0.5.12), later
``unified_cache/unified_tree_core.py`` and ``components/full.py`` (0.5.23), for full attention. The
key of a child's first block identifies the child; a key covers all tokens up to its block's end.
Free blocks are unused blocks and blocks of unlocked nodes.
"""

from pinn.simulator.compiler import compiled_inside
from pinn.simulator.engine import Engine
from pinn.simulator.state import Node, Request

#: Index of the root node; and indices of the heaps of evictable leaves on the GPU and in host
#: memory.
ROOT = 1
GPU, HOST = range(2)

# Heaps of evictable leaf nodes, least recently used first.


def _at(engine: Engine, replica: int, heap: int, i: int) -> int:
    return int(engine.node_heaps[replica, heap * engine.config.n_nodes + i])


def _put(engine: Engine, replica: int, heap: int, i: int, n: int) -> None:
    engine.node_heaps[replica, heap * engine.config.n_nodes + i] = n
    engine.nodes[replica, n].place[heap] = i


def _sift_up(engine: Engine, replica: int, heap: int, i: int) -> None:
    n = _at(engine, replica, heap, i)
    used = engine.nodes[replica, n].used
    while i > 0:
        above = _at(engine, replica, heap, (i - 1) // 2)
        if engine.nodes[replica, above].used <= used:
            break
        _put(engine, replica, heap, i, above)
        i = (i - 1) // 2
    _put(engine, replica, heap, i, n)


def _sift_down(engine: Engine, replica: int, heap: int, i: int) -> None:
    n, size = _at(engine, replica, heap, i), engine.replicas[replica].leaves[heap]
    used, child = engine.nodes[replica, n].used, 2 * i + 1
    while child < size:
        below = _at(engine, replica, heap, child)
        if child + 1 < size:
            other = _at(engine, replica, heap, child + 1)
            if engine.nodes[replica, other].used < engine.nodes[replica, below].used:
                child, below = child + 1, other
        if engine.nodes[replica, below].used >= used:
            break
        _put(engine, replica, heap, i, below)
        i, child = child, 2 * child + 1
    _put(engine, replica, heap, i, n)


def least_used(engine: Engine, replica: int, heap: int) -> int:
    """Return the least recently used evictable leaf of a heap, or 0 if the heap is empty."""
    return _at(engine, replica, heap, 0) if engine.replicas[replica].leaves[heap] > 0 else 0


def set_leaf(engine: Engine, replica: int, heap: int, n: int, leaf: bool) -> None:
    """Add node ``n`` to a heap of evictable leaves, or remove the node from the heap."""
    state, i = engine.replicas[replica], engine.nodes[replica, n].place[heap]
    if leaf == (i >= 0):
        return
    if leaf:
        _put(engine, replica, heap, state.leaves[heap], n)
        state.leaves[heap] += 1
        _sift_up(engine, replica, heap, state.leaves[heap] - 1)
        return
    engine.nodes[replica, n].place[heap] = -1
    state.leaves[heap] -= 1
    last = _at(engine, replica, heap, state.leaves[heap])
    if last != n:
        _put(engine, replica, heap, i, last)
        _sift_up(engine, replica, heap, i)
        _sift_down(engine, replica, heap, engine.nodes[replica, last].place[heap])


def note_leaf(engine: Engine, replica: int, n: int) -> None:
    """Update whether node ``n`` can be evicted from the GPU or from host memory."""
    node = engine.nodes[replica, n]
    free = n != ROOT and node.locks == 0
    set_leaf(engine, replica, GPU, n, free and node.on_gpu > 0 and node.gpu_children == 0)
    only_host = node.on_host > 0 and node.on_gpu == 0 and node.held == 0
    set_leaf(engine, replica, HOST, n, free and only_host and node.children == 0)


def touch(engine: Engine, replica: int, n: int) -> None:
    """Mark a node of the radix tree as most recently used."""
    state, node = engine.replicas[replica], engine.nodes[replica, n]
    state.ticks += 1
    node.used = state.ticks
    for heap in range(2):
        if node.place[heap] >= 0:
            _sift_down(engine, replica, heap, node.place[heap])


# Links between parent and child nodes.


def _key(engine: Engine, node: Node) -> int:
    return int(engine.keys[node.first])


def _adopt(engine: Engine, replica: int, parent: int, n: int) -> None:
    """Make node ``n`` the first child of node ``parent``."""
    node, above = engine.nodes[replica, n], engine.nodes[replica, parent]
    node.parent, node.before, node.after = parent, 0, above.child
    engine.nodes[replica, above.child].before = n
    above.child = n
    above.children += 1
    above.gpu_children += node.on_gpu
    engine.tier_holder[replica, _key(engine, node)] = n


def _part(engine: Engine, replica: int, n: int) -> None:
    node = engine.nodes[replica, n]
    above = engine.nodes[replica, node.parent]
    if node.before > 0:
        engine.nodes[replica, node.before].after = node.after
    else:
        above.child = node.after
    engine.nodes[replica, node.after].before = node.before
    above.children -= 1
    above.gpu_children -= node.on_gpu
    engine.tier_holder[replica, _key(engine, node)] = 0


def new_node(engine: Engine, replica: int, parent: int, first: int, blocks: int) -> int:
    """Create a node that is neither on the GPU nor in host memory yet, and return its index."""
    state = engine.replicas[replica]
    state.free_nodes -= 1
    n = int(engine.node_stack[replica, state.free_nodes])
    node = engine.nodes[replica, n]
    node.first, node.blocks, node.child, node.children, node.gpu_children = first, blocks, 0, 0, 0
    node.locks = node.hits = node.on_gpu = node.on_host = node.held = node.listed = 0
    node.loading = 0
    node.place[0] = node.place[1] = -1
    _adopt(engine, replica, parent, n)
    touch(engine, replica, n)
    return n


def delete_node(engine: Engine, replica: int, n: int) -> None:
    """Delete a leaf node from the tree."""
    state, parent = engine.replicas[replica], engine.nodes[replica, n].parent
    set_leaf(engine, replica, GPU, n, False)
    set_leaf(engine, replica, HOST, n, False)
    forget_double(engine, replica, n)
    _part(engine, replica, n)
    engine.node_stack[replica, state.free_nodes] = n
    state.free_nodes += 1
    note_leaf(engine, replica, parent)


def split(engine: Engine, replica: int, n: int, blocks: int) -> int:
    """Move a node's first blocks to a new parent, and return the parent (``_split_node``)."""
    rest = engine.nodes[replica, n]
    parent, first = rest.parent, rest.first
    _part(engine, replica, n)
    touch(engine, replica, n)
    rest.first, rest.blocks = first + blocks, rest.blocks - blocks
    top = new_node(engine, replica, parent, first, blocks)
    above = engine.nodes[replica, top]
    above.locks, above.hits, above.held = rest.locks, rest.hits, rest.held
    above.on_gpu, above.on_host, above.loading = rest.on_gpu, rest.on_host, rest.loading
    engine.nodes[replica, parent].gpu_children += above.on_gpu
    _adopt(engine, replica, top, n)
    note_leaf(engine, replica, top)
    note_leaf(engine, replica, n)
    note_double(engine, replica, top)
    return top


def equal_blocks(engine: Engine, node: Node, place: int, blocks: int) -> int:
    """Return how many leading blocks of a node match the block keys from index ``place`` on.

    The first block is known to match. A key covers all tokens up to its block's end, so bisection
    finds the last block that matches.
    """
    equal, other = 1, int(min(blocks, node.blocks)) + 1
    if place == node.first:
        return other - 1
    while equal < other - 1:
        middle = (equal + other) // 2
        if engine.keys[place + middle - 1] == engine.keys[node.first + middle - 1]:
            equal = middle
        else:
            other = middle
    return equal


def child_at(engine: Engine, replica: int, place: int) -> int:
    """Return the node whose first block has the block key at index ``place``, or 0 if none has."""
    return int(engine.tier_holder[replica, engine.keys[place]])


# Presence of nodes on the GPU and in host memory, and locks on nodes.


def _count_free(engine: Engine, replica: int, blocks: int) -> None:
    state = engine.replicas[replica]
    state.evictable += blocks
    state.free_blocks += blocks


def come_to_gpu(engine: Engine, replica: int, n: int) -> None:
    """Mark a node's blocks as on the GPU, after an insertion or a load."""
    node = engine.nodes[replica, n]
    node.on_gpu = 1
    engine.nodes[replica, node.parent].gpu_children += 1
    if node.locks == 0:
        _count_free(engine, replica, node.blocks)
    note_leaf(engine, replica, n)
    note_leaf(engine, replica, node.parent)


def leave_gpu(engine: Engine, replica: int, n: int) -> None:
    """Drop the blocks of an unlocked node from the GPU."""
    node, state = engine.nodes[replica, n], engine.replicas[replica]
    node.on_gpu = 0
    engine.nodes[replica, node.parent].gpu_children -= 1
    state.evictable -= node.blocks
    state.unused += node.blocks
    note_leaf(engine, replica, n)
    note_leaf(engine, replica, node.parent)


def lock(engine: Engine, replica: int, n: int) -> None:
    """Lock a node and all its ancestors against eviction (``inc_lock_ref``)."""
    while n != ROOT:
        node = engine.nodes[replica, n]
        if node.locks == 0 and node.on_gpu > 0:
            _count_free(engine, replica, -node.blocks)
        node.locks += 1
        note_leaf(engine, replica, n)
        n = node.parent


def unlock(engine: Engine, replica: int, n: int) -> None:
    """Unlock a node and all its ancestors (``dec_lock_ref``)."""
    while n != ROOT:
        node = engine.nodes[replica, n]
        node.locks -= 1
        if node.locks == 0 and node.on_gpu > 0:
            _count_free(engine, replica, node.blocks)
        note_leaf(engine, replica, n)
        n = node.parent


def idle_blocks(engine: Engine, replica: int, n: int) -> int:
    """Return the number of blocks of unlocked nodes on the path from the root to node ``n``."""
    idle = 0
    while n != ROOT:
        node = engine.nodes[replica, n]
        idle += node.blocks * (node.locks == 0)
        n = node.parent
    return idle


# Nodes present both on the GPU and in host memory, in order of discovery
# (``full_host_duplicates``).


def note_double(engine: Engine, replica: int, n: int) -> None:
    """Add a node to the list of nodes on both GPU and host, or remove it (write-back only)."""
    config, node, state = engine.config, engine.nodes[replica, n], engine.replicas[replica]
    if config.tier_hits > 0 or not config.tier_unified:
        return
    if not (node.on_gpu and node.on_host) or node.loading > 0:
        forget_double(engine, replica, n)
        return
    if node.listed:
        return
    node.listed, node.double_before, node.double_after = 1, state.last_double, 0
    if state.last_double > 0:
        engine.nodes[replica, state.last_double].double_after = n
    else:
        state.doubles = n
    state.last_double = n


def forget_double(engine: Engine, replica: int, n: int) -> None:
    """Remove a node from the list of nodes that are on the GPU and in host memory."""
    node, state = engine.nodes[replica, n], engine.replicas[replica]
    if not node.listed:
        return
    node.listed = 0
    if node.double_before > 0:
        engine.nodes[replica, node.double_before].double_after = node.double_after
    else:
        state.doubles = node.double_after
    if node.double_after > 0:
        engine.nodes[replica, node.double_after].double_before = node.double_before
    else:
        state.last_double = node.double_before


# Prefix lookups in the radix tree.


def match(engine: Engine, replica: int, request: Request, blocks: int) -> int:
    """Return the number of a request's first blocks that are cached on the GPU (``match_prefix``).

    The function also sets the replica's fields ``matched``, ``best`` and ``host_hits``.
    """
    state, place, end = engine.replicas[replica], request.first_key, request.first_key + blocks
    state.matched = state.best = ROOT
    state.host_hits, hits = 0, 0
    while place < end:
        n = child_at(engine, replica, place)
        if n == 0:
            break
        node = engine.nodes[replica, n]
        equal = equal_blocks(engine, node, place, end - place)
        whole = equal == node.blocks
        if not whole:
            n = split(engine, replica, n, equal)
            node = engine.nodes[replica, n]
        touch(engine, replica, n)
        state.best = n
        if node.on_gpu:
            state.matched = n
            hits += equal
        else:
            state.host_hits += equal
        place += equal
        if not whole:
            break
    return hits


compiled_inside(__name__)
