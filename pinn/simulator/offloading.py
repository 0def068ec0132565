"""Second tier of the KV cache, in host memory: stores, lookups and loads.

Mirrors the scheduler side and the worker side of vLLM's OffloadingConnector
(``vllm/distributed/kv_transfer/kv_connector/v1/offloading_connector.py``, later
``v1/offloading/scheduler.py`` and ``worker.py``). In early releases, stored blocks are readable
once their request has ended, and the request keeps its GPU blocks until the store completes
(``BY_REQUEST``). In later releases each transfer is a job, and only the reuse of a block waits for
the job that still reads the block (``BY_JOB``).

``pinn.simulator.host_link`` models the transfers. A chunk is a number of consecutive blocks of a
request that the tier stores, finds and evicts together.
"""

import numpy as np

from pinn.simulator import blocks, host_link, tiers
from pinn.simulator.compiler import compiled_inside
from pinn.simulator.engine import Engine
from pinn.simulator.state import (
    BY_JOB,
    BY_REQUEST,
    BY_STEP,
    FREQUENT,
    LOAD,
    LOADING,
    STORE,
    TIMED_OUT,
    Request,
)
from pinn.simulator.tiers import NOT_READY

#: Bit flags for what a request did with a chunk: use, insert, reuse, or miss.
_USED, _INSERTED, _REUSED, _MISSED = 1, 2, 4, 8


def known_tokens(request: Request) -> int:
    """Return a request's number of known tokens: its prompt and its generated tokens."""
    return request.prompt + request.generated


def chunk_tokens(engine: Engine) -> int:
    """Return the number of tokens of one chunk."""
    return int(engine.config.tier_chunk_blocks * engine.config.block_tokens)


# Lookups in the second tier, and loads from it.


def hit_tokens(engine: Engine, replica: int, r: int, computed: int) -> int:
    """Return how many tokens after the ``computed`` ones to load from the second tier.

    Return -1 to repeat the lookup later, because chunks are still being stored or loaded.
    """
    config, request = engine.config, engine.requests[r]
    if config.tier == BY_STEP:
        return _prompt_hit(engine, replica, request, computed)
    tokens = chunk_tokens(engine)
    chunks, first = known_tokens(request) // tokens, computed // tokens
    if config.tier == BY_REQUEST:
        tiers.touch(engine, replica, request, chunks)
    else:
        request.tier_chunks = request.tier_blocks = 0
        if request.tier_jobs > 0:
            return -1
    if chunks * tokens - computed < tokens:
        return 0
    end, pending, loading = first, False, False
    while end < chunks:
        place = tiers.find_chunk(engine, replica, tiers.chunk_key(engine, request, end))
        references = engine.tier[replica, place].references if place > 0 else NOT_READY
        if place == 0 or (references == NOT_READY and config.tier == BY_REQUEST):
            break
        pending |= references == NOT_READY
        loading |= references > 0
        end += 1
    if pending:
        return -1
    if end * tokens - computed < tokens:
        return 0
    return -1 if loading and config.prefix_caching else end * tokens - computed


def _prompt_hit(engine: Engine, replica: int, request: Request, computed: int) -> int:
    """Return the number of tokens to load from a prompt's leading stored chunks (LMCache).

    Sources: ``LMCacheConnectorV1Impl.get_num_new_matched_tokens`` (vllm 0.15.1,
    ``v1/lmcache_integration/vllm_v1_adapter.py``), and ``LocalCPUBackend.touch_cache`` of lmcache
    0.5.6.
    """
    tokens, end = chunk_tokens(engine), 0
    while end < request.prompt // tokens:
        place = tiers.find_chunk(engine, replica, tiers.chunk_key(engine, request, end))
        if place == 0 or engine.tier[replica, place].references == NOT_READY:
            break
        end += 1
    tiers.touch(engine, replica, request, end)
    request.tier_chunks = end
    hit = end * tokens
    return max(hit - (hit == known_tokens(request)) - computed, 0)


