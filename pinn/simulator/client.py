"""Clients: when requests are sent, to which replica, and when clients hang up."""

from __future__ import annotations

import numpy as np

from pinn.simulator import arrays
from pinn.simulator.blocks import free_request
from pinn.simulator.jit import inner
from pinn.simulator.queues import append_input, pop_heap, push_heap, remove_waiting
from pinn.simulator.server import take_in
from pinn.simulator.state import (
    DECODES,
    FINISHED,
    REJECTED,
    RUNNING,
    SENT,
    TIMED_OUT,
)
from pinn.simulator.topology import group_of

#: The coordinator tells the load balancer the queue lengths at most this often
#: (``vllm/v1/engine/coordinator.py: DPCoordinatorProc``, ``min_stats_update_interval_ms``).
PUBLISH_INTERVAL_S = 0.1


@inner
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


@inner
def _leave(engine):
    pop_heap(arrays.ending_s(engine), arrays.ending_id(engine), engine.endings)
    engine.endings -= 1
    engine.sent -= 1


@inner
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


@inner
def _take_next(engine):
    """Requests in their order; at a decode server, as they come from the prefill servers."""
    if engine.role == DECODES:
        engine.endings -= 1
        return pop_heap(arrays.ending_s(engine), arrays.ending_id(engine), engine.endings + 1)
    engine.next += 1
    return engine.next - 1


@inner
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
            state.seen_waiting, state.seen_running = state.waiting, state.running
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


@inner
def hand_over(engine, r, work_s):
    """The API server takes a request in and passes it on.

    Requests of one replica stay in the order of arrival, whichever server takes them in.
    """
    request = arrays.requests(engine, r)
    state = arrays.replicas(engine, request.replica)
    state.handed_s = max(state.handed_s, take_in(engine, r, work_s))
    request.handed_s = state.handed_s
    append_input(engine, request.replica, r)
    group = arrays.groups(engine, group_of(engine, request.replica))
    if group.in_flight == 0:
        group.wake_s = min(group.wake_s, request.handed_s)
    if request.timeout_s < np.inf:
        deadline = request.sent_s + request.timeout_s
        push_heap(
            arrays.deadline_s(engine), arrays.deadline_id(engine), engine.deadlines, deadline, r
        )
        engine.deadlines += 1


@inner
def resolve(engine, r, moment):
    """A client sees its request end; the stage may be over and the next one open."""
    if engine.role == DECODES:
        pass_on(engine, r, moment)
        return
    if engine.concurrency > 0:
        push_heap(arrays.ending_s(engine), arrays.ending_id(engine), engine.endings, moment, r)
        engine.endings += 1
    engine.progress += 1
    engine.stage_end_s = max(engine.stage_end_s, moment)
    if arrays.requests(engine, r).stage == engine.open_stage:
        engine.unresolved -= 1
    if engine.stages_wait and engine.unresolved == 0:
        _open_stage(engine, engine.stage_end_s + engine.stage_gap_s)


@inner
def pass_on(engine, r, moment):
    """A request leaves for the other pool, where it arrives at a moment."""
    arrays.leaving_s(engine)[engine.leaving] = moment
    arrays.leaving_id(engine)[engine.leaving] = r
    engine.leaving += 1
    engine.progress += 1


@inner
def _open_stage(engine, moment):
    engine.open_stage += 1
    engine.opened_s = moment
    if engine.open_stage < engine.n_stages:
        engine.unresolved = arrays.stage_sizes(engine, engine.open_stage)


@inner
def open_next_stage(engine):
    """Stages that do not wait open by the clock, once the one before is sent."""
    if engine.stages_wait or engine.next == engine.n_requests:
        return
    if arrays.requests(engine, engine.next).stage > engine.open_stage:
        _open_stage(engine, arrays.stage_starts_s(engine, engine.open_stage + 1))


@inner
def hang_up(engine, now):
    """Clients whose patience has run out disconnect, which aborts their requests.

    ``EngineCore._process_aborts_queue`` and ``Scheduler.finish_requests``: blocks are freed at
    once, even those of a batch in flight. The engine learns of it at its next turn, until which it
    plans nothing; by then other clients' requests may have taken the places.
    """
    while engine.deadlines > 0 and arrays.deadline_s(engine, 0) <= now:
        deadline = arrays.deadline_s(engine, 0)
        r = pop_heap(arrays.deadline_s(engine), arrays.deadline_id(engine), engine.deadlines)
        engine.deadlines -= 1
        request = arrays.requests(engine, r)
        if request.status == FINISHED:
            continue
        if request.status == RUNNING:
            _stop_running(engine, request.replica, r)
        elif request.status != SENT:
            remove_waiting(engine, request.replica, r)
        free_request(engine, request.replica, r)
        request.status = TIMED_OUT
        request.last_s = deadline
        resolve(engine, r, deadline)


@inner
def _stop_running(engine, replica, r):
    running, state = arrays.running(engine, replica), arrays.replicas(engine, replica)
    kept = 0
    for i in range(state.running):
        if running[i] != r:
            running[kept] = running[i]
            kept += 1
    state.running = kept
