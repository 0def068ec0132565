"""What clients send and get."""

import numpy as np

from pinn.simulator import arrays, blocks, servers
from pinn.simulator.compiler import compiled_inside
from pinn.simulator.state import (
    DECODES,
    FINISHED,
    PREEMPTED,
    PREFILLS,
    REJECTED,
    RUNNING,
    SENT,
    TIMED_OUT,
)

# Clients: when requests are sent, to which replica, and when clients hang up.

#: The coordinator tells the load balancer the queue lengths at most this often
#: (``vllm/v1/engine/coordinator.py: DPCoordinatorProc``, ``min_stats_update_interval_ms``).
PUBLISH_INTERVAL_S = 0.1


def next_send_s(engine):
    """When the next request is sent; infinity while that is not known yet."""
    if engine.role == DECODES:
        return arrays.ending_s(engine, 0) if engine.endings > 0 else np.inf
    if engine.next == engine.n_requests:
        return np.inf
    request = arrays.requests(engine, engine.next)
    if request.stage != engine.open_stage:
        return np.inf
    moment = engine.opened_s + request.offset_s
    if engine.concurrency > 0:
        while engine.endings > 0 and arrays.ending_s(engine, 0) <= moment:
            _leave(engine)
        if engine.sent >= engine.concurrency:
            return arrays.ending_s(engine, 0) if engine.endings > 0 else np.inf
    return moment


def _leave(engine):
    pop_ending(engine)
    engine.sent -= 1


def push_ending(engine, r, moment):
    """A client will see a request end, or a decode server will get it."""
    blocks.push_heap(arrays.ending_s(engine), arrays.ending_id(engine), engine.endings, moment, r)
    engine.endings += 1


def pop_ending(engine):
    """The earliest of those requests."""
    engine.endings -= 1
    return blocks.pop_heap(arrays.ending_s(engine), arrays.ending_id(engine), engine.endings + 1)


def send(engine, moment):
    """Send the next request; -1 if the server refuses it at once.

    Where all places were taken it takes the one that was freed first. Others that are freed in the
    same moment stay for the requests after it, which are then sent in that moment too.
    """
    r = _take_next(engine)
    request = arrays.requests(engine, r)
    if engine.concurrency > 0:
        if engine.sent >= engine.concurrency:
            _leave(engine)
        engine.sent += 1
    request.sent_s = moment
    if request.status == REJECTED:
        request.last_s = moment
        resolve(engine, r, moment)
        return -1
    request.status = SENT
    request.replica = _route(engine, moment)
    return r


def _take_next(engine):
    """Requests in their order; at a decode server, as they come from the prefill servers."""
    if engine.role == DECODES:
        return pop_ending(engine)
    engine.next += 1
    return engine.next - 1


def _route(engine, moment):
    """``DPLBAsyncMPClient.get_core_engine_for_request``: least of 4 x waiting + running.

    Between two reports of the coordinator the client counts what it has sent itself.
    """
    if engine.n_replicas == 1:
        return 0
    if not engine.least_loaded:
        engine.round_robin += 1
        return (engine.round_robin - 1) % engine.n_replicas
    if moment >= engine.publish_s:
        for replica in range(engine.n_replicas):
            state = arrays.replicas(engine, replica)
            state.seen_waiting = arrays.waiting(engine, replica).size
            state.seen_running = state.running
        engine.publish_s = (np.floor(moment / PUBLISH_INTERVAL_S) + 1) * PUBLISH_INTERVAL_S
    best, least = 0, 1 << 60
    for replica in range(engine.n_replicas):
        score = (
            4 * arrays.replicas(engine, replica).seen_waiting
            + arrays.replicas(engine, replica).seen_running
        )
        if score < least:
            best, least = replica, score
    arrays.replicas(engine, best).seen_waiting += 1
    return best


def hand_over(engine, r, work_s):
    """The API server takes a request in and passes it on.

    Requests of one replica stay in the order of arrival, whichever server takes them in.
    """
    request = arrays.requests(engine, r)
    state = arrays.replicas(engine, request.replica)
    state.handed_s = max(state.handed_s, servers.take_in(engine, r, work_s))
    request.handed_s = state.handed_s
    blocks.append(engine, arrays.input(engine, request.replica), r)
    group = arrays.groups(engine, servers.group_of(engine, request.replica))
    if group.in_flight == 0:
        group.wake_s = min(group.wake_s, request.handed_s)
    if request.timeout_s < np.inf:
        deadline = request.sent_s + request.timeout_s
        blocks.push_heap(
            arrays.deadline_s(engine), arrays.deadline_id(engine), engine.deadlines, deadline, r
        )
        engine.deadlines += 1


def resolve(engine, r, moment):
    """A client sees its request end; the stage may be over and the next one open."""
    if engine.role == DECODES:
        pass_on(engine, r, moment)
        return
    if engine.concurrency > 0:
        push_ending(engine, r, moment)
    engine.progress += 1
    engine.stage_end_s = max(engine.stage_end_s, moment)
    if arrays.requests(engine, r).stage == engine.open_stage:
        engine.unresolved -= 1
    if engine.stages_wait and engine.unresolved == 0:
        _open_stage(engine, engine.stage_end_s + engine.stage_gap_s)


def pass_on(engine, r, moment):
    """A request leaves for the other pool, where it arrives at a moment."""
    arrays.leaving_s(engine)[engine.leaving] = moment
    arrays.leaving_id(engine)[engine.leaving] = r
    engine.leaving += 1
    engine.progress += 1


def _open_stage(engine, moment):
    engine.open_stage += 1
    engine.opened_s = moment
    if engine.open_stage < engine.n_stages:
        engine.unresolved = arrays.stage_sizes(engine, engine.open_stage)


