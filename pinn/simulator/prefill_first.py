"""Prefill-only and decode-only steps, as SGLang schedules them.

Mirrors ``sglang/srt/managers/scheduler.py: get_next_batch_to_run`` and ``schedule_policy.py:
PrefillAdder`` of 0.5.9, and of 0.5.23 if ``foresees_ends`` is set, with the first-come-first-served
policy: waiting prompts run first and decodes wait; if no prompt fits, all running requests decode.
Not modeled: mixed chunks, priorities, LoRA and sliding-window pools. Outputs always have their full
length, as with ``ignore_eos``. A prefix that two requests compute at the same time is stored twice
until they finish.
"""

from pinn.simulator import blocks, hicache, radix_requests, radix_tree
from pinn.simulator.client import group_of
from pinn.simulator.compiler import compiled_inside
from pinn.simulator.engine import Engine
from pinn.simulator.state import BY_NODE, RUNNING, Guess, Records, Request

# Decode steps of engines that schedule prompts separately, and retraction of requests under KV
# memory pressure.
#
# Mirrors ``sglang/srt/managers/scheduler.py: update_running_batch`` and ``schedule_batch.py:
# retract_decode`` of 0.5.9, and of 0.5.23 if ``foresees_ends`` is set.

#: SGLang's constants for the expected share of an output: minimum relative to the initial share
#: (``SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR``), number of steps over which it decreases
#: (``_DECAY_STEPS``), and number of decode steps assumed at a retraction
#: (``SGLANG_RETRACT_DECODE_STEPS``).
LEAST_EXPECTED, DECAY_STEPS, RETRACT_STEPS = 0.14, 600, 20


def schedule_decodes(engine: Engine, replica: int) -> None:
    """Schedule every running request for a decode; retract requests if KV memory runs out."""
    config, state = engine.config, engine.replicas[replica]
    if state.unfiltered > 0:
        state.full = state.unfiltered = 0
    ending = 0
    for i in range(state.running):
        ending += _ends_in_flight(engine, engine.running[replica, i])
    if ending > 0 or state.running == 0:
        state.full = 0
    if state.running == ending:
        return
    needed = _decode_blocks(engine, replica)
    if config.tier == BY_NODE:
        hicache.make_room(engine, replica, needed)
    if needed > state.free_blocks:
        if ending > 0:
            return  # requests that end in flight free their blocks when their step ends
        _retract(engine, replica)
    else:
        least = config.admission_share * LEAST_EXPECTED
        decay = (config.admission_share - least) / DECAY_STEPS
        state.expected = max(state.expected - decay, least)
    tokens = 1 + config.drafts
    for i in range(state.running):
        r = engine.running[replica, i]
        if not _ends_in_flight(engine, r):
            _grow(engine, replica, engine.requests[r], tokens)
            blocks.add_to_batch(engine, replica, r, tokens)


def _grow(engine: Engine, replica: int, request: Request, tokens: int) -> None:
    """Allocate the blocks that a request needs for ``tokens`` additional tokens."""
    if engine.config.tier == BY_NODE:
        radix_requests.grow(engine, replica, request, request.computed + tokens)
    else:
        blocks.grow(engine, replica, request, request.computed + tokens)


def _ends_in_flight(engine: Engine, r: int) -> bool:
    """Return whether a queued step generates a request's last token (SGLang 0.5.22 and later)."""
    config, request = engine.config, engine.requests[r]
    # With draft tokens, the number of generated tokens is unknown until the step has ended.
    known = config.foresees_ends > 0 and config.asynchronous > 0 and config.drafts == 0
    return known and request.generated + request.placeholders >= request.output


def _decode_blocks(engine: Engine, replica: int) -> int:
    """Return the number of free KV blocks that the next decode step needs.

    Mirrors SGLang's ``new_tokens_required_next_decode``.
    """
    state = engine.replicas[replica]
    needed = 0
    for i in range(state.running):
        r = engine.running[replica, i]
        request = engine.requests[r]
        if not _ends_in_flight(engine, r):
            whole = blocks.blocks_for(engine, request.computed + 1 + engine.config.drafts)
            needed += max(whole - request.blocks, 0)
    return needed


