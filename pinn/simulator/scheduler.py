"""Scheduler of a replica: chooses the requests and tokens of its next batch.

Prompts and decodes share a step. The module mirrors ``vllm/v1/core/sched/scheduler.py: Scheduler.
schedule`` with the first-come-first-served policy, and ``AsyncScheduler._update_after_schedule``.
``pinn.engines.recipe`` lists the differences between releases. TensorRT-LLM's
``MicroBatchScheduler`` differs in four ways: a chunk is a multiple of its block size, a request is
admitted with room for its whole output (``GUARANTEED_NO_EVICT``), decode-only steps are padded to a
CUDA graph size, and new prompts may wait for others. Under speculative decoding every decode
verifies the maximum number of draft tokens. Ignored: LoRA, encoder inputs and structured output.
"""

from pinn.simulator import blocks, offloading
from pinn.simulator.client import group_of
from pinn.simulator.compiler import compiled_inside
from pinn.simulator.engine import Engine
from pinn.simulator.hooks import schedule_apart_if
from pinn.simulator.latency_model import LatencyModel
from pinn.simulator.lockstep import holds_prompts, note_prompts
from pinn.simulator.state import (
    ARRIVED,
    BY_JOB,
    BY_STEP,
    DECODES,
    LOADING,
    PADDING,
    REREAD,
    WAITING,
    Replica,
    Request,
)


def schedule(latency: LatencyModel, engine: Engine, replica: int, prompts_wait: bool) -> int:
    """Fill a replica's next batch, update its requests, and return the batch's token count."""
    config, state = engine.config, engine.replicas[replica]
    state.new = state.preempted = state.tokens = 0
    group = engine.groups[group_of(engine, replica)]
    state.now_s = group.now_s
    state.column = (group.oldest + group.in_flight) % config.depth
    state.schedulings += 1
    alone = state.running + engine.waiting[replica].size <= 1
    state.longest_chunk = config.long_prefill if config.cuts_lone_prompts or not alone else 0
    engine.batches[replica, state.column].size = 0
    sums = state.sums
    for i in range(len(sums)):
        sums[i] = 0.0
    state.prompts_wait, state.paced = prompts_wait, holds_prompts(engine, replica)
    if config.prefill_first:
        schedule_apart_if(latency, engine, replica)
    else:
        _schedule_running(engine, replica)
        if state.preempted == 0 and not prompts_wait:
            _schedule_waiting(engine, replica)
        note_prompts(engine, replica)
        if config.tier > 0:
            offloading.plan(engine, replica)
    sums[REREAD] = _reread_tokens(engine, replica, sums[1], sums[3])
    sums[PADDING] = blocks.padding_rows(engine, replica)
    return state.tokens


def _reread_tokens(engine: Engine, replica: int, decodes: float, context: float) -> float:
    """Return the decodes' context tokens that the L2 cache serves because requests share prefixes.

    Attention kernels process one head at a time, so the keys of one head of all requests have to
    fit in the L2 cache. The cache saves only memory reads, not arithmetic.
    """
    config, state = engine.config, engine.replicas[replica]
    used = config.blocks - state.free_blocks
    if decodes < 2 or state.held_blocks <= used:
        return 0.0
    shared = (state.held_blocks - used) * config.block_tokens * min(decodes / state.running, 1.0)
    shared = min(shared, context - decodes)
    reread = shared * min(config.gpu_cache_tokens / (context - shared), 1.0)
    return min(reread, config.most_reread * context)


def _schedule_running(engine: Engine, replica: int) -> None:
    """Schedule running requests in order, and preempt the last ones if there are too few blocks."""
    budget, state = engine.config.token_budget, engine.replicas[replica]
    i = 0
    while i < state.running and state.tokens < budget:
        r = engine.running[replica, i]
        request = engine.requests[r]
        tokens = _cut(engine, _running_tokens(engine, state, request), budget - state.tokens)
        if tokens <= 0:
            i += 1
            continue
        slots = _slots(engine, request.computed + tokens)
        while not blocks.grow(engine, replica, request, slots):
            last = engine.running[replica, state.running - 1]
            if engine.config.defers_frees and engine.requests[last].in_flight > 0:
                return  # blocks freed now are not available in this step
            state.running -= 1
            _preempt(engine, replica, last)
            if last == r:
                return
        state.has_chunks |= request.is_chunk
        blocks.add_to_batch(engine, replica, r, tokens)
        i += 1


