"""KV transfers of SGLang's HiCache between GPU and host memory.

A transfer stores one node of the radix tree, or loads all nodes on the path to a node.

Mirrors ``sglang/srt/managers/cache_controller.py``. Stores and loads run on separate streams, so
the link can carry a store and a load simultaneously. The transfers in each stream run in order.
"""

import numpy as np

from pinn.simulator import blocks
from pinn.simulator import radix_tree as tree
from pinn.simulator.compiler import compiled_inside
from pinn.simulator.engine import Engine
from pinn.simulator.radix_tree import ROOT
from pinn.simulator.state import DONE, LOAD, MOVING, PLANNED, STORE


def plan(engine: Engine, replica: int, r: int, kind: int, n: int, size: int) -> None:
    """Plan a transfer that stores node ``n``, or that loads all nodes on the path to node ``n``."""
    state = engine.replicas[replica]
    job = blocks.job_of(engine, replica, state.jobs_made)
    job.request, job.kind, job.first, job.blocks = r, kind, n, size
    job.progress, job.end_s = PLANNED, np.inf
    state.jobs_made += 1
    state.planned += 1
    state.loads += kind == LOAD


def begin(engine: Engine, replica: int, kind: int, ready_s: float) -> float:
    """Begin all planned stores or all planned loads as one transfer; return its time in seconds."""
    state = engine.replicas[replica]
    size, r = 0, -1
    for number in range(_first_planned(engine, replica), state.jobs_made):
        job = blocks.job_of(engine, replica, number)
        if job.progress == PLANNED and job.kind == kind:
            size, r = size + job.blocks, job.request
    if size == 0:
        return 0.0
    seconds = engine.config.host_latency_s + size * engine.config.host_block_s
    start = max(ready_s, state.load_free_s if kind == LOAD else state.link_free_s)
    if kind == LOAD:
        state.load_free_s, state.load_start_s = start + seconds, start
    else:
        state.link_free_s = start + seconds
    for number in range(_first_planned(engine, replica), state.jobs_made):
        job = blocks.job_of(engine, replica, number)
        if job.progress == PLANNED and job.kind == kind:
            job.progress, job.end_s = MOVING, start + seconds
            state.planned -= 1
    row = engine.transfers[engine.counters.n_transfers]
    row.request, row.replica, row.kind, row.blocks = r, replica, kind, size
    row.planned_s, row.start_s, row.end_s = ready_s, start, start + seconds
    engine.counters.n_transfers += 1
    return float(seconds)


def _first_planned(engine: Engine, replica: int) -> int:
    """Return the index of the oldest transfer that has not begun."""
    state = engine.replicas[replica]
    number, left = state.jobs_made, state.planned
    while left > 0:
        number -= 1
        left -= blocks.job_of(engine, replica, number).progress == PLANNED
    return int(number)


def hear_ended(engine: Engine, replica: int) -> None:
    """Unlock the radix tree nodes of completed transfers (``writing_check`` and ``loading_check``).

    Stores complete in order, as do loads, so each search stops at the first unfinished one.
    """
    state, loads = engine.replicas[replica], True
    stores = True
    for number in range(state.jobs_first, state.jobs_made):
        if not (stores or (loads and state.loads > 0)):
            break
        job = blocks.job_of(engine, replica, number)
        if job.progress != MOVING:
            continue
        if job.end_s > state.heard_s:
            stores, loads = stores and job.kind == LOAD, loads and job.kind == STORE
            continue
        job.progress = DONE
        tree.unlock(engine, replica, job.first)
        if job.kind == LOAD:
            state.loads -= 1
            _finish_load(engine, replica, job.first, number + 1)
    while state.jobs_first < state.jobs_made:
        if blocks.job_of(engine, replica, state.jobs_first).progress != DONE:
            break
        state.jobs_first += 1


def _finish_load(engine: Engine, replica: int, n: int, number: int) -> None:
    while n != ROOT:
        node = engine.nodes[replica, n]
        if node.loading == number:
            node.loading = 0
            tree.note_double(engine, replica, n)
        n = node.parent


compiled_inside(__name__)
