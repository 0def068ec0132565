"""KV chunks in host memory, and the policies that evict them.

Mirrors ``vllm/v1/kv_offload``: ``lru_manager.py`` and ``arc_manager.py`` (since vLLM 0.11), later
``cpu/manager.py`` and ``cpu/policies``. A chunk is one or more KV blocks that are stored, found and
evicted together. The key of its last block identifies the chunk, since this key covers all tokens
up to the block's end.
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

#: Number of LRU ranks reserved for the chunks of each request.
_PLACES = 1 << 24


def chunk_key(engine: Engine, request: Request, chunk: int) -> int:
    """Return the key of chunk number ``chunk`` of a request."""
    blocks = engine.config.tier_chunk_blocks
    return int(engine.keys[request.first_key + (chunk + 1) * blocks - 1])


def find_chunk(engine: Engine, replica: int, key: int) -> int:
    """Return the index of the stored chunk with a key, or 0 if there is none."""
    place = int(engine.tier_holder[replica, key])
    return place if place > 0 and engine.tier[replica, place].kept <= FREQUENT else 0


# Linked lists of chunks, ordered from least to most recently used.


def link_last(engine: Engine, replica: int, place: int, kept: int) -> None:
    """Append a chunk to the end of the list ``kept``."""
    engine.tier[replica, place].kept = kept
    _link(engine, replica, place, engine.tier[replica, kept].before)


def _link(engine: Engine, replica: int, place: int, before: int) -> None:
    """Link a chunk into its list behind chunk ``before``, or at the start."""
    chunk, after = engine.tier[replica, place], engine.tier[replica, before].after
    chunk.before, chunk.after = before, after
    engine.tier[replica, before].after = place
    engine.tier[replica, after].before = place
    engine.tier[replica, chunk.kept].references += 1


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


# Ranks of chunks for ``LRUCachePolicy``, whose list is ordered by rank, lowest first. A heap is not
# used, because with a million chunks each of its levels would miss the CPU's caches.


def rank_last(engine: Engine, replica: int, place: int) -> None:
    """Give a chunk the highest LRU rank, marking it as most recently used."""
    engine.tier[replica, place].rank = _next_rank(engine.replicas[replica])
    move_last(engine, replica, place, RECENT)


def rank_for(engine: Engine, replica: int, request: Request, chunk: int, place: int) -> None:
    """Set a chunk's LRU rank for the request that uses it, unless a later request has also used it.

    Args:
        engine: State of the engine.
        replica: Index of the replica.
        request: Request that uses the chunk; its first use of any chunk fixes its chunks' ranks.
        chunk: Index of the chunk in the request; later chunks rank lower.
        place: Index of the chunk in the tier, or 0 if the tier does not have the chunk.
    """
    if request.tier_rank == 0:
        request.tier_rank = _next_rank(engine.replicas[replica])
    rank = int(request.tier_rank) + _PLACES - 1 - int(chunk)
    if place == 0 or engine.config.tier_arc or engine.tier[replica, place].rank >= rank:
        return
    engine.tier[replica, place].rank = rank
    unlink(engine, replica, place)
    _link(engine, replica, place, _lower(engine, replica, request, place, rank))
    request.tier_near = place


def _lower(engine: Engine, replica: int, request: Request, place: int, rank: int) -> int:
    """Return the last chunk in the LRU list whose rank is below ``rank``, or the list's end.

    The search begins at the chunk that the request ranked last, unless a later request has ranked
    that chunk again.
    """
    near = int(request.tier_near)
    if near == place or engine.tier[replica, near].rank // _PLACES != rank // _PLACES:
        near = engine.tier[replica, RECENT].before
    while near >= LISTS and engine.tier[replica, near].rank > rank:
        near = engine.tier[replica, near].before
    after = engine.tier[replica, near].after
    while after >= LISTS and engine.tier[replica, after].rank < rank:
        near, after = after, engine.tier[replica, after].after
    return near


def _next_rank(state: Replica) -> int:
    """Return the first rank for a request's chunks; it is above the ranks of all other chunks."""
    state.ranks += 1
    return int(state.ranks) * _PLACES