def load_in_step(engine: Engine, replica: int, r: int, computed: int, hit: int) -> None:
    """Plan a load of whole chunks, which the request's first step waits for (LMCache)."""
    request, tokens = engine.requests[r], chunk_tokens(engine)
    first = computed // tokens
    end = -(-(computed + hit) // tokens)
    _hold(engine, replica, request, first, end)
    if request.scheduled_s == engine.replicas[replica].now_s:
        request.loaded_tokens = hit
    size = engine.config.tier_chunk_blocks
    host_link.add_job(engine, replica, r, LOAD, first, end, (end - first) * size)


def _hold(engine: Engine, replica: int, request: Request, first: int, end: int) -> None:
    """Protect chunks from eviction while they are being loaded."""
    for i in range(first, end):
        place = tiers.find_chunk(engine, replica, tiers.chunk_key(engine, request, i))
        if engine.tier[replica, place].references == 0:
            engine.replicas[replica].idle_chunks -= 1
        engine.tier[replica, place].references += 1
        _use(engine, replica, request, i, _REUSED)


def begin_load(engine: Engine, replica: int, r: int, computed: int, hit: int) -> None:
    """Begin to load the chunks of a hit, which stay in the tier until the load completes."""
    request, tokens = engine.requests[r], chunk_tokens(engine)
    first, end = computed // tokens, (computed + hit) // tokens
    _hold(engine, replica, request, first, end)
    request.arriving, request.tier_chunks = computed + hit, end
    request.loading_s, request.ready_s = engine.replicas[replica].now_s, np.inf
    if request.scheduled_s < 0:
        request.loaded_tokens = hit
    request.status = LOADING
    host_link.add_job(engine, replica, r, LOAD, first, end, hit // engine.config.block_tokens)


def finish_load(engine: Engine, replica: int, r: int) -> None:
    """Complete a request's KV load; at least one token of the request is left to compute."""
    request = engine.requests[r]
    request.computed = min(request.arriving, known_tokens(request) - 1)
    whole = engine.config.tier == BY_JOB
    blocks.key_blocks(engine, replica, request, request.arriving if whole else request.computed)


def reserved_blocks(engine: Engine, replica: int) -> int:
    """Return how many more KV blocks are needed by prompts that are being loaded or prefilled."""
    needed = 0
    for i in range(engine.replicas[replica].running):
        needed += _missing_blocks(engine, engine.running[replica, i])
    r = engine.waiting[replica].head
    while r >= 0 and engine.requests[r].slot >= 0:
        needed += _missing_blocks(engine, r)
        r = engine.requests[r].after
    return needed


def _missing_blocks(engine: Engine, r: int) -> int:
    request = engine.requests[r]
    if request.prefilling == 0:
        return 0
    return max(blocks.blocks_for(engine, known_tokens(request)) - request.blocks, 0)


# Stores into the second tier.


def plan(engine: Engine, replica: int) -> None:
    """Plan the stores of the scheduled batch into the second tier, as the connector does."""
    state = engine.replicas[replica]
    state.steps_planned += state.tokens > 0
    if engine.config.tier == BY_REQUEST:
        _plan_by_request(engine, replica)
    elif engine.config.tier == BY_STEP:
        _plan_by_step(engine, replica)
    else:
        _plan_by_job(engine, replica)
    state.gone = 0


def _plan_by_request(engine: Engine, replica: int) -> None:
    """Plan stores for newly started requests, then for all others (early vLLM releases).

    Chunks that preempted requests have stored become readable.
    """
    state, batch = (
        engine.replicas[replica],
        engine.batches[replica, engine.replicas[replica].column],
    )
    for i in range(state.new):
        r = engine.started[replica, i]
        engine.requests[r].tier_turn = state.schedulings
        _store(engine, replica, r, engine.requests[r].computed)
    for i in range(batch.size):
        r = engine.entries[replica, state.column, i].request
        if engine.requests[r].tier_turn != state.schedulings:
            _store(engine, replica, r, engine.requests[r].computed)
    for i in range(state.preempted):
        r = engine.preempted[replica, i]
        if engine.requests[r].tier_jobs > 0:
            state.flushes += 1
        host_link.complete(engine, replica, engine.requests[r], r, 0, engine.requests[r].tier_end)


def _plan_by_step(engine: Engine, replica: int) -> None:
    """Plan stores of whole prompt chunks; decodes store nothing by default (LMCache)."""
    state = engine.replicas[replica]
    for i in range(engine.batches[replica, state.column].size):
        r = engine.entries[replica, state.column, i].request
        if engine.requests[r].computed <= engine.requests[r].prompt:
            _store(engine, replica, r, engine.requests[r].computed)


def _plan_by_job(engine: Engine, replica: int) -> None:
    """Plan stores as jobs; the next batch waits for jobs that read a preempted request's blocks."""
    state, batch = (
        engine.replicas[replica],
        engine.batches[replica, engine.replicas[replica].column],
    )
    for i in range(state.preempted):
        r = engine.preempted[replica, i]
        if engine.requests[r].tier_jobs > 0:
            for number in range(state.jobs_first, state.jobs_made):
                if blocks.job_of(engine, replica, number).request == r:
                    blocks.flush(engine, replica, number)
    for i in range(batch.size):
        entry = engine.entries[replica, state.column, i]
        request = engine.requests[entry.request]
        request.tier_blocks = request.blocks
        request.prefilling = request.prefilling * (entry.sampled == 0)
        _store(engine, replica, entry.request, request.computed)
    for i in range(state.gone):
        r = engine.gone[replica, i]
        request = engine.requests[r]
        after = request.computed
        if request.status != TIMED_OUT:
            after = max(request.prompt, known_tokens(request) - 1)
        _store(engine, replica, r, after)
        _commit_uses(engine, replica, request)
        if request.tier_row >= 0 and request.tier_frees == 0:
            host_link.return_slot(engine, replica, request.tier_row)


def _store(engine: Engine, replica: int, r: int, after: int) -> None:
    """Plan a store of the whole chunks that a request has not stored yet, if there is room.

    ``after`` is the number of the request's computed tokens after the batch.
    """
    config, request, tokens = engine.config, engine.requests[r], chunk_tokens(engine)
    known = known_tokens(request)
    keyed = min(after, known) // tokens
    end = after // tokens if config.tier_skips_unknown else keyed
    if config.tier == BY_JOB:
        most = min(after, request.prompt) if config.tier_prompt_only else after
        keyed = min(
            most // tokens, known // tokens, request.tier_blocks // config.tier_chunk_blocks
        )
        end = keyed
    first = request.tier_chunks
    if end <= first:
        return
    owner = engine.replicas[replica].jobs_made if config.tier == BY_JOB else r
    stored = _reserve(engine, replica, request, first, keyed, owner)
    if stored < 0:
        engine.replicas[replica].full_stores += 1
        return
    request.tier_chunks = end
    if stored > 0:
        request.stored_tokens += stored * tokens
        if config.tier == BY_REQUEST:
            tiers.touch(engine, replica, request, keyed)
            request.tier_end = max(request.tier_end, keyed)
            request.tier_stores = 1
        host_link.add_job(
            engine, replica, r, STORE, first, keyed, stored * config.tier_chunk_blocks
        )
        host_link.fence_ended(engine, replica, r)


def _reserve(
    engine: Engine, replica: int, request: Request, first: int, end: int, owner: int
) -> int:
    """Reserve room for a request's chunks ``first`` to ``end`` - 1 (``prepare_store``).

    Return the number of chunks that must be stored; -1 if too few other chunks can be evicted.
    """
    state, by_job = engine.replicas[replica], engine.config.tier == BY_JOB
    missing, spared = 0, 0
    for i in range(first, end):
        place = tiers.find_chunk(engine, replica, tiers.chunk_key(engine, request, i))
        if place == 0:
            engine.tier_missing[replica, missing] = i
            missing += 1
        elif by_job:
            engine.tier[replica, place].spared = 1
            spared += engine.tier[replica, place].references == 0
    if by_job:
        _note_offer(engine, replica, request, first, end, missing)
    found = 0
    if missing > 0:
        evicted = missing - tiers.unused_chunks(engine, replica)
        found = -1 if evicted > state.idle_chunks - spared else missing
        for _ in range(evicted if found > 0 else 0):
            tiers.evict_chunk(engine, replica, tiers.chunk_to_evict(engine, replica))
            state.idle_chunks -= 1
        if evicted > 0 and found > 0:
            tiers.trim_ghosts(engine, replica)
    if by_job:
        for i in range(first, end):
            place = tiers.find_chunk(engine, replica, tiers.chunk_key(engine, request, i))
            if place > 0:
                engine.tier[replica, place].spared = 0
    for m in range(found):
        i = engine.tier_missing[replica, m]
        place = tiers.store_chunk(engine, replica, tiers.chunk_key(engine, request, i), owner)
        if by_job:
            tiers.rank_for(engine, replica, request, i, place)
            engine.tier_seen[request.first_seen + i] |= _INSERTED
    return found


def _note_offer(
    engine: Engine, replica: int, request: Request, first: int, end: int, missing: int
) -> None:
    """Mark the chunks that a request offers for storing as used.

    Chunks that are still being stored are not marked.
    """
    for m in range(missing - 1, -1, -1):
        i = engine.tier_missing[replica, m]
        place = engine.tier_holder[replica, tiers.chunk_key(engine, request, i)]
        if engine.tier_seen[request.first_seen + i] & _MISSED == 0 and place > 0:
            tiers.touch_chunk(engine, replica, place)
        engine.tier_seen[request.first_seen + i] |= _MISSED
    for i in range(first, end):
        place = tiers.find_chunk(engine, replica, tiers.chunk_key(engine, request, i))
        if place == 0:
            _use(engine, replica, request, i, 0)
        elif engine.tier[replica, place].references >= 0:
            _use(engine, replica, request, i, _REUSED)


def _use(engine: Engine, replica: int, request: Request, chunk: int, how: int) -> None:
    """Record how a request uses a chunk; the request's first use makes the chunk recently used."""
    if engine.config.tier != BY_JOB:
        return
    seen = engine.tier_seen[request.first_seen + chunk]
    if seen & _USED == 0:
        place = tiers.find_chunk(engine, replica, tiers.chunk_key(engine, request, chunk))
        tiers.rank_for(engine, replica, request, chunk, place)
    if how == _REUSED and seen & _INSERTED > 0:
        how = 0
    engine.tier_seen[request.first_seen + chunk] = seen | _USED | how


def _commit_uses(engine: Engine, replica: int, request: Request) -> None:
    """Mark the chunks that an ended request used as most recently used.

    Its first chunk is marked last, and is therefore evicted last.
    """
    arc = engine.config.tier_arc
    for i in range(known_tokens(request) // chunk_tokens(engine) - 1, -1, -1):
        seen = engine.tier_seen[request.first_seen + i]
        place = tiers.find_chunk(engine, replica, tiers.chunk_key(engine, request, i))
        if seen & _USED == 0 or place == 0:
            continue
        if not arc:
            tiers.rank_last(engine, replica, place)
        elif seen & _REUSED > 0:
            tiers.move_last(engine, replica, place, FREQUENT)
        elif seen & _INSERTED > 0:
            tiers.move_last(engine, replica, place, engine.tier[replica, place].kept)


def note_row(engine: Engine, replica: int, r: int) -> None:
    """Record that an admitted request uses its KV blocks, and whether its prompt is incomplete."""
    request = engine.requests[r]
    request.prefilling = request.status == LOADING or request.computed < known_tokens(request)
    for i in range(request.blocks):
        blocks.note_block(engine, replica, engine.table[replica, request.slot, i])


compiled_inside(__name__)
