"""Event loops of the simulator: of one engine, and of two pools in disaggregated prefill/decode.

Requests move between the pools: a computed prompt moves to a decode server, and the end of a
response lets its client send the next request. Both pools therefore share one clock, and the
earliest event of either pool is handled first.
"""

import numpy as np

from pinn.simulator import blocks, client, hooks, host_link
from pinn.simulator.client import first_of, first_server, group_of, prompts_wait, replicas_of
from pinn.simulator.compiler import compiled, compiled_inside
from pinn.simulator.engine import Engine
from pinn.simulator.latency_model import LatencyModel
from pinn.simulator.lockstep import share_work
from pinn.simulator.scheduler import schedule
from pinn.simulator.state import (
    BY_NODE,
    BY_STEP,
    FIRST_SHARED,
    FIRST_SUM,
    LOADING,
    SENT,
    SHARED_SUMS,
    WAITING,
)

# Event loop of an engine: it sends requests, and starts and ends batches.
#
# Mirrors the busy loop of ``vllm/v1/engine/core.py``: drain the input queue, ``step`` or
# ``step_with_batch_queue``, hand out outputs. With asynchronous scheduling (the default) up to two
# batches are in flight: batch n + 1 is scheduled when batch n - 1 has ended and batch n starts. A
# request that arrives during batch n therefore runs in batch n + 2 and waits 2.5 steps for its
# first token on average. Without asynchronous scheduling one batch is in flight; with pipeline
# stages one per stage, and one more with staggered decodes (``max_concurrent_batches``,
# ``pinn.engines.recipe``).

DONE, FULL, BAD_STEP, PAUSED = range(4)
END, _SEND, _TURN, _HANG_UP = range(4)


def advance(engine: Engine, latency: LatencyModel, until_s: float = np.inf) -> int:
    """Advance an engine until every request has ended or a record buffer is nearly full.

    Return DONE or FULL in these cases, PAUSED after ``until_s`` or when requests leave for the
    other pool, and BAD_STEP if a step time is not positive and finite. In plain Python ``latency``
    is any object with the methods of ``pinn.simulator.latency_model.LatencyModel``.

    The function is long because numba recompiles a callee for each of its callers.
    """
    while has_room(engine):
        if engine.counters.leaving > 0:
            return PAUSED
        event, group, moment = next_event(engine)
        if event == END:
            return DONE
        if moment > until_s:
            return PAUSED
        if event == _HANG_UP:
            client.hang_up(engine, moment)
            continue
        if event == _SEND:
            r = client.send(engine, moment)
            if r >= 0:
                work_s = hooks.request_seconds(latency, engine, r, hooks.ARRIVAL)
                client.hand_over(engine, r, work_s)
            continue
        token_s, completion_s = hooks.after_output_seconds(latency)
        _begin_turn(engine, group, moment, token_s, completion_s)
        tries = 0
        while _wants_batch(engine, group):
            tokens, waits = 0, prompts_wait(engine, group)
            for replica in replicas_of(engine, group):
                tokens += schedule(latency, engine, replica, waits)
            # Delays of requests that were just preempted count even if the batch has no tokens.
            _charge_requests(latency, engine, group)
            if tokens == 0:
                if engine.config.tier > 0 and _launch_transfers(engine, group):
                    continue
                _launch_nothing(engine, group)
                tries += 1
                if tries > engine.config.stagger:
                    break
                continue
            duration, slowest = _group_seconds(latency, engine, group)
            if not 0 < duration < np.inf:
                engine.counters.bad_step_s = duration
                return BAD_STEP
            _launch(engine, group, duration, slowest)
        _end_turn(engine, group)
    return FULL


def _group_seconds(latency: LatencyModel, engine: Engine, group: int) -> tuple[float, int]:
    """Return the time in seconds of a group's step, and the index of the slowest replica.

    Ranks with shared experts exchange tokens in every layer, so they run in lockstep
    (``DPEngineCoreProc.run_busy_loop``). The step takes the slowest rank's own time plus the shared
    time.
    """
    longest, slowest, shared_s = 0.0, first_of(engine, group), 0.0
    if engine.config.shares_experts:
        share_work(engine, group)
        shared_s = hooks.shared_seconds(latency, engine, group)
    for replica in replicas_of(engine, group):
        if engine.replicas[replica].tokens > 0:
            duration = hooks.step_seconds(latency, engine, replica, shared_s)
            if not duration <= longest:
                longest, slowest = duration, replica
    return longest, slowest


