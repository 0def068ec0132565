"""Queues of requests: linked lists for arrival order, binary heaps for moments in time."""

from __future__ import annotations

from pinn.simulator import arrays
from pinn.simulator.jit import inner


@inner
def append_waiting(engine, replica, r):
    """``FCFSRequestQueue.add_request``."""
    state = arrays.replicas(engine, replica)
    arrays.requests(engine, r).before, arrays.requests(engine, r).after = state.waiting_tail, -1
    if state.waiting_tail >= 0:
        arrays.requests(engine, state.waiting_tail).after = r
    else:
        state.waiting_head = r
    state.waiting_tail = r
    state.waiting += 1


@inner
def prepend_waiting(engine, replica, r):
    """``FCFSRequestQueue.prepend_request``."""
    state = arrays.replicas(engine, replica)
    arrays.requests(engine, r).before, arrays.requests(engine, r).after = -1, state.waiting_head
    if state.waiting_head >= 0:
        arrays.requests(engine, state.waiting_head).before = r
    else:
        state.waiting_tail = r
    state.waiting_head = r
    state.waiting += 1


@inner
def remove_waiting(engine, replica, r):
    """``FCFSRequestQueue.remove_request``."""
    state = arrays.replicas(engine, replica)
    before, after = arrays.requests(engine, r).before, arrays.requests(engine, r).after
    if before >= 0:
        arrays.requests(engine, before).after = after
    else:
        state.waiting_head = after
    if after >= 0:
        arrays.requests(engine, after).before = before
    else:
        state.waiting_tail = before
    state.waiting -= 1


@inner
def append_input(engine, replica, r):
    """A request enters the engine's input queue (``EngineCoreProc.process_input_sockets``)."""
    state = arrays.replicas(engine, replica)
    arrays.requests(engine, r).after = -1
    if state.input_tail >= 0:
        arrays.requests(engine, state.input_tail).after = r
    else:
        state.input_head = r
    state.input_tail = r
    state.input += 1


@inner
def pop_input(engine, replica):
    """The oldest request of the input queue."""
    state = arrays.replicas(engine, replica)
    r = state.input_head
    state.input_head = arrays.requests(engine, r).after
    if state.input_head < 0:
        state.input_tail = -1
    state.input -= 1
    return r


@inner
def push_heap(times, ids, size, time, r):
    """Insert into a heap of ``size`` entries."""
    i = size
    while i > 0 and time < times[(i - 1) // 2]:
        times[i], ids[i] = times[(i - 1) // 2], ids[(i - 1) // 2]
        i = (i - 1) // 2
    times[i], ids[i] = time, r


@inner
def pop_heap(times, ids, size):
    """Remove the earliest of ``size`` entries and return its request."""
    first, time, r = ids[0], times[size - 1], ids[size - 1]
    i, child = 0, 1
    while child < size - 1:
        if child + 1 < size - 1 and times[child + 1] < times[child]:
            child += 1
        if times[child] >= time:
            break
        times[i], ids[i] = times[child], ids[child]
        i, child = child, 2 * child + 1
    times[i], ids[i] = time, r
    return first
