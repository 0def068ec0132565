"""Clients that send requests, and the API servers between clients and replicas."""

import numpy as np

from pinn.simulator import blocks, host_link
from pinn.simulator.compiler import compiled_inside
from pinn.simulator.draws import uniform_number
from pinn.simulator.engine import Engine
from pinn.simulator.router import route
from pinn.simulator.state import (
    BY_NODE,
    DECODES,
    FINISHED,
    PREEMPTED,
    REJECTED,
    RUNNING,
    SENT,
    TIMED_OUT,
    Request,
    Server,
)

# Numbering of data-parallel replicas and API servers. A simulation may have several servers; the
# replicas of the first server come first. If the replicas of a server share experts, they step
# together as one group; otherwise each replica is its own group.


def group_of(engine: Engine, replica: int) -> int:
    """Return the index of a replica's group; the replicas of a group run every step together."""
    return replica * engine.config.n_groups // engine.config.n_replicas


def first_of(engine: Engine, group: int) -> int:
    """Return the index of the first replica of a group."""
    return group * (engine.config.n_replicas // engine.config.n_groups)


def replicas_of(engine: Engine, group: int) -> range:
    """Return the indices of the replicas in a group."""
    return range(first_of(engine, group), first_of(engine, group + 1))


def first_server(engine: Engine, replica: int) -> int:
    """Return the index of the first API server process of a replica's server."""
    config = engine.config
    return replica * config.n_copies // config.n_replicas * (config.n_servers // config.n_copies)


def server_of(engine: Engine, r: int) -> Server:
    """Return the API server process that handles a request, chosen round-robin within a server.

    With several servers, each round of requests over the servers starts at a different process.
    Otherwise round-robin routing would leave some processes without requests.
    """
    config = engine.config
    begin = r // config.n_replicas if config.n_copies > 1 else 0
    turn = (begin + r) % (config.n_servers // config.n_copies)
    return engine.servers[first_server(engine, engine.requests[r].replica) + turn]


# API servers: processes that accept requests and stream tokens, one task at a time. Mirrors
# ``vllm/entrypoints/openai/api_server.py`` and ``vllm/v1/engine/async_llm.py``, which run in one
# process under one interpreter lock. One type of task parses and tokenizes a request
# (``AsyncLLM.add_request``), the other sends the tokens of a step (``output_handler``). Tasks run
# in order of arrival. With several processes (``--api-server-count``), requests are distributed
# round-robin; the operating system's actual choice is not modelled.


def take_in(engine: Engine, r: int, work_s: float) -> float:
    """Process a request in its API server and return the time of completion, in seconds."""
    request, server = engine.requests[r], server_of(engine, r)
    _begin(server, request.sent_s)
    server.work[0] += 1
    server.work[1] += request.prompt
    server.free_s = max(server.free_s, request.sent_s) + work_s
    request.handed_work[:] = server.work
    return server.free_s


def hear_of_step(engine: Engine, now: float) -> None:
    """Set the time at which each API server starts to stream the tokens of a step.

    It is the end of the step, ``now`` (s), or later if the server is still busy.
    """
    for i in range(engine.config.n_servers):
        server = engine.servers[i]
        server.start_s = max(server.free_s, now)


def stream(server: Server, now: float, token_s: float) -> None:
    """Count one streamed token of a step that ended at ``now``; it takes ``token_s`` seconds."""
    _begin(server, now)
    server.work[2] += 1
    server.free_s = max(server.free_s, now) + token_s


def _begin(server: Server, now: float) -> None:
    """Reset an API server's work counters if the server is idle when a task arrives at ``now``.

    The server counts as busy if another task arrived at the same time, even if that task takes no
    time, or if the task arrives exactly when the previous one ends.
    """
    if server.free_s < now and server.came_s < now:
        server.work[0] = server.work[1] = server.work[2] = 0.0
    server.came_s = now


# Delayed prompts: while requests decode, new prompts wait, so that one step computes several
# prompts.
#
# For TensorRT-LLM, mirrors ``_waiting_requests`` of ``tensorrt_llm/_torch/pyexecutor/
# py_executor.py``, and under attention data parallelism ``_balance_adp_requests`` (neither verified
# in the source). For SGLang, mirrors ``sglang/srt/managers/prefill_delayer.py`` of 0.5.23, which
# delays prompts if only some ranks have one. Its cache watermark and its waits for a free batch or
# a longer queue are not modelled. Unlike in SGLang, a prompt that waits for KV blocks counts as
# runnable. Ranks of a dense model are not in lockstep, so no rank waits for another.


def prompts_wait(engine: Engine, group: int) -> bool:
    """Return whether new prompts wait during a group's next step, and count the steps they wait."""
    if engine.config.prompt_wait_steps == 0:
        return False
    if engine.config.waits_for_all:
        return _waits_for_all(engine, group)
    return _waits_for_tokens(engine, group)


def _waits_for_tokens(engine: Engine, group: int) -> bool:
    """Return whether new prompts wait until a step would have enough tokens (TensorRT-LLM).

    They wait for at most ``prompt_wait_steps`` steps.
    """
    config, state = engine.config, engine.groups[group]
    replica = first_of(engine, group)
    if not _has_prompt(engine, replica) or engine.replicas[replica].running == 0:
        return False
    few = _step_tokens(engine, replica) < config.prompt_wait_tokens
    waits = few and state.waited < config.prompt_wait_steps
    state.waited = state.waited + 1 if waits else 0
    return waits


def _waits_for_all(engine: Engine, group: int) -> bool:
    """Return whether prompts wait until every replica has one (attention data parallelism).

    SGLang counts only steps in which at least one replica has a prompt, and also waits for idle
    replicas.
    """
    state, replicas = engine.groups[group], replicas_of(engine, group)
    prompts = decodes = 0
    for replica in replicas:
        prompts += _has_prompt(engine, replica)
        decodes += engine.replicas[replica].running > 0
    if engine.config.prefill_first:
        may_wait = 0 < prompts < len(replicas) and decodes > 0
    else:
        may_wait = prompts < len(replicas) and decodes == len(replicas)
    waits = may_wait and state.waited + 1 < engine.config.prompt_wait_steps
    state.waited = state.waited + 1 if waits else 0
    return waits


def _has_prompt(engine: Engine, replica: int) -> bool:
    """Return whether a replica has a runnable prompt, either new or partly computed."""
    state = engine.replicas[replica]
    if state.chunked >= 0:
        return True
    return engine.waiting[replica].size > 0 and state.running < engine.config.max_seqs


def _step_tokens(engine: Engine, replica: int) -> int:
    """Return the number of tokens of a step that computes all decodes and all waiting prompts.

    The count stops at ``prompt_wait_tokens``, because a step of this size delays no prompt.
    """
    config = engine.config
    tokens = engine.replicas[replica].running * (1 + config.drafts)
    r = engine.waiting[replica].head
    while r >= 0 and tokens < config.prompt_wait_tokens:
        request = engine.requests[r]
        tokens += request.prompt + request.generated - request.computed
        r = request.after
    return tokens


# Speculative decoding: how many of the verified draft tokens a request keeps.
#
# Draft tokens are accepted up to the first that the model would not generate. Later draft tokens
# count as not computed (``vllm/v1/core/sched/scheduler.py: Scheduler.update_from_output``). The
# random number for each acceptance depends only on the request and the position in its output, so
# that compared runs use the same random numbers.


def verified_tokens(engine: Engine, r: int, sampled: int) -> int:
    """Return the number of tokens that a decode generates: the next token and the accepted drafts.

    Args:
        engine: State of the engine.
        r: Index of the request.
        sampled: Number of tokens that the step sampled for the request: 1 + its draft tokens.
    """
    request, drafted = engine.requests[r], sampled - 1
    if drafted == 0:
        return 1
    number, accepted = uniform_number(r, request.generated), 0
    most = min(drafted, engine.config.n_chances)
    while accepted < most and number < engine.chances[accepted]:
        accepted += 1
    request.drafted_tokens += drafted
    request.accepted_tokens += accepted
    accepted = min(accepted, request.output - request.generated - 1)
    if request.unverified >= drafted:  # false if a preemption has reset ``unverified``
        request.unverified -= drafted
        request.computed -= drafted - accepted
    request.worked -= drafted - accepted
    return 1 + accepted


# Clients: send times of requests, choice of replicas, and client timeouts.


def next_send_s(engine: Engine) -> float:
    """Return the time in seconds when a client sends the next request; infinity if unknown."""
    counters = engine.counters
    if engine.config.role >= DECODES:
        return engine.endings[0].moment_s if counters.endings > 0 else np.inf
    due_s = engine.due[0].moment_s if counters.due > 0 else np.inf
    return min(_next_start_s(engine), due_s)


def _next_start_s(engine: Engine) -> float:
    """Return the time in seconds at which the next single request or conversation begins."""
    config, counters = engine.config, engine.counters
    if counters.next == config.n_requests:
        return np.inf
    request = engine.requests[counters.next]
    if request.stage != counters.open_stage:
        return np.inf
    moment = counters.opened_s + request.offset_s
    if config.concurrency > 0:
        while counters.endings > 0 and engine.endings[0].moment_s <= moment:
            pop_ending(engine)
            counters.sent -= 1
        if counters.sent >= config.concurrency:
            return engine.endings[0].moment_s if counters.endings > 0 else np.inf
    return moment


def push_ending(engine: Engine, r: int, moment: float) -> None:
    """Push a request onto the heap of end times, with the time ``moment`` (s).

    It is the time when a client sees the request end. In an engine that receives its requests from
    another engine or from a router, it is the time when the request arrives.
    """
    counters = engine.counters
    blocks.push_heap(engine.endings, counters.endings, moment, r)
    counters.endings += 1


def pop_ending(engine: Engine) -> int:
    """Pop the request that ends first from the heap of end times; return its index."""
    counters = engine.counters
    counters.endings -= 1
    return blocks.pop_heap(engine.endings, counters.endings + 1)


def send(engine: Engine, moment: float) -> int:
    """Send the next request and return its index; return -1 if the server rejects it immediately.

    Under a concurrency limit the request occupies the slot that was freed first. A conversation
    keeps its slot across turns.
    """
    config, counters = engine.config, engine.counters
    if config.role >= DECODES:
        # Requests handed over by another engine, such as the prefill pool, keep their order.
        r = pop_ending(engine)
    elif counters.due > 0 and engine.due[0].moment_s <= moment:
        r = blocks.pop_heap(engine.due, counters.due)
        counters.due -= 1
    else:
        r = counters.next
        counters.next += 1
        while counters.next < config.n_requests and engine.requests[counters.next].follows:
            counters.next += 1
    request = engine.requests[r]
    if config.role < DECODES:
        request.warmup = counters.all_sent < config.warmup_requests or moment < config.warmup_s
        counters.all_sent += 1
    if config.concurrency > 0 and not request.follows:
        if counters.sent >= config.concurrency:
            pop_ending(engine)
        else:
            counters.sent += 1
    request.sent_s = moment
    if request.status == REJECTED:
        request.last_s = moment
        resolve(engine, r, moment)
        return -1
    request.status = SENT
    request.replica = route(engine, r, moment)
    return r


def hand_over(engine: Engine, r: int, work_s: float) -> None:
    """Pass a request from its API server to the engine.

    Requests to the same replica stay in order of arrival, regardless of which API server handles
    them.
    """
    counters, request = engine.counters, engine.requests[r]
    state = engine.replicas[request.replica]
    state.handed_s = max(state.handed_s, take_in(engine, r, work_s))
    request.handed_s = state.handed_s
    blocks.append(engine, engine.input[request.replica], r)
    group = engine.groups[group_of(engine, request.replica)]
    if group.in_flight == 0:
        group.wake_s = min(group.wake_s, request.handed_s)
    if request.timeout_s < np.inf:
        deadline = request.sent_s + request.timeout_s
        blocks.push_heap(engine.deadlines, counters.deadlines, deadline, r)
        counters.deadlines += 1


def resolve(engine: Engine, r: int, moment: float) -> None:
    """Record that a client sees its request end.

    The next turn of a conversation becomes due, or the client's concurrency slot becomes free. If
    no request of the load stage is left, the next stage starts.
    """
    config, counters = engine.config, engine.counters
    if config.role >= DECODES:
        pass_on(engine, r, moment)
        return
    follower = engine.requests[r].follower
    if follower >= 0:
        due_s = moment + engine.requests[follower].offset_s
        blocks.push_heap(engine.due, counters.due, due_s, follower)
        counters.due += 1
    elif config.concurrency > 0:
        push_ending(engine, r, moment)
    counters.progress += 1
    counters.stage_end_s = max(counters.stage_end_s, moment)
    if engine.requests[r].stage == counters.open_stage:
        counters.unresolved -= 1
    if config.stages_wait and counters.unresolved == 0:
        _open_stage(engine, counters.stage_end_s + config.stage_gap_s)


def pass_on(engine: Engine, r: int, moment: float) -> None:
    """Pass a request to another engine, such as that of the other P/D pool, at ``moment`` (s)."""
    counters = engine.counters
    leaving = engine.leaving[counters.leaving]
    leaving.moment_s, leaving.request = moment, r
    counters.leaving += 1
    counters.progress += 1


def _open_stage(engine: Engine, moment: float) -> None:
    counters = engine.counters
    counters.open_stage += 1
    counters.opened_s = moment
    if counters.open_stage < engine.config.n_stages:
        counters.unresolved = engine.stages[counters.open_stage].size


def open_next_stage(engine: Engine) -> None:
    """Open the load stages that are due, once earlier stages have sent all their requests."""
    config, counters = engine.config, engine.counters
    if config.stages_wait or counters.next == config.n_requests:
        return
    if engine.requests[counters.next].stage > counters.open_stage:
        _open_stage(engine, engine.stages[counters.open_stage + 1].start_s)


def hang_up(engine: Engine, now: float) -> None:
    """Disconnect clients whose timeout has passed, and abort their requests.

    As in ``EngineCore._process_aborts_queue`` and ``Scheduler.finish_requests``, blocks are freed
    immediately, even those used by a batch in flight. The engine aborts requests at its next
    iteration.
    """
    counters = engine.counters
    while counters.deadlines > 0 and engine.deadlines[0].moment_s <= now:
        deadline = engine.deadlines[0].moment_s
        r = blocks.pop_heap(engine.deadlines, counters.deadlines)
        counters.deadlines -= 1
        request = engine.requests[r]
        status = request.status
        if status == FINISHED:
            continue
        request.status = TIMED_OUT
        if status == RUNNING:
            _drop_ended(engine, request.replica)
        elif status != SENT:
            blocks.remove(engine, engine.waiting[request.replica], r)
        if engine.config.tier > 0 and status != SENT:
            host_link.leave(engine, request.replica, r)
        else:
            blocks.free_request(engine, request.replica, r)
        request.last_s = deadline
        resolve(engine, r, deadline)


# End of a step: sampled tokens are added to their requests, and finished requests leave. Mirrors
# ``vllm/v1/core/sched/scheduler.py: Scheduler.update_from_output`` and
# ``AsyncScheduler._update_request_with_output``.


def update_from_output(
    engine: Engine, replica: int, column: int, now: float, token_s: float, completion_s: float
) -> None:
    """Add the tokens that batch ``column`` sampled to its requests, at engine time ``now`` (s)."""
    config, batch = engine.config, engine.batches[replica, column]
    hear_of_step(engine, now)
    if config.tier > 0:
        host_link.free_processed(engine, replica, column)
    if config.n_watched > 1:
        engine.replicas[replica].now_s = now
    finished = 0
    for i in range(batch.size):
        entry = engine.entries[replica, column, i]
        sampled, r = int(entry.sampled), entry.request
        request = engine.requests[r]
        request.in_flight -= 1
        stale = request.stale > 0
        request.stale -= stale
        if sampled == 0 or request.status == TIMED_OUT or request.status == FINISHED:
            continue
        if config.prefill_first and request.status == PREEMPTED:
            # SGLang drops the sampled tokens of a retracted request.
            request.placeholders -= sampled
            continue
        server = server_of(engine, r)
        stream(server, now, token_s)
        _append_tokens(engine, request, server, now, verified_tokens(engine, r, sampled))
        if config.asynchronous and not stale:
            request.placeholders -= sampled
        ends = request.generated == request.output
        # SGLang's radix tree adds prompts once they are computed, and outputs once their requests
        # end.
        in_tree = ends or batch.prompts > 0
        findable = in_tree if config.prefill_first else config.asynchronous > 0
        if findable and request.status == RUNNING:
            # In SGLang, a finished request also caches the token computed by a step in flight.
            in_flight = 0 if config.prefill_first and ends else request.placeholders
            known = request.prompt + request.generated
            # Draft tokens planned beyond the last output token have no keys in the prefix cache.
            if config.tier != BY_NODE:
                known = min(request.computed - in_flight, known)
                blocks.key_blocks(engine, replica, request, known)
            elif not ends:  # for ended requests, ``_finish`` makes this call
                host_link.leave(engine, replica, r)
        if ends:
            finished += request.status == RUNNING
            request.last_sent_s = server.free_s
            request.last_work[:] = server.work
            _finish(engine, replica, r, completion_s)
    if finished > 0:
        engine.replicas[replica].ended += finished
        _drop_ended(engine, replica)
    if config.tier > 0:
        engine.replicas[replica].heard_s = now
        host_link.deliver(engine, replica, column)


def _append_tokens(
    engine: Engine, request: Request, server: Server, now: float, tokens: int
) -> None:
    """Record a request's new tokens and the inter-token gap since its previous tokens.

    The gap is the time between the starts of streaming the previous and the new tokens. All
    requests of a batch have the same gap.
    """
    counters = engine.counters
    request.generated += tokens
    counters.progress += 1
    request.last_s = now
    if request.generated == 1:
        request.first_s = now
        request.first_sent_s = server.free_s
        request.first_work[:] = server.work
        request.early_preemption_s = request.preemption_s
        request.early_preemptions = request.preemptions
    elif not request.warmup:
        gap = server.start_s - request.gap_start_s
        run = engine.gaps[max(counters.n_gaps - 1, 0)]
        same = run.seconds == gap and run.tokens == tokens and run.stage == request.stage
        if counters.n_gaps == 0 or not same:
            run = engine.gaps[counters.n_gaps]
            run.seconds, run.count, run.tokens, run.stage = gap, 0, tokens, request.stage
            counters.n_gaps += 1
        run.count += 1
    request.gap_start_s = server.start_s


def _finish(engine: Engine, replica: int, r: int, completion_s: float) -> None:
    """Finish a running or preempted request that has generated all its tokens."""
    request = engine.requests[r]
    if request.status == PREEMPTED:
        blocks.remove(engine, engine.waiting[replica], r)
    request.status = FINISHED
    if engine.config.tier > 0:
        host_link.leave(engine, replica, r)
    else:
        blocks.free_request(engine, replica, r)
    delay = request.scheduling_s + request.preemption_s + completion_s
    if engine.config.role:  # in P/D or a fleet, another engine takes over a finished request
        pass_on(engine, r, request.last_sent_s + delay)
    else:
        resolve(engine, r, request.last_sent_s + delay)


def _drop_ended(engine: Engine, replica: int) -> None:
    """Remove requests that are no longer running from the running list, preserving its order."""
    state = engine.replicas[replica]
    kept = 0
    for i in range(state.running):
        if engine.requests[engine.running[replica, i]].status == RUNNING:
            engine.running[replica, kept] = engine.running[replica, i]
            kept += 1
    state.running = kept


compiled_inside(__name__)
