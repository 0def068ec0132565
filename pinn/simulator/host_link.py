"""Transfers of keys and values between GPU and host, and blocks that wait for transfers.

Models three parts of vLLM: the worker side of the OffloadingConnector
(``OffloadingConnectorWorker``), the scheduler's handling of completed jobs, and
``Scheduler._free_request`` with a connector. A store planned in one step begins with the next step,
after the GPU's work before that step. A load begins immediately. One link carries stores and loads,
one transfer at a time. A worker detects completed transfers when it launches a batch, and the
scheduler learns of them when that batch ends.
"""

import numpy as np

from pinn.simulator import blocks, tiers
from pinn.simulator.compiler import compiled_inside
from pinn.simulator.engine import Engine
from pinn.simulator.state import (
    BY_JOB,
    BY_NODE,
    BY_REQUEST,
    BY_STEP,
    DONE,
    LOAD,
    LOADING,
    MOVING,
    PLANNED,
    SEEN,
    STORE,
    TIMED_OUT,
    Job,
    Replica,
    Request,
)
from pinn.simulator.tiers import NOT_READY

# Transfer jobs between GPU and host, from planning until the scheduler learns that they have ended.


def add_job(
    engine: Engine, replica: int, r: int, kind: int, first: int, end: int, size: int
) -> None:
    """Plan a transfer of ``size`` KV blocks: chunks ``first`` to ``end`` - 1 of a request."""
    state = engine.replicas[replica]
    job = blocks.job_of(engine, replica, state.jobs_made)
    job.request, job.kind, job.first, job.end, job.blocks = r, kind, first, end, size
    job.progress, job.flush, job.planned, job.end_s = PLANNED, 0, state.schedulings, np.inf
    state.jobs_made += 1
    state.events += 1
    engine.requests[r].tier_jobs += kind == STORE or engine.config.tier == BY_JOB


def fence_ended(engine: Engine, replica: int, r: int) -> None:
    """Make later users of a finished request's KV blocks wait until its last store completes."""
    request, state = engine.requests[r], engine.replicas[replica]
    if engine.config.tier != BY_JOB or request.tier_row < 0:
        return
    _fence(engine, replica, request, request.tier_row, state.jobs_made - 1)
    job, size = blocks.job_of(engine, replica, state.jobs_made - 1), engine.config.tier_chunk_blocks
    for i in range(job.first * size, job.end * size):
        block = engine.table[replica, request.tier_row, i]
        if engine.stamps[replica, block] == state.schedulings:
            blocks.note_block(engine, replica, block)


def _fence(engine: Engine, replica: int, request: Request, row: int, number: int) -> None:
    job, size = blocks.job_of(engine, replica, number), engine.config.tier_chunk_blocks
    for i in range(job.first, job.end):
        place = tiers.find_chunk(engine, replica, tiers.chunk_key(engine, request, i))
        if place > 0 and engine.tier[replica, place].owner == number:
            for j in range(i * size, (i + 1) * size):
                engine.fences[replica, engine.table[replica, row, j]] = number + 1


def launch(engine: Engine, replica: int, computed_s: float, column: int) -> float:
    """Begin the transfers of a step, and record which earlier transfers have completed.

    Return the time in seconds when the step's batch can begin.

    Args:
        engine: State of the engine.
        replica: Index of the replica.
        computed_s: Time in seconds when the GPU has computed the blocks that earlier steps store.
        column: Index of the batch at whose end the scheduler learns of completed transfers.
    """
    state = engine.replicas[replica]
    if engine.config.tier == BY_NODE:
        return float(state.heard_s)
    held_s, flushes = state.now_s, state.flushes > 0
    if engine.config.tier == BY_STEP:
        held_s = max(held_s, _begin(engine, replica, LOAD, held_s))
    if flushes:
        held_s = max(held_s, _begin(engine, replica, STORE, computed_s))
    if engine.config.tier != BY_STEP:
        _begin(engine, replica, LOAD, state.now_s)
        if not flushes:
            _begin(engine, replica, STORE, computed_s)
    state.flushes = 0
    for number in range(state.jobs_first, state.jobs_made):
        job = blocks.job_of(engine, replica, number)
        if job.progress == MOVING and job.end_s <= held_s:
            job.progress, job.column = SEEN, column
            state.seen_ends += 1
            state.events += 1
            if engine.config.tier == BY_REQUEST and job.kind == STORE:
                engine.requests[job.request].tier_jobs -= 1
    if engine.config.tier == BY_REQUEST:
        for i in range(state.rows):
            row = engine.rows[replica, i]
            if row.column < 0 and engine.requests[row.request].tier_jobs == 0:
                row.column = column
                state.seen_ends += 1
                state.events += 1
    return held_s


