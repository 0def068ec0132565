"""KV chunks in host memory, and the policies that evict them.

Mirrors ``vllm/v1/kv_offload``: ``lru_manager.py`` and ``arc_manager.py`` (0.11 on), later
``cpu/manager.py`` and ``cpu/policies``. A chunk is one or more blocks. The key of
its last block identifies the chunk, since that key covers all tokens up to the block's end.
"""

from pinn.simulator.compiler import compiled_inside
from pinn.simulator.engine import Engine
from pinn.simulator.state import (
    BY_JOB,
    FREQUENT,
    LISTS,
    RECENT,
    UNUSED,
    WAS_FREQUENT,
    WAS_RECENT,
    Chunk,
    Replica,
    Request,
)

#: Value of a chunk's ``references`` while the chunk is being stored.
NOT_READY = -1

#: Number of ranks that are reserved for the chunks of each request.
_PLACES = 1 << 24


def chunk_key(engine: Engine, request: Request, chunk: int) -> int:
    """Return the key of chunk number ``chunk`` of a request."""
    blocks = engine.config.tier_chunk_blocks
    return int(engine.keys[request.first_key + (chunk + 1) * blocks - 1])


def find_chunk(engine: Engine, replica: int, key: int) -> int:
    """Return the index of the chunk with a key, or 0 if there is none."""
    place = int(engine.tier_holder[replica, key])
    return place if place > 0 and engine.tier[replica, place].kept <= FREQUENT else 0


# Linked lists of chunks, ordered from least to most recently used.


def link_last(engine: Engine, replica: int, place: int, kept: int) -> None:
    """Append a chunk to the list ``kept``."""
    chunk, end = engine.tier[replica, place], engine.tier[replica, kept]
    chunk.kept, chunk.before, chunk.after = kept, end.before, kept
    engine.tier[replica, end.before].after = place
    end.before = place
    end.references += 1


def unlink(engine: Engine, replica: int, place: int) -> None:
    """Remove a chunk from its list."""
    chunk = engine.tier[replica, place]
    engine.tier[replica, chunk.before].after = chunk.after
    engine.tier[replica, chunk.after].before = chunk.before
    engine.tier[replica, chunk.kept].references -= 1


def move_last(engine: Engine, replica: int, place: int, kept: int) -> None:
    """Move a chunk to the end of the list ``kept``."""
    unlink(engine, replica, place)
    link_last(engine, replica, place, kept)


def length(engine: Engine, replica: int, kept: int) -> int:
    """Return the number of chunks in the list ``kept``."""
    return int(engine.tier[replica, kept].references)


# Ranks of chunks for ``LRUCachePolicy``: a heap of evictable chunks, lowest rank first.


def set_rank(engine: Engine, replica: int, place: int, rank: int) -> None:
    """Set the rank of a chunk, whether or not the chunk is evictable now."""
    chunk = engine.tier[replica, place]
    higher = rank > chunk.rank
    chunk.rank = rank
    if chunk.heap < 0:
        return
    if higher:
        _sift_down(engine, replica, chunk.heap)
    else:
        _sift_up(engine, replica, chunk.heap)


def make_evictable(engine: Engine, replica: int, place: int) -> None:
    """Make a chunk evictable, as vLLM's ``mark_evictable`` does."""
    state = engine.replicas[replica]
    if engine.config.tier != BY_JOB or engine.config.tier_arc:
        return
    _put(engine, replica, state.heaped, place)
    state.heaped += 1
    _sift_up(engine, replica, state.heaped - 1)


def make_unevictable(engine: Engine, replica: int, place: int) -> None:
    """Make a chunk non-evictable, as vLLM's ``mark_non_evictable`` does."""
    state, chunk = engine.replicas[replica], engine.tier[replica, place]
    hole = chunk.heap
    if hole < 0:
        return
    chunk.heap = -1
    state.heaped -= 1
    last = engine.tier_heap[replica, state.heaped]
    if last != place:
        _put(engine, replica, hole, last)
        _sift_up(engine, replica, hole)
        _sift_down(engine, replica, engine.tier[replica, last].heap)


def _put(engine: Engine, replica: int, i: int, place: int) -> None:
    engine.tier_heap[replica, i] = place
    engine.tier[replica, place].heap = i


def _rank(engine: Engine, replica: int, i: int) -> int:
    return int(engine.tier[replica, engine.tier_heap[replica, i]].rank)


