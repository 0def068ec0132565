"""The end of a step: sampled tokens reach their requests, finished ones leave.

Mirrors ``vllm/v1/core/sched/scheduler.py: Scheduler.update_from_output`` and
``AsyncScheduler._update_request_with_output``.
"""

from __future__ import annotations

from pinn.simulator import arrays
from pinn.simulator.blocks import free_request, key_blocks
from pinn.simulator.client import pass_on, resolve
from pinn.simulator.jit import inner
from pinn.simulator.queues import remove_waiting
from pinn.simulator.server import hear_of_step, note_first, note_last, stream
from pinn.simulator.state import FINISHED, PREEMPTED, PREFILLS, RUNNING, TIMED_OUT
from pinn.simulator.topology import server_of
from pinn.simulator.verification import verified_tokens


@inner
def update_from_output(engine, replica, column, now, token_s, completion_s):
    """Hand the tokens of batch ``column`` to its requests at engine time ``now``."""
    hear_of_step(engine, now)
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
        server = server_of(engine, r)
        stream(server, now, token_s)
        _append_tokens(engine, request, server, now, verified_tokens(engine, r, sampled))
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
            key_blocks(engine, replica, r, min(request.computed - in_flight, known))
        if ends:
            finished += request.status == RUNNING
            note_last(request, server)
            _finish(engine, replica, r, completion_s)
    if finished > 0:
        arrays.replicas(engine, replica).ended += finished
        _drop_finished(engine, replica)


@inner
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
        note_first(request, server)
        request.early_preemption_s = request.preemption_s
        request.early_preemptions = request.preemptions
        request.early_recomputed = request.recomputed
    else:
        gap = server.start_s - request.gap_start_s
        last = engine.n_gaps - 1
        if last >= 0 and _is_like(engine, last, gap, tokens):
            arrays.gap_count(engine)[last] += 1
        else:
            arrays.gap_s(engine)[engine.n_gaps] = gap
            arrays.gap_count(engine)[engine.n_gaps] = 1
            arrays.gap_tokens(engine)[engine.n_gaps] = tokens
            engine.n_gaps += 1
    request.gap_start_s = server.start_s


@inner
def _is_like(engine, i, gap, tokens):
    """Whether a recorded gap is as long as another and ends with as many tokens."""
    return arrays.gap_s(engine, i) == gap and arrays.gap_tokens(engine, i) == tokens


@inner
def _finish(engine, replica, r, completion_s):
    """``check_stop`` at max_tokens and ``_free_request``; a preempted request may end too."""
    request = arrays.requests(engine, r)
    if request.status == PREEMPTED:
        remove_waiting(engine, replica, r)
    request.status = FINISHED
    free_request(engine, replica, r)
    delay = request.scheduling_s + request.preemption_s + completion_s
    if engine.role == PREFILLS:
        pass_on(engine, r, request.last_sent_s + delay)
    else:
        resolve(engine, r, request.last_sent_s + delay)


@inner
def _drop_finished(engine, replica):
    """``remove_all``: the others keep their order."""
    running, state = arrays.running(engine, replica), arrays.replicas(engine, replica)
    kept = 0
    for i in range(state.running):
        if arrays.requests(engine, running[i]).status == RUNNING:
            running[kept] = running[i]
            kept += 1
    state.running = kept