# Uses, stores and evictions of chunks of the second KV tier.


def touch(engine: Engine, replica: int, request: Request, end: int) -> None:
    """Mark a request's first ``end`` chunks as used, from last to first."""
    for chunk in range(end - 1, -1, -1):
        place = engine.tier_holder[replica, chunk_key(engine, request, chunk)]
        if place > 0:
            touch_chunk(engine, replica, place)


def touch_chunk(engine: Engine, replica: int, place: int) -> None:
    """Mark a chunk as used; the policy ARC moves a reused chunk to its list T2."""
    kept = engine.tier[replica, place].kept
    if kept == RECENT and engine.config.tier_arc and engine.tier[replica, place].references >= 0:
        kept = FREQUENT
    if kept > FREQUENT:
        adapt(engine, replica, place)
    move_last(engine, replica, place, kept)


def adapt(engine: Engine, replica: int, place: int) -> None:
    """Adapt ARC's list sizes after a miss: the list that evicted the chunk is enlarged."""
    state = engine.replicas[replica]
    recent = length(engine, replica, WAS_RECENT)
    frequent = length(engine, replica, WAS_FREQUENT)
    if engine.tier[replica, place].kept == WAS_RECENT:
        state.tier_target += max(1.0, frequent / recent)
        state.tier_target = min(state.tier_target, float(engine.config.tier_chunks))
    else:
        state.tier_target = max(state.tier_target - max(1.0, recent / frequent), 0.0)


def unused_chunks(engine: Engine, replica: int) -> int:
    """Return the number of unused chunks of the second KV tier."""
    held = length(engine, replica, RECENT) + length(engine, replica, FREQUENT)
    return int(engine.config.tier_chunks) - held


def store_chunk(engine: Engine, replica: int, key: int, owner: int) -> int:
    """Reserve an unused chunk for a key, and return its index.

    The chunk becomes readable when its transfer completes.
    """
    place = int(engine.tier_holder[replica, key])
    if place == 0:
        place = int(engine.tier[replica, UNUSED].after)
    unlink(engine, replica, place)
    link_last(engine, replica, place, RECENT)
    chunk = engine.tier[replica, place]
    chunk.key, chunk.references, chunk.owner = key, NOT_READY, owner
    engine.tier_holder[replica, key] = place
    engine.replicas[replica].stored_chunks += 1
    return place


def evict_chunk(engine: Engine, replica: int, place: int) -> None:
    """Evict a chunk; under ARC the chunk becomes a ghost entry of its list."""
    chunk, state = engine.tier[replica, place], engine.replicas[replica]
    state.evicted_chunks += 1
    if not engine.config.tier_arc:
        _forget(engine, replica, place)
        return
    move_last(engine, replica, place, chunk.kept + WAS_RECENT - RECENT)


def trim_ghosts(engine: Engine, replica: int) -> None:
    """Remove ARC's oldest ghost entries until no ghost list is longer than the tier's capacity."""
    if not engine.config.tier_arc:
        return
    for kept in (WAS_RECENT, WAS_FREQUENT):
        while length(engine, replica, kept) > engine.config.tier_chunks:
            _forget(engine, replica, engine.tier[replica, kept].after)


def _forget(engine: Engine, replica: int, place: int) -> None:
    chunk = engine.tier[replica, place]
    engine.tier_holder[replica, chunk.key], chunk.rank = 0, 0
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
    """Return the chunk that the policy (LRU or ARC) evicts next, or 0 if none is evictable."""
    config, state = engine.config, engine.replicas[replica]
    if not config.tier_arc:
        return first_evictable(engine, replica, RECENT)
    place = 0
    if length(engine, replica, RECENT) >= int(state.tier_target):
        place = first_evictable(engine, replica, RECENT)
    if place == 0:
        place = first_evictable(engine, replica, FREQUENT)
    if place == 0 and config.tier == BY_JOB:
        place = first_evictable(engine, replica, RECENT)
    return place


compiled_inside(__name__)