def _sift_up(engine: Engine, replica: int, i: int) -> None:
    place = engine.tier_heap[replica, i]
    rank = engine.tier[replica, place].rank
    while i > 0 and rank < _rank(engine, replica, (i - 1) // 2):
        _put(engine, replica, i, engine.tier_heap[replica, (i - 1) // 2])
        i = (i - 1) // 2
    _put(engine, replica, i, place)


def _sift_down(engine: Engine, replica: int, i: int) -> None:
    place, size = engine.tier_heap[replica, i], engine.replicas[replica].heaped
    rank, child = engine.tier[replica, place].rank, 2 * i + 1
    while child < size:
        if child + 1 < size and _rank(engine, replica, child + 1) < _rank(engine, replica, child):
            child += 1
        if _rank(engine, replica, child) >= rank:
            break
        _put(engine, replica, i, engine.tier_heap[replica, child])
        i, child = child, 2 * child + 1
    _put(engine, replica, i, place)


def next_rank(state: Replica) -> int:
    """Return a rank above all ranks given so far."""
    state.ranks += 1
    return int(state.ranks) * _PLACES


def request_rank(state: Replica, request: Request, chunk: int) -> int:
    """Return the rank of a chunk that a running request uses; later chunks rank lower."""
    if request.tier_rank == 0:
        request.tier_rank = next_rank(state)
    return int(request.tier_rank) + _PLACES - 1 - int(chunk)


# Uses, stores and evictions of chunks.


def touch(engine: Engine, replica: int, request: Request, end: int) -> None:
    """Mark the chunks of a request before number ``end`` as used, from last to first."""
    for chunk in range(end - 1, -1, -1):
        place = engine.tier_holder[replica, chunk_key(engine, request, chunk)]
        if place > 0:
            touch_chunk(engine, replica, place)


def touch_chunk(engine: Engine, replica: int, place: int) -> None:
    """Mark a chunk as used; ARC moves a reused chunk to its list T2."""
    kept = engine.tier[replica, place].kept
    if kept == RECENT and engine.config.tier_arc and engine.tier[replica, place].references >= 0:
        kept = FREQUENT
    if kept > FREQUENT:
        adapt(engine, replica, place)
    move_last(engine, replica, place, kept)


def adapt(engine: Engine, replica: int, place: int) -> None:
    """Adapt ARC's list sizes after a miss: the list that evicted the chunk gets more room."""
    state = engine.replicas[replica]
    recent = length(engine, replica, WAS_RECENT)
    frequent = length(engine, replica, WAS_FREQUENT)
    if engine.tier[replica, place].kept == WAS_RECENT:
        state.tier_target += max(1.0, frequent / recent)
        state.tier_target = min(state.tier_target, float(engine.config.tier_chunks))
    else:
        state.tier_target = max(state.tier_target - max(1.0, recent / frequent), 0.0)


def unused_chunks(engine: Engine, replica: int) -> int:
    """Return the number of unused chunks of the tier."""
    held = length(engine, replica, RECENT) + length(engine, replica, FREQUENT)
    return int(engine.config.tier_chunks) - held


def store_chunk(engine: Engine, replica: int, key: int, owner: int) -> int:
    """Reserve an unused chunk for a key; the chunk is readable once its transfer has ended."""
    place = int(engine.tier_holder[replica, key])
    if place == 0:
        place = int(engine.tier[replica, UNUSED].after)
    unlink(engine, replica, place)
    link_last(engine, replica, place, RECENT)
    chunk = engine.tier[replica, place]
    chunk.key, chunk.references, chunk.owner, chunk.heap = key, NOT_READY, owner, -1
    engine.tier_holder[replica, key] = place
    engine.replicas[replica].stored_chunks += 1
    return place


def evict_chunk(engine: Engine, replica: int, place: int) -> None:
    """Evict a chunk; under ARC it becomes a ghost entry of its list."""
    chunk, state = engine.tier[replica, place], engine.replicas[replica]
    make_unevictable(engine, replica, place)
    state.evicted_chunks += 1
    if not engine.config.tier_arc:
        _forget(engine, replica, place)
        return
    move_last(engine, replica, place, chunk.kept + WAS_RECENT - RECENT)


def trim_ghosts(engine: Engine, replica: int) -> None:
    """Remove ARC's oldest ghosts until each list has at most as many as the tier has chunks."""
    if not engine.config.tier_arc:
        return
    for kept in (WAS_RECENT, WAS_FREQUENT):
        while length(engine, replica, kept) > engine.config.tier_chunks:
            _forget(engine, replica, engine.tier[replica, kept].after)


def _forget(engine: Engine, replica: int, place: int) -> None:
    engine.tier_holder[replica, engine.tier[replica, place].key] = 0
    move_last(engine, replica, place, UNUSED)


def first_evictable(engine: Engine, replica: int, kept: int) -> int:
    """Return the least recently used evictable chunk of a list, or 0 if there is none."""
    place = engine.tier[replica, kept].after
    while place >= LISTS:
        chunk: Chunk = engine.tier[replica, place]
        if chunk.references == 0 and not chunk.spared:
            return int(place)
        place = chunk.after
    return 0


def chunk_to_evict(engine: Engine, replica: int) -> int:
    """Return the chunk that the policy evicts next, or 0 if none is evictable."""
    config, state = engine.config, engine.replicas[replica]
    if not config.tier_arc:
        if config.tier == BY_JOB:
            return _lowest(engine, replica)
        return first_evictable(engine, replica, RECENT)
    place = 0
    if length(engine, replica, RECENT) >= int(state.tier_target):
        place = first_evictable(engine, replica, RECENT)
    if place == 0:
        place = first_evictable(engine, replica, FREQUENT)
    if place == 0 and config.tier == BY_JOB:
        place = first_evictable(engine, replica, RECENT)
    return place


def _lowest(engine: Engine, replica: int) -> int:
    """Return the evictable chunk of the lowest rank, except chunks that must not be evicted now."""
    state = engine.replicas[replica]
    aside, found = 0, 0
    while found == 0 and state.heaped > 0:
        place = engine.tier_heap[replica, 0]
        if engine.tier[replica, place].spared:
            make_unevictable(engine, replica, place)
            engine.tier_aside[replica, aside] = place
            aside += 1
        else:
            found = int(place)
    for i in range(aside):
        make_evictable(engine, replica, engine.tier_aside[replica, i])
    return found


compiled_inside(__name__)
