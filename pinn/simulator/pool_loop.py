"""The clock of prefill and decode apart: whichever pool's next event comes first happens.

Requests go from one pool to the other and back: a prompt that is computed is sent to a decode
server, and an answer that has ended lets its client send the next request. Neither comes before the
event that it follows from, so the order of events is that of one clock.
"""

from __future__ import annotations

from pinn.simulator import arrays
from pinn.simulator.client import resolve
from pinn.simulator.jit import compiled, inner
from pinn.simulator.loop import BAD_STEP, DONE, END, FULL, act, has_room, next_event
from pinn.simulator.queues import push_heap


def advance_pools(prefill, decode, prefill_latency, decode_latency):
    """Run both pools until every request has ended (DONE) or a record buffer is nearly FULL."""
    while has_room(prefill) and has_room(decode):
        event, index, moment = next_event(prefill)
        other_event, other_index, other_moment = next_event(decode)
        if event == END and other_event == END:
            return DONE
        if other_event == END or (event != END and moment <= other_moment):
            if not act(prefill, prefill_latency, event, index, moment):
                return BAD_STEP
            _send_on(prefill, decode)
        else:
            if not act(decode, decode_latency, other_event, other_index, other_moment):
                return BAD_STEP
            _answer(decode, prefill)
    return FULL


@inner
def _send_on(prefill, decode):
    """Requests whose prompts are computed go to the decode servers, with what patience is left."""
    for i in range(prefill.leaving):
        r, moment = arrays.leaving_id(prefill, i), arrays.leaving_s(prefill, i)
        prompt, answer = arrays.requests(prefill, r), arrays.requests(decode, r)
        answer.source = prompt.replica
        answer.timeout_s = max(prompt.sent_s + prompt.timeout_s - moment, 0.0)
        push_heap(arrays.ending_s(decode), arrays.ending_id(decode), decode.endings, moment, r)
        decode.endings += 1
    prefill.leaving = 0


@inner
def _answer(decode, prefill):
    """Clients of requests that have ended hear of it."""
    for i in range(decode.leaving):
        resolve(prefill, arrays.leaving_id(decode, i), arrays.leaving_s(decode, i))
    decode.leaving = 0


#: ``advance_pools`` for ``LinearCoefficients`` models.
advance_pools_compiled = compiled(advance_pools)