def store_in_step(engine: Engine, replica: int, column: int, computed_s: float) -> float:
    """Run a batch's stores before its step ends; return the time in seconds when they end."""
    end_s = _begin(engine, replica, STORE, computed_s)
    state = engine.replicas[replica]
    for number in range(state.jobs_first, state.jobs_made):
        job = blocks.job_of(engine, replica, number)
        if job.progress == MOVING:
            job.progress, job.column = SEEN, column
            state.seen_ends += 1
            state.events += 1
    return end_s


def loaded_s(engine: Engine, replica: int, start_s: float, duration_s: float) -> float:
    """Return the end time of a batch whose layers each wait for their share of the KV loads.

    The batch ends when both of these are done: all layers, starting after the first layer's share
    of the loads; and the last layer, starting after all loads.
    """
    state = engine.replicas[replica]
    layer = 1.0 / engine.config.tier_layers
    first = max(state.load_start_s + state.load_s * layer, start_s) + duration_s
    return float(max(first, state.load_start_s + state.load_s + duration_s * layer))


def _begin(engine: Engine, replica: int, kind: int, ready_s: float) -> float:
    """Begin the planned transfers of one kind (stores or loads) on the link to the host.

    Return the end time in seconds of the last transfer that the next batch waits for, or 0.
    """
    state, config, flushed_s = engine.replicas[replica], engine.config, 0.0
    for number in range(state.jobs_first, state.jobs_made):
        job = blocks.job_of(engine, replica, number)
        if job.kind != kind:
            continue
        waits = kind == STORE and job.planned == state.schedulings and not job.flush
        waits = waits and config.tier != BY_STEP
        if job.progress == PLANNED and not waits:
            start = max(ready_s, state.link_free_s)
            job.end_s = start + config.host_latency_s + job.blocks * config.host_block_s
            job.progress, state.link_free_s = MOVING, job.end_s
            state.events += 1
            _record(engine, replica, job, start)
        preempted = config.tier == BY_REQUEST and _lost(engine, replica, job.request)
        waited = job.flush or preempted or config.tier == BY_STEP
        if job.progress == MOVING and waited:
            flushed_s = max(flushed_s, job.end_s)
    return flushed_s


def _lost(engine: Engine, replica: int, r: int) -> bool:
    """Return whether the last scheduler call preempted a request."""
    for i in range(engine.replicas[replica].preempted):  # noqa: SIM110  no generators compile
        if engine.preempted[replica, i] == r:
            return True
    return False


def _record(engine: Engine, replica: int, job: Job, start: float) -> None:
    row = engine.transfers[engine.counters.n_transfers]
    row.request, row.replica, row.kind = job.request, replica, job.kind
    row.blocks, row.start_s, row.end_s = job.blocks, start, job.end_s
    row.planned_s = engine.replicas[replica].now_s
    engine.counters.n_transfers += 1


def deliver(engine: Engine, replica: int, column: int) -> None:
    """Process completed transfers at the end of a batch (``update_connector_output``)."""
    state = engine.replicas[replica]
    if state.seen_ends == 0:
        return
    for number in range(state.jobs_first, state.jobs_made):
        job = blocks.job_of(engine, replica, number)
        if job.progress == SEEN and job.column == column:
            _end_job(engine, replica, number)
            state.seen_ends -= 1
            state.events += 1
    while state.jobs_first < state.jobs_made:
        if blocks.job_of(engine, replica, state.jobs_first).progress != DONE:
            break
        state.jobs_first += 1
    if engine.config.tier == BY_REQUEST:
        _free_stored(engine, replica, column)


def _end_job(engine: Engine, replica: int, number: int) -> None:
    job = blocks.job_of(engine, replica, number)
    request = engine.requests[job.request]
    job.progress = DONE
    if engine.config.tier == BY_JOB:
        request.tier_jobs -= 1
        if job.kind == STORE:
            complete(engine, replica, request, number, job.first, job.end)
    if job.kind == STORE:
        if engine.config.tier == BY_STEP:
            complete(engine, replica, request, job.request, job.first, job.end)
        return
    for i in range(job.first, job.end):
        place = tiers.find_chunk(engine, replica, tiers.chunk_key(engine, request, i))
        engine.tier[replica, place].references -= 1
        if engine.tier[replica, place].references == 0:
            engine.replicas[replica].idle_chunks += 1
    if request.status == LOADING:
        request.ready_s = 0.0
        request.load_wait_s += engine.replicas[replica].heard_s - request.loading_s
    elif request.slot >= 0 and request.status == TIMED_OUT and engine.config.tier == BY_JOB:
        blocks.free_request(engine, replica, job.request)


def complete(
    engine: Engine, replica: int, request: Request, owner: int, first: int, end: int
) -> None:
    """Mark a request's stored chunks as readable (``complete_store``)."""
    for i in range(first, end):
        place = tiers.find_chunk(engine, replica, tiers.chunk_key(engine, request, i))
        chunk = engine.tier[replica, place]
        if place > 0 and chunk.owner == owner and chunk.references == NOT_READY:
            chunk.references = 0
            engine.replicas[replica].idle_chunks += 1