def _slots(engine: Engine, tokens: int) -> int:
    """Return the number of a request's tokens that need KV blocks, with future draft tokens."""
    config = engine.config
    return max(min(tokens + config.lookahead, config.max_model_len), tokens)


def _cut(engine: Engine, wanted: int, budget: int) -> int:
    """Return how many of a request's ``wanted`` tokens the step's token budget allows.

    A chunk other than the prompt's last is rounded down to a multiple of ``chunk_multiple``.
    """
    if wanted <= budget:
        return wanted
    return budget - budget % engine.config.chunk_multiple


def _running_tokens(engine: Engine, state: Replica, request: Request) -> int:
    """Return the number of tokens to schedule for a running request; 0 if it has to wait.

    With asynchronous scheduling a request is no longer scheduled once the tokens in flight complete
    its output. Under pipeline parallelism a request is in one batch at a time, or in one of every
    ``stagger`` consecutive batches.
    """
    config = engine.config
    if state.schedulings < request.eligible:
        return 0
    if request.placeholders > 0 and (
        config.one_batch
        or request.computed + 2 - request.placeholders >= request.prompt + request.output
    ):
        return 0
    tokens = request.prompt + request.generated + request.placeholders - request.computed
    if state.paced and request.is_chunk:
        return 0
    if tokens == 1 and request.computed >= request.prompt:
        tokens += config.drafts
    if 0 < state.longest_chunk < tokens:
        tokens = state.longest_chunk
    return min(tokens, config.max_model_len - 1 - request.computed)


def _preempt(engine: Engine, replica: int, r: int) -> None:
    """Preempt a request: free all its blocks and put it at the head of the queue."""
    blocks.preempt(engine, replica, r)
    if engine.config.awaits_preempted:
        request = engine.requests[r]
        request.stale, request.placeholders = request.in_flight, 0
    blocks.prepend(engine, engine.waiting[replica], r)
    if engine.config.tier == BY_JOB:
        blocks.move_after_holders(engine, engine.waiting[replica], r)


def _schedule_waiting(engine: Engine, replica: int) -> None:
    """Schedule waiting requests in order until one does not fit; skip those still loading."""
    config, state = engine.config, engine.replicas[replica]
    r = engine.waiting[replica].head
    while r >= 0 and state.tokens < config.token_budget and state.running < config.max_seqs:
        request = engine.requests[r]
        after = request.after
        if request.stale > 0 or (request.status == LOADING and request.ready_s > state.now_s):
            r = after
            continue
        if request.status == LOADING:
            _finish_loading(engine, replica, r)
        enough = _start(engine, replica, r)
        if request.status == LOADING and request.ready_s <= state.now_s:  # the load took no time
            _finish_loading(engine, replica, r)
            enough = _start(engine, replica, r)
        if not enough:
            return
        r = after