def _retract(engine: Engine, replica: int) -> None:
    """Retract running requests until KV memory suffices for the next decode step.

    Requests with the fewest generated tokens are retracted first; among equals, those with the
    longest prompts. At least one request keeps running. Retracted requests go to the end of the
    queue and restart.
    """
    state = engine.replicas[replica]
    while state.running > 1 and (
        state.preempted == 0 or _decode_blocks(engine, replica) > state.free_blocks
    ):
        chosen = 0
        for i in range(1, state.running):
            request = engine.requests[engine.running[replica, i]]
            least = engine.requests[engine.running[replica, chosen]]
            if request.generated < least.generated or (
                request.generated == least.generated and request.prompt >= least.prompt
            ):
                chosen = i
        r = engine.running[replica, chosen]
        for i in range(chosen, state.running - 1):
            engine.running[replica, i] = engine.running[replica, i + 1]
        state.running -= 1
        # Mirrors SGLang's ``release_req`` and ``_add_request_to_queue``.
        if engine.config.tier == BY_NODE:
            radix_requests.leave(engine, replica, r)
            steps = state.running * RETRACT_STEPS
            hicache.make_room(engine, replica, blocks.blocks_for(engine, steps))
        blocks.preempt(engine, replica, r)
        blocks.append(engine, engine.waiting[replica], r)
    written = outputs = 0
    for i in range(state.running):
        request = engine.requests[engine.running[replica, i]]
        written += request.generated + RETRACT_STEPS
        outputs += request.output
    state.expected = min(written / (outputs + 1), 1.0)
    state.full = 0


#: Weights of a step with prompts and of a decode step in the count towards the next poll of the
#: request queue (``environ.py``: ``SGLANG_SCHEDULER_RECV_SKIPPER_WEIGHT_DEFAULT`` and ``_DECODE``).
PROMPTS_WEIGHT, DECODES_WEIGHT = 1000, 1
#: Maximum number of output tokens that admission expects per request
#: (``SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION``).
MOST_EXPECTED_TOKENS = 4096
#: Number of tokens kept free per request (``IGNORE_EOS_RESERVE_TOKENS``).
SPARE_TOKENS = 1

_ADDED, _NO_ROOM, _STOPPED = range(3)


def schedule_apart(engine: Engine, replica: int) -> None:
    """Fill a batch with prompts or, if none can start, with all decodes."""
    state, tree = engine.replicas[replica], engine.config.tier == BY_NODE
    if tree:
        radix_requests.hear(engine, replica)
    _take_stock(engine, replica)
    _schedule_prompts(engine, replica)
    if tree:
        radix_requests.begin_loads(engine, replica)
    state.last_prompts = state.tokens > 0
    if state.tokens == 0:
        schedule_decodes(engine, replica)
        idle = engine.groups[group_of(engine, replica)].in_flight == 0
        if state.tokens == 0 and state.running == 0 and idle:
            # If the last requests have just ended, SGLang's loop runs one more iteration.
            _schedule_prompts(engine, replica)
            state.last_prompts = state.tokens > 0
    if tree:
        radix_requests.allocate(engine, replica, state.last_prompts)
    engine.batches[replica, state.column].prompts = state.last_prompts
    if state.tokens > 0:
        state.polls += PROMPTS_WEIGHT if state.last_prompts else DECODES_WEIGHT


def _take_stock(engine: Engine, replica: int) -> None:
    """Update the running requests after the last batch, as ``get_next_batch_to_run`` does.

    Finished requests keep their slots until the next decode step, except requests that finish in
    their prefill step.
    """
    config, state = engine.config, engine.replicas[replica]
    if state.ended > 0 and (
        config.foresees_ends or (state.last_prompts and not config.asynchronous)
    ):  # SGLang 0.5.22 and later remove finished requests in every iteration.
        state.full = 0
    else:
        state.unfiltered += state.ended
    state.ended = 0
    if state.last_prompts and state.alone:
        state.full = 0  # the prefill batch replaces the empty running_batch and is not full
    if state.chunked >= 0:
        request = engine.requests[state.chunked]
        if request.status == RUNNING:
            if config.tier == BY_NODE:
                radix_requests.put_chunk(engine, replica, state.chunked)
            else:
                blocks.key_blocks(engine, replica, request, request.computed)
            state.full = 0
        else:
            state.chunked = -1