# Release of the KV blocks of ended requests, immediately or after transfers and batches.


def leave(engine: Engine, replica: int, r: int) -> None:
    """Free a finished request's blocks, immediately or once no transfer or batch uses them."""
    config, request, state = engine.config, engine.requests[r], engine.replicas[replica]
    engine.gone[replica, state.gone] = r
    state.gone += 1
    if config.tier == BY_NODE:
        return
    if config.tier == BY_REQUEST:
        if request.tier_stores:
            _set_aside(engine, replica, r, 0)
        blocks.free_request(engine, replica, r)
        return
    if engine.config.tier == BY_STEP:
        blocks.free_request(engine, replica, r)
        return
    if request.slot < 0:
        return
    if request.tier_jobs > 0:
        for number in range(state.jobs_first, state.jobs_made):
            job = blocks.job_of(engine, replica, number)
            if job.request == r and job.progress != DONE:
                if job.kind == LOAD:  # ``_end_job`` frees the blocks when the load has ended
                    return
                _fence(engine, replica, request, request.slot, number)
    request.tier_row, request.tier_frees = request.slot, 0
    if config.defers_frees and request.in_flight > 0:
        request.tier_frees = 1
        _set_aside(engine, replica, r, state.steps_planned)
    else:
        blocks.free_blocks(engine, replica, r)


def _set_aside(engine: Engine, replica: int, r: int, fence: int) -> None:
    """Keep a finished request's blocks until its transfers and batches in flight complete."""
    request, state = engine.requests[r], engine.replicas[replica]
    row = engine.rows[replica, state.rows]
    row.request, row.slot, row.fence, row.column = r, request.slot, fence, -1
    row.blocks, row.keyed_blocks = request.blocks, request.keyed_blocks
    row.extra_blocks = request.extra_blocks
    request.slot, request.blocks, request.keyed_blocks, request.extra_blocks = -1, 0, 0, 0
    state.rows += 1


def free_processed(engine: Engine, replica: int, column: int) -> None:
    """Free finished requests' blocks once no batch in flight can write to them.

    Mirrors ``_drain_deferred_frees``.
    """
    state = engine.replicas[replica]
    if engine.batches[replica, column].size == 0:
        return
    state.steps_done += 1
    if engine.config.tier == BY_JOB and state.rows > 0:
        _free_rows(engine, replica, -1)


def _free_stored(engine: Engine, replica: int, column: int) -> None:
    """Free the blocks of finished requests whose stores have all completed."""
    state = engine.replicas[replica]
    for i in range(state.rows):
        row = engine.rows[replica, i]
        if row.column == column:
            complete(engine, replica, engine.requests[row.request], row.request, 0,
                      engine.requests[row.request].tier_end)  # fmt: skip
            state.seen_ends -= 1
            state.events += 1
    _free_rows(engine, replica, column)


def _free_rows(engine: Engine, replica: int, column: int) -> None:
    state = engine.replicas[replica]
    kept = 0
    for i in range(state.rows):
        row = engine.rows[replica, i]
        due = row.column == column if column >= 0 else row.fence <= state.steps_done
        if due:
            request = engine.requests[row.request]
            request.slot, request.blocks, request.keyed_blocks = (
                row.slot,
                row.blocks,
                row.keyed_blocks,
            )
            request.extra_blocks = row.extra_blocks
            blocks.free_request(engine, replica, row.request)
            continue
        to = engine.rows[replica, kept]
        to.request, to.slot, to.fence, to.column = row.request, row.slot, row.fence, row.column
        to.blocks, to.keyed_blocks = row.blocks, row.keyed_blocks
        to.extra_blocks = row.extra_blocks
        kept += 1
    state.rows = kept


def return_slot(engine: Engine, replica: int, slot: int) -> None:
    """Mark a row of the block table as free."""
    state = engine.replicas[replica]
    engine.slot_stack[replica, state.free_slots] = slot
    state.free_slots += 1


def busy(engine: Engine, replica: int) -> bool:
    """Return whether an engine without requests keeps stepping because transfers are unfinished."""
    state: Replica = engine.replicas[replica]
    if engine.config.tier == BY_JOB:
        return state.gone > 0 or state.jobs_first < state.jobs_made
    return engine.config.tier != BY_STEP and state.gone > 0


def next_end_s(engine: Engine, replica: int) -> float:
    """Return the completion time in seconds of the transfer that completes next.

    Return infinity if no transfer is running, or if an idle engine does not poll for its
    completion.
    """
    state, moment = engine.replicas[replica], np.inf
    polls = busy(engine, replica) or state.running + engine.waiting[replica].size > 0
    for number in range(state.jobs_first, state.jobs_made if polls else state.jobs_first):
        job = blocks.job_of(engine, replica, number)
        if job.progress == MOVING:
            moment = min(moment, job.end_s)
    return float(moment)


compiled_inside(__name__)