def _charge_requests(latency: LatencyModel, engine: Engine, group: int) -> None:
    """Add the latency model's delays to requests that were just started or preempted."""
    for replica in replicas_of(engine, group):
        state = engine.replicas[replica]
        for i in range(state.new):
            r = engine.started[replica, i]
            seconds = hooks.request_seconds(latency, engine, r, hooks.SCHEDULE)
            engine.requests[r].scheduling_s = seconds
        for i in range(state.preempted):
            r = engine.preempted[replica, i]
            request = engine.requests[r]
            # Only the client sees this delay: it lengthens the gap before the request's next token.
            seconds = hooks.request_seconds(latency, engine, r, hooks.PREEMPTION)
            request.preemption_s += seconds
            request.recomputed_tokens += request.prompt + request.generated
            if request.generated > 0:
                request.gap_start_s -= seconds


def has_room(engine: Engine) -> bool:
    """Return whether the record buffers have room for one more iteration of the loop."""
    config, counters = engine.config, engine.counters
    enough_gaps = config.gap_rows - counters.n_gaps >= config.n_replicas * config.max_seqs
    if config.tier > 0 and config.transfer_rows - counters.n_transfers < config.n_jobs:
        return False
    return enough_gaps and config.step_rows - counters.n_steps > config.depth


def next_event(engine: Engine) -> tuple[int, int, float]:
    """Return the next event as (type, group, time in seconds)."""
    group = 0
    for other in range(1, engine.config.n_groups):
        if engine.groups[other].wake_s < engine.groups[group].wake_s:
            group = other
    wake = engine.groups[group].wake_s
    client.open_next_stage(engine)
    moment = client.next_send_s(engine)
    deadline = engine.deadlines[0].moment_s if engine.counters.deadlines > 0 else np.inf
    if deadline <= min(moment, wake) and deadline < np.inf:
        return _HANG_UP, group, deadline
    if moment <= wake and moment < np.inf:
        return _SEND, group, moment
    if wake < np.inf:
        return _TURN, group, wake
    return END, group, wake


def _begin_turn(
    engine: Engine, group: int, now: float, token_s: float, completion_s: float
) -> None:
    """Process a group's finished batch, then new requests (end of ``step_with_batch_queue``)."""
    state = engine.groups[group]
    now = _engine_free_s(engine, group, now)
    client.hang_up(engine, now)  # abort requests whose timeout passed while the loop was busy
    if state.in_flight > 0 and engine.batch_end_s[group, state.oldest] <= now:
        launched = 0
        for replica in replicas_of(engine, group):
            launched += engine.batches[replica, state.oldest].size
            client.update_from_output(engine, replica, state.oldest, now, token_s, completion_s)
        state.oldest = (state.oldest + 1) % engine.config.depth
        state.in_flight -= 1
        state.launched -= launched > 0
    state.now_s = now = _engine_free_s(engine, group, now)
    for replica in replicas_of(engine, group):
        _drain_input(engine, replica, now)


def _engine_free_s(engine: Engine, group: int, now: float) -> float:
    """Return the time in seconds when an engine loop continues after its API server's work."""
    server = engine.servers[first_server(engine, first_of(engine, group))]
    return max(now, server.free_s) if engine.config.one_process else now


def _drain_input(engine: Engine, replica: int, now: float) -> None:
    """Move arrived requests from the input queue to the scheduler (``_process_input_queue``).

    SGLang polls its input queue every few decode steps, and immediately after a step with prompts
    or when idle (``sglang/srt/managers/scheduler_recv_skipper.py``).
    """
    config, state = engine.config, engine.replicas[replica]
    if state.running + engine.waiting[replica].size == 0:
        if engine.groups[group_of(engine, replica)].in_flight == 0:
            state.expected = config.admission_share
    elif config.poll_interval > 1:
        if state.polls < config.poll_interval:
            return
        state.polls = 0
    queue = engine.input[replica]
    while queue.size > 0 and engine.requests[queue.head].handed_s <= now:
        r = queue.head
        request = engine.requests[r]
        blocks.remove(engine, queue, r)
        if request.status == SENT:
            request.status, request.queued_s = WAITING, now
            blocks.append(engine, engine.waiting[replica], r)


