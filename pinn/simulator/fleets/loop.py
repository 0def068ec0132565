"""Event loop of a fleet: clients send, the router chooses a server, and servers step.

Clients belong to ``front``, an engine state without servers. All servers of a kind share one engine
state, which receives requests from the router and returns finished requests to their clients. The
earliest event is handled first, as in :func:`pinn.simulator.loop.advance_pools`.
"""

import numpy as np

from pinn.simulator import client
from pinn.simulator.compiler import compiled, compiled_inside
from pinn.simulator.engine import Engine
from pinn.simulator.latency_model import LatencyModel
from pinn.simulator.loop import (
    BAD_STEP,
    DONE,
    END,
    FULL,
    PAUSED,
    advance,
    answer,
    has_room,
    next_event,
)
from pinn.simulator.router import (
    NO_QUEUE,
    best_copy,
    longest_queue,
    look_if_due,
    shortest_queue,
    take,
)


def advance_fleet(
    front: Engine,
    engines: tuple[Engine, ...],
    latencies: tuple[LatencyModel, ...],
    until_s: float,
) -> int:
    """Advance a fleet until all its requests have ended or wait for a server.

    Return DONE in this case, PAUSED at time ``until_s``, FULL if a record buffer is nearly full,
    and BAD_STEP if a step time is not positive and finite.
    """
    while True:
        for k in range(len(engines)):
            answer(engines[k], front)
            if not has_room(engines[k]):
                return FULL
        client.open_next_stage(front)
        sends_s, first, earliest, second = client.next_send_s(front), 0, np.inf, np.inf
        for k in range(len(engines)):
            event, _, moment = next_event(engines[k])
            if event == END:
                continue
            if moment < earliest:
                first, second, earliest = k, earliest, moment
            else:
                second = min(second, moment)
        if min(sends_s, earliest) == np.inf:
            return DONE
        if min(sends_s, earliest) > until_s:
            return PAUSED
        if sends_s <= earliest:
            r = client.send(front, sends_s)
            if r >= 0:
                dispatch(front, engines, r, sends_s)
            continue
        limit_s = min(min(until_s, second), np.nextafter(sends_s, -np.inf))
        if advance(engines[first], latencies[first], limit_s) == BAD_STEP:
            return BAD_STEP


def next_moment(front: Engine, engines: tuple[Engine, ...]) -> float:
    """Return the time in seconds of the next client or server event; infinite if there is none."""
    client.open_next_stage(front)
    moment = client.next_send_s(front)
    for k in range(len(engines)):
        event, _, acts_s = next_event(engines[k])
        if event != END:
            moment = min(moment, acts_s)
    return moment


def dispatch(front: Engine, engines: tuple[Engine, ...], r: int, moment: float) -> bool:
    """Send a request to the best server, and return whether any server accepts requests.

    If no server accepts requests, the request waits at the router.
    """
    most, least = -1, NO_QUEUE
    for k in range(len(engines)):
        look_if_due(engines[k], moment)
        most = max(most, longest_queue(engines[k]))
        least = min(least, shortest_queue(engines[k]))
    chosen, copy, highest, drawn = -1, -1, -np.inf, -1.0
    for k in range(len(engines)):
        best, score, draw = best_copy(engines[k], r, most, least)
        if best >= 0 and (score > highest or (score == highest and draw > drawn)):
            chosen, copy, highest, drawn = k, best, score, draw
    if chosen < 0:
        client.pass_on(front, r, moment)
        return False
    front.counters.routed += 1
    take(engines[chosen], copy, front.counters.routed)
    asked, mine = front.requests[r], engines[chosen].requests[r]
    mine.source, mine.warmup = copy, asked.warmup
    mine.timeout_s = max(asked.sent_s + asked.timeout_s - moment, 0.0)
    client.push_ending(engines[chosen], r, moment)
    return True


compiled_inside(__name__)

compiled_advance_fleet, compiled_dispatch = compiled(advance_fleet), compiled(dispatch)
compiled_next_moment = compiled(next_moment)