def _schedule_prompts(engine: Engine, replica: int) -> None:
    """Schedule prompts: first the partly computed prompt, then waiting prompts in order."""
    config, state = engine.config, engine.replicas[replica]
    others = state.running - (state.chunked >= 0)
    if config.foresees_ends and others == 0:
        state.full = 0
    none_starts = state.full > 0 or engine.waiting[replica].size == 0 or state.prompts_wait > 0
    if state.chunked < 0 and none_starts:
        return
    places = config.max_seqs - others - state.unfiltered
    state.alone = places == config.max_seqs
    if places <= 0 and (state.chunked >= 0) != (config.foresees_ends > 0):
        state.full = 1
        return
    expected = _expected_tokens(engine, replica)
    left = config.token_budget if config.chunked_prefill else 1 << 60
    prompts_left, taken, guesses = config.prompt_budget, 0, 0
    if state.chunked >= 0:
        tokens, expected = _go_on(engine, replica, left, expected)
        left, prompts_left, taken = left - tokens, prompts_left - tokens, 1
    r = engine.waiting[replica].head if state.prompts_wait == 0 else -1
    while r >= 0:
        after = engine.requests[r].after
        spent = prompts_left <= 0 or left <= 0
        if config.foresees_ends and spent and _free_tokens(engine, replica) > expected:
            return
        if taken >= places:
            state.full = 1
            return
        if not config.prefix_caching:
            guesses = _guess(engine, replica, r, guesses)
        result, tokens, promised = _start(
            engine, replica, r, left, prompts_left, taken, guesses, expected
        )
        if result == _ADDED:
            taken += 1
            expected += promised + _spare_block(engine)
            left, prompts_left = left - tokens, prompts_left - tokens
            if _free_tokens(engine, replica) - expected <= 0:
                result = _NO_ROOM
            elif prompts_left <= 0 or left <= 0:
                result = _STOPPED
        waits = config.foresees_ends or config.tier == BY_NODE
        if result == _NO_ROOM and (not waits or taken > 0 or others > 0):
            state.full = 1
        if result != _ADDED:
            return
        r = after


def _free_tokens(engine: Engine, replica: int) -> int:
    """Return the number of free or evictable KV tokens (``available_size + evictable_size``)."""
    return engine.replicas[replica].free_blocks * engine.config.block_tokens


def _expected_tokens(engine: Engine, replica: int) -> float:
    """Return the expected number of tokens that running requests will still generate.

    SGLang 0.5.22 and later expect the whole remaining output of requests with ``ignore_eos``.
    Earlier releases expect a share of it, ``new_token_ratio``.
    """
    state = engine.replicas[replica]
    total = 0.0
    for i in range(state.running):
        if engine.running[replica, i] != state.chunked:
            request = engine.requests[engine.running[replica, i]]
            left = min(request.output - request.generated, MOST_EXPECTED_TOKENS)
            total += left if engine.config.foresees_ends else left * state.expected
    return total


def _go_on(engine: Engine, replica: int, left: int, expected: float) -> tuple[int, float]:
    """Continue a partly computed prompt.

    Return the number of tokens of its next chunk, rounded up to blocks, and the updated number of
    output tokens that running requests are expected to generate.
    """
    state = engine.replicas[replica]
    r, request = state.chunked, engine.requests[state.chunked]
    room = min(left, int(_free_tokens(engine, replica) - expected))
    wanted = request.prompt + request.generated - request.computed
    tokens = min(wanted, room if room > 0 else left)
    _grow(engine, replica, request, tokens)
    blocks.add_to_batch(engine, replica, r, tokens)
    if tokens == wanted:
        state.chunked = -1
        expected += min(request.output, MOST_EXPECTED_TOKENS)
    return _paged(engine, tokens), expected + _spare_block(engine)


def _spare_block(engine: Engine) -> int:
    """Return the KV tokens that SGLang 0.5.22 and later keep free per request of a batch."""
    return engine.config.block_tokens if engine.config.foresees_ends else 0