def _start(engine: Engine, replica: int, r: int) -> bool:
    """Schedule a waiting request, or start its KV load first; return whether it fits."""
    config, request, state = engine.config, engine.requests[r], engine.replicas[replica]
    hits = blocks.cached_blocks(engine, replica, r) if request.computed == 0 else 0
    computed = max(request.computed, hits * config.block_tokens)
    loaded = 0
    if config.tier > 0 and request.computed == 0:
        loaded = offloading.hit_tokens(engine, replica, r, computed)
        if loaded < 0:
            return True  # skip this request and try the next
        if loaded > 0 and config.tier != BY_STEP:
            return _load_chunks(engine, replica, r, hits, loaded)
        computed += loaded
    if request.transferred > computed:
        return _load(engine, replica, r, hits)
    tokens = request.prompt + request.generated - computed
    several = tokens > 1
    if state.paced and several:
        return False
    if 0 < state.longest_chunk < tokens:
        tokens = state.longest_chunk
    budget = config.token_budget - state.tokens
    if tokens > budget:
        tokens = _cut(engine, tokens, budget) if config.chunked_prefill else 0
    if tokens <= 0:
        return False
    held = computed + tokens
    if config.reserves:
        held = request.prompt + request.output + 2 * config.drafts
    room = max(held, request.prompt + request.generated) if config.whole_prompts else held
    if not blocks.fits(engine, replica, r, hits, room):
        return False
    if request.slot >= 0:
        enough = blocks.grow(engine, replica, request, held)
    else:
        enough = blocks.admit(engine, replica, r, hits, held)
    if enough:
        state.has_chunks |= several
        blocks.enter(engine, replica, r, computed)
        blocks.add_to_batch(engine, replica, r, tokens)
        if config.tier == BY_JOB:
            offloading.note_row(engine, replica, r)
        if loaded > 0:
            offloading.load_in_step(engine, replica, r, hits * config.block_tokens, loaded)
    return enough


def _load_chunks(engine: Engine, replica: int, r: int, hits: int, loaded: int) -> bool:
    """Start loading a waiting request's chunks from a second tier if enough blocks are free.

    KV blocks are allocated to the request now; it runs once its chunks are loaded.
    """
    config, request = engine.config, engine.requests[r]
    known, held = request.prompt + request.generated, hits * config.block_tokens + loaded
    if config.whole_prompts and not blocks.fits(engine, replica, r, hits, known):
        return False
    reserved = offloading.reserved_blocks(engine, replica) if config.tier == BY_JOB else 0
    if not blocks.fits(engine, replica, r, hits, held, reserved):
        return False
    if not blocks.admit(engine, replica, r, hits, held):
        return False
    offloading.begin_load(engine, replica, r, hits * config.block_tokens, loaded)
    if config.tier == BY_JOB:
        offloading.note_row(engine, replica, r)
        blocks.move_after_holders(engine, engine.waiting[replica], r)
    return True


def _load(engine: Engine, replica: int, r: int, hits: int) -> bool:
    """Start to load a request's keys and values over the network, one transfer at a time.

    As with ``load_kv_async`` of a vLLM KV connector, the request is allocated its blocks now and
    stays in the queue as WAITING_FOR_REMOTE_KVS. The request runs later.
    """
    config, request, state = engine.config, engine.requests[r], engine.replicas[replica]
    room = request.transferred
    if config.whole_prompts:
        room = max(room, request.prompt + request.generated)
    if not blocks.fits(engine, replica, r, hits, room) or not blocks.admit(
        engine, replica, r, hits, request.transferred
    ):
        return False
    missing = request.transferred - hits * config.block_tokens
    start = max(state.now_s, state.transfer_free_s)
    if config.role == DECODES:
        start = max(start, engine.source_free_s[request.source])
        engine.source_free_s[request.source] = start + missing * config.source_token_s
    state.transfer_free_s = start + missing * config.transfer_token_s
    slower = max(config.transfer_token_s, config.source_token_s)
    request.moved, request.loading_s = missing, state.now_s
    request.ready_s = start + missing * slower + config.transfer_latency_s
    request.status = LOADING
    return True


def _finish_loading(engine: Engine, replica: int, r: int) -> None:
    """Complete a request's KV load; at least one token of the request is left to compute."""
    request = engine.requests[r]
    if engine.config.tier > 0:
        request.status = WAITING
        offloading.finish_load(engine, replica, r)
        return
    computed = min(request.transferred, request.prompt + request.generated - 1)
    request.computed, request.transferred = computed, ARRIVED
    request.status = WAITING
    blocks.key_blocks(engine, replica, request, computed)


compiled_inside(__name__)
