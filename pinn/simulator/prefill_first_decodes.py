"""Steps of decodes where prompts have steps of their own, and whom SGLang retracts for memory.

Mirrors ``sglang/srt/managers/scheduler.py: update_running_batch`` and ``schedule_batch.py:
retract_decode`` of 0.5.9, and of 0.5.23 where ``foresees`` is set.
"""

from __future__ import annotations

from pinn.simulator import arrays
from pinn.simulator.blocks import blocks_for, grow, preempt
from pinn.simulator.filling import add_to_batch
from pinn.simulator.jit import inner
from pinn.simulator.queues import append_waiting

#: ``SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR``, ``_DECAY_STEPS`` and ``SGLANG_RETRACT_DECODE_STEPS``.
LEAST_EXPECTED, DECAY_STEPS, RETRACT_STEPS = 0.14, 600, 20


@inner
def schedule_decodes(engine, replica, column):
    """``update_running_batch``: every running request decodes; some are retracted for memory."""
    state, running = arrays.replicas(engine, replica), arrays.running(engine, replica)
    if state.unfiltered > 0:
        state.full = state.unfiltered = 0
    ending = 0
    for i in range(state.running):
        ending += _ends_in_flight(engine, running[i])
    if ending > 0 or state.running == 0:
        state.full = 0
    if state.running == ending:
        return
    if _decode_blocks(engine, replica) > state.free_blocks:
        if ending > 0:
            return  # They free their blocks when their step ends.
        _retract(engine, replica)
    else:
        least = engine.expected_share * LEAST_EXPECTED
        decay = (engine.expected_share - least) / DECAY_STEPS
        state.expected = max(state.expected - decay, least)
    for i in range(state.running):
        r = running[i]
        if _ends_in_flight(engine, r):
            continue
        tokens = 1 + engine.drafts
        grow(engine, replica, r, arrays.requests(engine, r).computed + tokens)
        add_to_batch(engine, replica, column, r, tokens)


@inner
def _ends_in_flight(engine, r):
    """``_reqs_finishing_inflight`` of 0.5.22 and later: whose last token a queued step makes."""
    request = arrays.requests(engine, r)
    # A step with drafts may make fewer tokens than it is waited for.
    known = engine.foresees and engine.asynchronous and engine.drafts == 0
    return known and request.generated + request.placeholders >= request.output


@inner
def _decode_blocks(engine, replica):
    """``new_tokens_required_next_decode``, in blocks."""
    state, running = arrays.replicas(engine, replica), arrays.running(engine, replica)
    needed = 0
    for i in range(state.running):
        request = arrays.requests(engine, running[i])
        if _ends_in_flight(engine, running[i]):
            continue
        if engine.drafts > 0:
            whole = blocks_for(engine, request.computed + 1 + engine.drafts)
            needed += max(whole - request.blocks, 0)
        else:
            needed += request.computed % engine.block_size == 0
    return needed


@inner
def _retract(engine, replica):
    """``retract_decode``: who has written least goes, the longest prompt first; one stays.

    They go to the end of the queue and begin anew.
    """
    state, running = arrays.replicas(engine, replica), arrays.running(engine, replica)
    while state.running > 1 and (
        state.preempted == 0 or _decode_blocks(engine, replica) > state.free_blocks
    ):
        chosen = 0
        for i in range(1, state.running):
            request = arrays.requests(engine, running[i])
            least = arrays.requests(engine, running[chosen])
            if request.generated < least.generated or (
                request.generated == least.generated and request.prompt >= least.prompt
            ):
                chosen = i
        r = running[chosen]
        for i in range(chosen, state.running - 1):
            running[i] = running[i + 1]
        state.running -= 1
        # ``release_req`` and ``_add_request_to_queue``.
        preempt(engine, replica, r)
        append_waiting(engine, replica, r)
    written = outputs = 0
    for i in range(state.running):
        request = arrays.requests(engine, running[i])
        written += request.generated + RETRACT_STEPS
        outputs += request.output
    state.expected = min(written / (outputs + 1), 1.0)
    state.full = 0