def _wants_batch(engine: Engine, group: int) -> bool:
    """Return whether the batch queue has room and the scheduler has requests."""
    if engine.groups[group].in_flight >= engine.config.depth:
        return False
    for replica in replicas_of(engine, group):
        if engine.replicas[replica].running + engine.waiting[replica].size > 0:
            return True
        if engine.config.tier > 0 and host_link.busy(engine, replica):
            return True
    return False


def _launch(engine: Engine, group: int, duration: float, slowest: int) -> None:
    """Append a scheduled batch to the batch queue; the batch runs as soon as the GPU is free.

    Pipeline stages overlap: the first stage is free for the next batch after its share of the step
    time.
    """
    config, state = engine.config, engine.groups[group]
    column = (state.oldest + state.in_flight) % config.depth
    start = max(state.now_s, state.gpu_free_s, _tokens_known_s(engine, group, column))
    if config.tier > 0:
        start = max(start, _transfer(engine, group, column))
    end = max(start + duration, state.last_end_s)
    state.gpu_free_s = start + duration / config.pipeline_parallel_size
    if config.tier == BY_NODE:
        for replica in replicas_of(engine, group):
            if engine.replicas[replica].load_s > 0:
                end = max(end, host_link.loaded_s(engine, replica, start, duration))
        state.gpu_free_s = end
    if config.tier == BY_STEP:
        for replica in replicas_of(engine, group):
            end = max(end, host_link.store_in_step(engine, replica, column, start + duration))
        state.gpu_free_s = max(state.gpu_free_s, end)
    engine.batch_end_s[group, column] = state.last_end_s = end
    state.in_flight += 1
    state.launched += 1
    state.turns += 1
    _note_tokens(engine, group, column, end)
    _record(engine, group, start, duration, slowest)


def _transfer(engine: Engine, group: int, column: int) -> float:
    """Begin the KV transfers of a step; return the time in seconds when its batch can begin."""
    state = engine.groups[group]
    computed_s, held_s = max(state.now_s, state.last_end_s), state.now_s
    for replica in replicas_of(engine, group):
        held_s = max(held_s, host_link.launch(engine, replica, computed_s, column))
    state.gpu_free_s = max(state.gpu_free_s, held_s)
    return held_s


def _launch_transfers(engine: Engine, group: int) -> bool:
    """Run a step that has KV transfers but no tokens; return whether to schedule again immediately.

    If other batches are queued, the step occupies a slot in the batch queue; otherwise it ends
    immediately. The engine repeats steps without tokens as long as they advance a transfer.
    """
    config, state = engine.config, engine.groups[group]
    column = (state.oldest + state.in_flight) % config.depth
    _transfer(engine, group, column)
    if state.in_flight == 0:
        for replica in replicas_of(engine, group):
            engine.replicas[replica].heard_s = state.now_s
            host_link.deliver(engine, replica, column)
    events = 0
    for replica in replicas_of(engine, group):
        events += engine.replicas[replica].events
    news = events != state.events
    state.events = events
    if state.in_flight > 0 and (news or state.launched > 0):
        engine.batch_end_s[group, column] = state.last_end_s
        state.in_flight += 1
        return True
    return news


def _launch_nothing(engine: Engine, group: int) -> None:
    """Queue a batch without tokens, which completes together with the previous batch.

    As in ``EngineCore.step_with_batch_queue``, this applies to queues of more than two batches.
    """
    depth, state = engine.config.depth, engine.groups[group]
    if depth > 2 and state.launched > 0:
        column = (state.oldest + state.in_flight) % depth
        engine.batch_end_s[group, column] = state.last_end_s
        state.in_flight += 1


def _tokens_known_s(engine: Engine, group: int, column: int) -> float:
    """Return the time in seconds when the last pipeline stage has generated a batch's input."""
    moment = 0.0
    if engine.config.pipeline_parallel_size == 1:
        return moment
    for replica in replicas_of(engine, group):
        for i in range(engine.batches[replica, column].size):
            r = engine.entries[replica, column, i].request
            moment = max(moment, engine.requests[r].token_s)
    return moment


def _note_tokens(engine: Engine, group: int, column: int, end: float) -> None:
    if engine.config.pipeline_parallel_size == 1:
        return
    for replica in replicas_of(engine, group):
        for i in range(engine.batches[replica, column].size):
            entry = engine.entries[replica, column, i]
            if entry.sampled > 0:
                engine.requests[entry.request].token_s = end


