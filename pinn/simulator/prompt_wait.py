"""Prompts that wait for others while decodes go on, so that one step takes them together.

Mirrors ``tensorrt_llm/_torch/pyexecutor/py_executor.py``, as remembered: ``_waiting_requests``, and
``_balance_adp_requests`` where attention is data parallel. A prompt that waits for blocks of the
cache counts as one that could run here; there it does not. Ranks of a dense model do not keep step
here, so that none waits for another.
"""

from __future__ import annotations

from pinn.simulator import arrays
from pinn.simulator.jit import inner
from pinn.simulator.topology import replicas_of


@inner
def prompts_wait(engine, group):
    """Whether the next step of a group's replicas leaves new prompts waiting; counts the steps."""
    if engine.prompt_wait_steps == 0:
        return False
    if engine.waits_for_all:
        return _waits_for_all(engine, group)
    return _waits_for_tokens(engine, group)


@inner
def _waits_for_tokens(engine, group):
    """Until so many steps have passed, or prompts and decodes make up a step worth taking."""
    state = arrays.groups(engine, group)
    replica, _ = replicas_of(engine, group)
    if not _has_prompt(engine, replica) or arrays.replicas(engine, replica).running == 0:
        return False
    few = _step_tokens(engine, replica) < engine.prompt_wait_tokens
    if few and state.waited < engine.prompt_wait_steps:
        state.waited += 1
        return True
    state.waited = 0
    return False


@inner
def _waits_for_all(engine, group):
    """Until every replica has a prompt, one has no decodes, or so many steps have passed."""
    state = arrays.groups(engine, group)
    first, count = replicas_of(engine, group)
    prompts = decodes = 0
    for replica in range(first, first + count):
        prompts += _has_prompt(engine, replica)
        decodes += arrays.replicas(engine, replica).running > 0
    if prompts == count:
        state.waited = 0
        return False
    state.waited += 1
    if state.waited >= engine.prompt_wait_steps or decodes < count:
        state.waited = 0
        return False
    return True


@inner
def _has_prompt(engine, replica):
    """Whether a request waits and a place is free."""
    state = arrays.replicas(engine, replica)
    return state.waiting > 0 and state.running < engine.max_seqs


@inner
def _step_tokens(engine, replica):
    """Tokens of a step of all decodes and waiting prompts, counted up to where a wait ends."""
    state = arrays.replicas(engine, replica)
    tokens = state.running * (1 + engine.drafts)
    r = state.waiting_head
    while r >= 0 and tokens < engine.prompt_wait_tokens:
        request = arrays.requests(engine, r)
        tokens += request.prompt + request.generated - request.computed
        r = request.after
    return tokens