def _start(
    engine: Engine,
    replica: int,
    r: int,
    left: int,
    prompts_left: int,
    taken: int,
    guesses: int,
    expected: float,
) -> tuple[int, int, int]:
    """Try to start a waiting request.

    Return the outcome (added, no room, or stopped), the request's scheduled tokens rounded up to
    blocks, and its expected output tokens.
    """
    config, request, state = engine.config, engine.requests[r], engine.replicas[replica]
    hits, locked, on_host = _match(engine, replica, r)
    computed = hits * config.block_tokens
    tokens = request.prompt + request.generated - computed
    paged = _paged(engine, tokens - on_host)
    spare, loaded = _spare_block(engine), 0
    room = _free_tokens(engine, replica) - expected
    if config.prefix_caching:
        written = min(request.output - request.generated, MOST_EXPECTED_TOKENS) + spare
        # Once this request uses cached prefix tokens that nobody else uses, these tokens can no
        # longer be evicted.
        if tokens + written >= room - locked:
            return _NO_ROOM, 0, 0
        stops = taken > 0 and not (config.foresees_ends and config.chunked_prefill)
        if stops and paged >= prompts_left:
            return _STOPPED, 0, 0
        if on_host > 0:
            loaded = hicache.load_back(engine, replica, r)
            hits, computed = hits + loaded, computed + loaded * config.block_tokens
            tokens -= loaded * config.block_tokens
            paged = _paged(engine, tokens)
            if stops and paged >= prompts_left:
                return _STOPPED, 0, 0
    elif paged + spare > min(room, _free_tokens(engine, replica) - taken * spare) or not _all_fit(
        engine, replica, paged + (taken + 1) * spare, guesses
    ):
        return _NO_ROOM, 0, 0
    promised = min(request.output, MOST_EXPECTED_TOKENS)
    if paged > left:
        tokens = left - left % config.chunk_multiple if config.prefix_caching else left
        if tokens <= 0:
            return _STOPPED, 0, 0
        paged, promised = _paged(engine, tokens), 0
    if not _admit(engine, replica, r, hits, computed + tokens):
        return _NO_ROOM, 0, 0
    if on_host > 0 and request.scheduled_s < 0:
        request.loaded_tokens = loaded * config.block_tokens
    blocks.enter(engine, replica, r, computed)
    if promised == 0:
        state.chunked = r
    blocks.add_to_batch(engine, replica, r, tokens)
    return _ADDED, paged, promised


def _match(engine: Engine, replica: int, r: int) -> tuple[int, int, int]:
    """Find the longest cached prefix of a request's prompt.

    Return three numbers: cached blocks on the GPU, their tokens that no request uses, and further
    cached tokens that are only in host memory.
    """
    config, request = engine.config, engine.requests[r]
    if config.tier == BY_NODE:
        longest = (request.prompt + request.generated - 1) // config.block_tokens
        hits = radix_tree.match(engine, replica, request, longest)
        state = engine.replicas[replica]
        idle = radix_tree.idle_blocks(engine, replica, state.matched)
        return hits, idle * config.block_tokens, int(state.host_hits * config.block_tokens)
    hits = blocks.cached_blocks(engine, replica, r)
    idle = blocks.idle_hits(engine, replica, request, hits) if config.prefix_caching else 0
    return hits, idle * config.block_tokens, 0


def _admit(engine: Engine, replica: int, r: int, hits: int, tokens: int) -> bool:
    if engine.config.tier == BY_NODE:
        return radix_requests.take(engine, replica, r, hits, tokens)
    return blocks.admit(engine, replica, r, hits, tokens)


def _paged(engine: Engine, tokens: int) -> int:
    """Return a number of tokens, rounded up to whole blocks."""
    return blocks.blocks_for(engine, tokens) * engine.config.block_tokens


def _guess(engine: Engine, replica: int, r: int, guesses: int) -> int:
    """Insert a request into the admission check's list, ordered by remaining output tokens.

    For the first request of a batch, the list is built from the running requests. A later request
    is inserted in order, or before the last entry if it has the most tokens left, as in SGLang.
    Return the length of the list.
    """
    request = engine.requests[r]
    if guesses > 0:
        return _insert(engine.guesses, guesses, request, True)
    state = engine.replicas[replica]
    guesses = _insert(engine.guesses, guesses, request, False)
    for i in range(state.running):
        running = engine.requests[engine.running[replica, i]]
        guesses = _insert(engine.guesses, guesses, running, False)
    return guesses


def _insert(queue: Records[Guess], size: int, request: Request, late: bool) -> int:
    """Insert a request into a list that is ordered by remaining output tokens.

    The request comes after equal entries, or before them if ``late``. Return the new length.
    """
    tokens = request.output - request.generated
    if tokens <= 0:
        return size
    place = 0
    while place < (size - 1 if late else size) and (
        tokens > queue[place].left or (not late and tokens == queue[place].left)
    ):
        place += 1
    for i in range(size, place, -1):
        queue[i].left, queue[i].held = queue[i - 1].left, queue[i - 1].held
    queue[place].left, queue[place].held = tokens, request.prompt + request.generated
    return size + 1


def _all_fit(engine: Engine, replica: int, paged: int, guesses: int) -> bool:
    """Return whether KV memory suffices until all requests finish (``add_one_req_ignore_eos``)."""
    free = _free_tokens(engine, replica) - paged
    for i in range(guesses):
        guess, still = engine.guesses[i], guesses - i
        if free - guess.left * still <= SPARE_TOKENS * still:
            return False
        free += guess.held
    return True


compiled_inside(__name__)
