"""Routing of a request to a server, and to a data-parallel replica of that server.

When a request arrives, the router chooses a server by its view of the servers: unfinished requests,
queue lengths, KV cache usage, and cached blocks. The router updates its view at most every
``router_interval_s`` seconds, or for each request if the interval is 0. Every routing policy
computes a score per server. The server with the highest score is chosen, and ties are broken at
random.

The load balancer of the chosen server then chooses a data-parallel rank. Without a router the load
balancer chooses among all replicas.
"""

import numpy as np

from pinn.simulator.blocks import cached_blocks
from pinn.simulator.compiler import compiled_inside
from pinn.simulator.draws import uniform_number
from pinn.simulator.engine import Engine
from pinn.simulator.state import IN_TURN, LEAST_REQUESTS, NO_ROUTER, PREFIX_AWARE, SERVES

#: Minimum interval, in seconds, between two reports of queue lengths from the coordinator to the
#: load balancer (``vllm/v1/engine/coordinator.py: DPCoordinatorProc``,
#: ``min_stats_update_interval_ms``).
PUBLISH_INTERVAL_S = 0.1
#: Index of the router's first random number for a request, above the indices of output tokens.
_DRAWS = 1 << 30
#: Value returned by :func:`shortest_queue` if no server is open.
NO_QUEUE = 1 << 60


def route(engine: Engine, r: int, moment: float) -> int:
    """Return the index of the replica that receives a request."""
    config = engine.config
    if config.n_replicas == 1:
        return 0
    if config.router == NO_ROUTER:
        return _balance(engine, moment, 0, config.n_replicas)
    copy, ranks = 0, config.n_replicas // config.n_copies
    if config.role == SERVES:
        copy = engine.requests[r].source
    elif config.n_copies > 1:
        copy = _choose(engine, r, moment)
    return _balance(engine, moment, copy * ranks, ranks)