def _record(engine: Engine, group: int, start: float, duration: float, slowest: int) -> None:
    config, of_group = engine.config, engine.groups[group]
    step = engine.counters.n_steps
    engine.counters.n_steps += 1
    engine.steps[step, 0], engine.steps[step, 1], engine.steps[step, 2] = start, duration, group
    for i in range(3, FIRST_SUM):
        engine.steps[step, i] = 0
    column = (of_group.oldest + of_group.in_flight - 1) % config.depth
    for replica in replicas_of(engine, group):
        state = engine.replicas[replica]
        engine.steps[step, 3] += engine.batches[replica, column].size
        engine.steps[step, 4] += state.tokens
        engine.steps[step, 5] += state.running
        engine.steps[step, 6] += engine.waiting[replica].size
        engine.steps[step, 7] += config.blocks - state.free_blocks
        engine.steps[step, 8] += state.new
        engine.steps[step, 9] += state.preempted
    sums = engine.replicas[slowest].sums
    for i in range(len(sums)):
        engine.steps[step, FIRST_SUM + i] = sums[i]
    shared = of_group.shared if config.shares_experts else sums
    for i in range(len(SHARED_SUMS)):
        engine.steps[step, FIRST_SHARED + i] = shared[i]


def _end_turn(engine: Engine, group: int) -> None:
    """Set the time of a group's next turn: when its oldest batch ends or a request arrives."""
    state = engine.groups[group]
    if state.in_flight > 0:
        state.wake_s = engine.batch_end_s[group, state.oldest]
        return
    state.wake_s, state.turns = np.inf, 0
    for replica in replicas_of(engine, group):
        queue = engine.input[replica]
        if queue.size > 0:
            state.wake_s = min(state.wake_s, engine.requests[queue.head].handed_s)
        r = engine.waiting[replica].head
        while r >= 0:
            request = engine.requests[r]
            if request.status == LOADING and request.ready_s > state.now_s:
                state.wake_s = min(state.wake_s, request.ready_s)
            r = request.after
        if engine.config.tier > 0:
            state.wake_s = min(state.wake_s, host_link.next_end_s(engine, replica))


def advance_pools(
    prefill: Engine, decode: Engine, prefill_latency: LatencyModel, decode_latency: LatencyModel
) -> int:
    """Advance a prefill pool and a decode pool on a common clock.

    Return DONE if every request has ended, FULL if a record buffer is nearly full, and BAD_STEP if
    a step time is not positive and finite.
    """
    while has_room(prefill) and has_room(decode):
        event, _, moment = next_event(prefill)
        other_event, _, other_moment = next_event(decode)
        if event == END and other_event == END:
            return DONE
        if other_event == END or (event != END and moment <= other_moment):
            until_s = np.inf if other_event == END else other_moment
            status = advance(prefill, prefill_latency, until_s)
            _send_on(prefill, decode)
        else:
            until_s = np.inf if event == END else np.nextafter(moment, -np.inf)
            status = advance(decode, decode_latency, until_s)
            answer(decode, prefill)
        if status == BAD_STEP:
            return BAD_STEP
    return FULL


def _send_on(prefill: Engine, decode: Engine) -> None:
    """Send requests with computed prompts to decode servers.

    The client timeout of each request is reduced by the time since the request was sent.
    """
    for i in range(prefill.counters.leaving):
        r, moment = prefill.leaving[i].request, prefill.leaving[i].moment_s
        prompt, answer = prefill.requests[r], decode.requests[r]
        answer.source, answer.warmup = prompt.replica, prompt.warmup
        answer.timeout_s = max(prompt.sent_s + prompt.timeout_s - moment, 0.0)
        client.push_ending(decode, r, moment)
    prefill.counters.leaving = 0


def answer(engine: Engine, front: Engine) -> None:
    """Report an engine's finished requests to their clients, whose requests are in ``front``."""
    for i in range(engine.counters.leaving):
        client.resolve(front, engine.leaving[i].request, engine.leaving[i].moment_s)
    engine.counters.leaving = 0


compiled_inside(__name__)

compiled_advance, compiled_advance_pools = compiled(advance), compiled(advance_pools)