def open_next_stage(engine):
    """Stages that do not wait open by the clock, once the one before is sent."""
    if engine.stages_wait or engine.next == engine.n_requests:
        return
    if arrays.requests(engine, engine.next).stage > engine.open_stage:
        _open_stage(engine, arrays.stage_starts_s(engine, engine.open_stage + 1))


def hang_up(engine, now):
    """Clients whose patience has run out disconnect, which aborts their requests.

    ``EngineCore._process_aborts_queue`` and ``Scheduler.finish_requests``: blocks are freed at
    once, even those of a batch in flight. The engine learns of it at its next turn, until which it
    plans nothing; by then other clients' requests may have taken the places.
    """
    while engine.deadlines > 0 and arrays.deadline_s(engine, 0) <= now:
        deadline = arrays.deadline_s(engine, 0)
        r = blocks.pop_heap(arrays.deadline_s(engine), arrays.deadline_id(engine), engine.deadlines)
        engine.deadlines -= 1
        request = arrays.requests(engine, r)
        if request.status == FINISHED:
            continue
        status, request.status = request.status, TIMED_OUT
        if status == RUNNING:
            _drop_ended(engine, request.replica)
        elif status != SENT:
            blocks.remove(engine, arrays.waiting(engine, request.replica), r)
        blocks.free_request(engine, request.replica, r)
        request.last_s = deadline
        resolve(engine, r, deadline)


# The end of a step: sampled tokens reach their requests, finished ones leave.
#
# Mirrors ``vllm/v1/core/sched/scheduler.py: Scheduler.update_from_output`` and
# ``AsyncScheduler._update_request_with_output``.


def update_from_output(engine, replica, column, now, token_s, completion_s):
    """Hand the tokens of batch ``column`` to its requests at engine time ``now``."""
    servers.hear_of_step(engine, now)
    finished = 0
    for i in range(arrays.batch_size(engine, replica, column)):
        sampled = int(arrays.batch_sampled(engine, replica, column, i))
        r = arrays.batch_request(engine, replica, column, i)
        request = arrays.requests(engine, r)
        request.in_flight -= 1
        stale = request.stale > 0
        request.stale -= stale
        if sampled == 0:
            continue
        if request.status == TIMED_OUT or request.status == FINISHED:
            continue
        if engine.prefill_first and request.status == PREEMPTED:
            # SGLang drops the tokens of a request that it has retracted.
            request.placeholders -= sampled
            continue
        server = servers.server_of(engine, r)
        servers.stream(server, now, token_s)
        _append_tokens(engine, request, server, now, servers.verified_tokens(engine, r, sampled))
        if engine.asynchronous and not stale:
            request.placeholders -= sampled
        ends = request.generated == request.output
        if engine.prefill_first:
            # SGLang's tree takes prompts when they are computed, and outputs when they end.
            findable = ends or arrays.batch_prompts(engine, replica, column) > 0
        else:
            findable = engine.asynchronous > 0
        if findable and request.status == RUNNING:
            # The token after the last one is in flight, and SGLang's tree takes its place too.
            in_flight = 0 if engine.prefill_first and ends else request.placeholders
            known = request.prompt + request.generated
            # Drafts that were planned beyond the last token are no keys.
            blocks.key_blocks(engine, replica, r, min(request.computed - in_flight, known))
        if ends:
            finished += request.status == RUNNING
            request.last_sent_s = server.free_s
            servers.note_work(server, request.last_work)
            _finish(engine, replica, r, completion_s)
    if finished > 0:
        arrays.replicas(engine, replica).ended += finished
        _drop_ended(engine, replica)


def _append_tokens(engine, request, server, now, tokens):
    """Count a step's tokens and the gap since those before, runs of equal gaps together.

    A gap lies between the moments when the server begins with two steps' tokens: all requests of
    a batch share it, whatever their places in the batch.
    """
    request.generated += tokens
    engine.progress += 1
    request.last_s = now
    if request.generated == 1:
        request.first_s = now
        request.first_sent_s = server.free_s
        servers.note_work(server, request.first_work)
        request.early_preemption_s = request.preemption_s
        request.early_preemptions = request.preemptions
        request.early_recomputed_tokens = request.recomputed_tokens
    else:
        gap = server.start_s - request.gap_start_s
        last = engine.n_gaps - 1
        alike = last >= 0 and arrays.gap_s(engine, last) == gap
        if alike and arrays.gap_tokens(engine, last) == tokens:
            arrays.gap_count(engine)[last] += 1
        else:
            arrays.gap_s(engine)[engine.n_gaps] = gap
            arrays.gap_count(engine)[engine.n_gaps] = 1
            arrays.gap_tokens(engine)[engine.n_gaps] = tokens
            engine.n_gaps += 1
    request.gap_start_s = server.start_s


def _finish(engine, replica, r, completion_s):
    """``check_stop`` at max_tokens and ``_free_request``; a preempted request may end too."""
    request = arrays.requests(engine, r)
    if request.status == PREEMPTED:
        blocks.remove(engine, arrays.waiting(engine, replica), r)
    request.status = FINISHED
    blocks.free_request(engine, replica, r)
    delay = request.scheduling_s + request.preemption_s + completion_s
    if engine.role == PREFILLS:
        pass_on(engine, r, request.last_sent_s + delay)
    else:
        resolve(engine, r, request.last_sent_s + delay)


def _drop_ended(engine, replica):
    """``remove_all`` of those that run no more: the others keep their order."""
    running, state = arrays.running(engine, replica), arrays.replicas(engine, replica)
    kept = 0
    for i in range(state.running):
        if arrays.requests(engine, running[i]).status == RUNNING:
            running[kept] = running[i]
            kept += 1
    state.running = kept


compiled_inside(__name__)