def _balance(engine: Engine, moment: float, first: int, count: int) -> int:
    """Return the data-parallel rank to which the load balancer sends a request.

    As in vLLM's client, it is the rank with the minimum of 4 x waiting + running requests. Between
    two reports of the coordinator, the client adds the requests that it has sent. If
    ``least_loaded`` is not set, the ranks take turns.
    """
    config = engine.config
    balancer = engine.copies[first * config.n_copies // config.n_replicas]
    if not config.least_loaded:
        balancer.turns += 1
        return first + (balancer.turns - 1) % count
    if moment >= balancer.publish_s:
        for replica in range(first, first + count):
            state = engine.replicas[replica]
            state.seen_waiting = engine.waiting[replica].size
            state.seen_running = state.running
        balancer.publish_s = (np.floor(moment / PUBLISH_INTERVAL_S) + 1) * PUBLISH_INTERVAL_S
    best, least = first, 1 << 60
    for replica in range(first, first + count):
        state = engine.replicas[replica]
        score = 4 * state.seen_waiting + state.seen_running
        if score < least:
            best, least = replica, score
    engine.replicas[best].seen_waiting += 1
    return best


def _choose(engine: Engine, r: int, moment: float) -> int:
    """Return the available server with the highest score, and count the request as sent."""
    look_if_due(engine, moment)
    most, least = longest_queue(engine), shortest_queue(engine)
    copy, _, _ = best_copy(engine, r, most, least)
    engine.counters.routed += 1
    take(engine, copy, engine.counters.routed)
    return copy


def take(engine: Engine, copy: int, number: int) -> None:
    """Count a request as sent to a server; ``number`` is the router's number of choices so far."""
    engine.copies[copy].turn = number
    engine.copies[copy].seen_requests += 1


def longest_queue(engine: Engine) -> int:
    """Return the maximum queue length of available servers as the router sees it; -1 if none."""
    found = -1
    for copy in range(engine.config.n_copies):
        if not engine.copies[copy].closed:
            found = max(found, engine.copies[copy].seen_waiting)
    return found


def shortest_queue(engine: Engine) -> int:
    """Return the minimum queue length of available servers as the router sees it."""
    found = NO_QUEUE
    for copy in range(engine.config.n_copies):
        if not engine.copies[copy].closed:
            found = min(found, engine.copies[copy].seen_waiting)
    return found


def best_copy(engine: Engine, r: int, most: int, least: int) -> tuple[int, float, float]:
    """Return the best available server, its score, and the random number that breaks ties.

    Args:
        engine: State of the engine whose servers are compared.
        r: Index of the request.
        most: Maximum queue length of all servers, including those of other engines.
        least: Minimum queue length of all servers, including those of other engines.
    """
    best, highest, drawn = -1, -np.inf, -1.0
    for copy in range(engine.config.n_copies):
        if engine.copies[copy].closed:
            continue
        score = _score(engine, copy, r, most, least)
        if score < highest:
            continue
        draw = uniform_number(r, _DRAWS + engine.config.first_copy + copy)
        if score > highest or draw > drawn:
            best, highest, drawn = copy, score, draw
    return best, highest, drawn


def look_if_due(engine: Engine, moment: float) -> None:
    """Update the router's view of every server, if the next update is due."""
    if moment >= engine.counters.look_s:
        _look(engine, moment)


def _look(engine: Engine, moment: float) -> None:
    """Update the router's view of every server."""
    config, counters = engine.config, engine.counters
    ranks = config.n_replicas // config.n_copies
    for copy in range(config.n_copies):
        requests = waiting = used = 0
        for replica in range(copy * ranks, (copy + 1) * ranks):
            state = engine.replicas[replica]
            queued = engine.input[replica].size + engine.waiting[replica].size
            waiting += queued
            requests += queued + state.running
            used += config.blocks - state.free_blocks
        seen = engine.copies[copy]
        seen.seen_requests, seen.seen_waiting = requests, waiting
        seen.seen_usage = used / (ranks * config.kv_blocks)
    counters.looked_s = moment
    if config.router_interval_s > 0:
        looks = np.floor(moment / config.router_interval_s) + 1
        counters.look_s = looks * config.router_interval_s


def _score(engine: Engine, copy: int, r: int, most: int, least: int) -> float:
    """Return the score of a server under the routing policy; the highest score wins.

    Under random routing, all servers have equal scores.

    Under ``prefix-aware`` routing the score is the weighted sum of three numbers from 0 to 1, as in
    ``pinn.engines.routers``: 1 for the shortest queue to 0 for the longest, the free share of the
    KV cache, and the cached share of the prompt's blocks.
    """
    config, seen = engine.config, engine.copies[copy]
    if config.router == IN_TURN:
        return -float(seen.turn)
    if config.router == LEAST_REQUESTS:
        return -float(seen.seen_requests)
    if config.router != PREFIX_AWARE:
        return 0.0
    queue = (most - seen.seen_waiting) / (most - least) if most > least else 1.0
    score = config.queue_weight * queue + config.usage_weight * (1.0 - seen.seen_usage)
    if config.prefix_weight > 0:
        score += config.prefix_weight * _prefix_score(engine, copy, r)
    return score


def _prefix_score(engine: Engine, copy: int, r: int) -> float:
    """Return the share of a prompt's blocks that a server has cached, in the router's view."""
    config, ranks = engine.config, engine.config.n_replicas // engine.config.n_copies
    full = engine.requests[r].prompt // config.block_tokens
    if full == 0 or not config.prefix_caching:
        return 0.0
    hits = 0
    for replica in range(copy * ranks, (copy + 1) * ranks):
        if config.n_watched > 1:
            hits = max(hits, _seen_blocks(engine, replica, r, full))
        else:
            hits = max(hits, cached_blocks(engine, replica, r))
    return hits / full


def _seen_blocks(engine: Engine, replica: int, r: int, full: int) -> int:
    """Return how many leading blocks of a prompt were cached at the router's last update.

    A block key that entered or left the cache after this update had the opposite state before.
    """
    looked_s, first = engine.counters.looked_s, engine.requests[r].first_key
    for hits in range(full):
        key = engine.keys[first + hits]
        cached = engine.holder[replica, key] != 0
        if cached != (engine.key_s[replica, key] < looked_s):
            return hits
    return full


compiled_inside(__name__)
