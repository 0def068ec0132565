"""The records of a simulation's state, which compiled and plain Python code share.

A run is resumable: everything lives in them, so the loop may return when a record buffer is full
and go on after it was emptied.
"""

from dataclasses import fields
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar, get_type_hints, overload

import numpy as np

from pinn.physics.batch_sums import BatchSums

#: Types of the fields of a record.
I1: TypeAlias = Annotated[int, "i1"]
I4: TypeAlias = Annotated[int, "i4"]
I8: TypeAlias = Annotated[int, "i8"]
F8: TypeAlias = Annotated[float, "f8"]
Work: TypeAlias = Annotated[np.ndarray, "f8", 3]
Sums: TypeAlias = Annotated[np.ndarray, "f8", 11]
Pair: TypeAlias = Annotated[np.ndarray, "i4", 2]

#: A record.
Item = TypeVar("Item", covariant=True)


class Records(Protocol[Item]):
    """An array of records: a structured array, or a list of objects for plain Python."""

    @overload
    def __getitem__(self, place: int | tuple[int, ...], /) -> Item: ...
    @overload
    def __getitem__(self, field: str, /) -> np.ndarray: ...
    def __getitem__(self, key: Any, /) -> Any:
        """One record by its place, or a field of all by its name."""

    def __len__(self) -> int: ...


def record_dtype(kind: type) -> np.dtype:
    """Return the numpy type of a record: its fields in their order."""
    hints = get_type_hints(kind, include_extras=True)
    return np.dtype([(name, *hint.__metadata__) for name, hint in hints.items()], align=True)


#: Life of a request, after ``vllm/v1/request.py: RequestStatus``.
UNSENT, SENT, WAITING, LOADING, PREEMPTED, RUNNING, FINISHED, TIMED_OUT, REJECTED, LOST = range(10)

#: What an engine does of a request: all of it, its prompt, its answer from a prompt's keys and
#: values on, or all of those that a fleet's router sends it.
ALONE, PREFILLS, DECODES, SERVES = range(4)

#: Rules by which a router chooses a copy of the deployment, see ``pinn.simulator.router``; without
#: one all replicas stand behind the engine's own load balancer.
NO_ROUTER, RANDOM, IN_TURN, LEAST_REQUESTS, PREFIX_AWARE = range(5)

#: In place of a request's transferred tokens, once they are there.
ARRIVED = -1


#: Second tiers of keys and values: none, vLLM's connector as it was at first, and with jobs;
#: LMCache, whose steps load before they compute and store before they end; and SGLang's HiCache,
#: which stores the nodes of a radix tree.
NO_TIER, BY_REQUEST, BY_JOB, BY_STEP, BY_NODE = range(5)

#: Lists of a tier's chunks: unused ones, ARC's T1 (LRU's only list) and T2, and what these have
#: evicted. The first chunks of the array are their ends.
UNUSED, RECENT, FREQUENT, WAS_RECENT, WAS_FREQUENT, LISTS = range(6)


#: What a transfer of a tier does, and how far it is.
STORE, LOAD = range(2)
PLANNED, MOVING, SEEN, DONE = range(4)


class Request:
    """A request. What every step touches comes first, in one cache line."""

    prompt: I4
    output: I4
    computed: I4  # num_computed_tokens
    generated: I4  # num_output_tokens
    placeholders: I4  # num_output_placeholders
    blocks: I4  # blocks of the group whose blocks have hashes
    keyed_blocks: I4  # num_cached_block
    extra_blocks: I4  # blocks of the other KV cache groups
    slot: I4  # row of the block table; -1 without blocks
    status: I4
    in_flight: I4  # batches in flight that hold it
    stale: I4  # of those, from before it was preempted
    last_s: F8  # engine time of the last token, or of the abort
    gap_start_s: F8  # when the API server began to stream the token before
    worked: I8  # tokens computed, recomputation included
    replica: I8
    stage: I4
    before: I8  # neighbours in the queue that it is in
    after: I8
    transferred: I8
    preemptions: I4
    cached_tokens: I4  # num_cached_tokens at its first scheduling
    reused_tokens: I4  # tokens found in the cache over all its schedulings
    first_key: I8
    offset_s: F8
    timeout_s: F8
    ready_s: F8  # when its transferred keys and values are there
    sent_s: F8
    handed_s: F8  # in the engine's input queue
    queued_s: F8
    scheduled_s: F8
    first_s: F8  # engine time of the first token
    first_sent_s: F8  # when the API server had sent it
    last_sent_s: F8
    scheduling_s: F8  # delays that the client sees and the engine does not
    preemption_s: F8
    early_preemption_s: F8  # of that, before the first token
    early_preemptions: I8
    recomputed_tokens: I8  # tokens known at each preemption, together
    # Work of the API server, since it was last idle, up to the request's hand-over, its first
    # and its last token.
    handed_work: Work
    first_work: Work
    last_work: Work
    source: I8  # prefill worker that has its keys and values, or copy that a fleet's router chose
    loading_s: F8  # when their blocks were there
    moved: I8  # tokens of them that were not there before
    eligible: I8  # scheduling from which on it may decode again
    token_s: F8  # when the last batch that samples for it ends
    unverified: I8  # drafted tokens among those computed, in batches in flight
    drafted_tokens: I8  # tokens that steps have verified
    accepted_tokens: I8  # of those
    follower: I8  # request that is sent when this one has ended, or -1
    follows: I4  # whether it is such a request
    warmup: I4  # whether it is not measured
    is_chunk: I8  # is_prefill_chunk: whether its last batch left some of its known tokens out
    # Of a second tier of keys and values, see ``pinn.simulator.offloading``.
    arriving: I4  # tokens that are there once its load has ended
    first_seen: I8  # its first block in ``tier_seen``; keys may stand in one place for several
    tier_chunks: I4  # chunks that are stored, or need not be
    tier_end: I4  # chunks that it has stored up to
    tier_blocks: I4  # its blocks when it was last scheduled
    tier_jobs: I4  # transfers on their way
    tier_row: I4  # its row of the block table when it ended; -1 without blocks
    tier_stores: I1  # whether it has stored anything
    tier_frees: I1  # whether its row is freed with a later step
    prefilling: I1  # whether its prompt is on its way, computed or loaded
    tier_turn: I8  # scheduling in which it was new
    tier_rank: I8
    loaded_tokens: I8
    stored_tokens: I8
    load_wait_s: F8
    node: I8  # of the radix tree, up to which it holds what is in the tree
    inserted: I4  # blocks that it has put into the tree


class Server:
    """An API server process: it takes requests in and streams tokens out, one at a time."""

    free_s: F8
    came_s: F8  # when its last task came
    start_s: F8  # when it begins with the tokens of the step that has just ended
    work: Work  # since it was last idle: requests, their prompt tokens, tokens sent


class Queue:
    """Requests that are in line, by the first and the last of them; -1 without any."""

    size: I8
    head: I8
    tail: I8


class Replica:
    """A replica of the engine."""

    running: I8
    free_blocks: I8
    held_blocks: I8  # by each request for itself: a shared block counts for all of them
    free_slots: I8
    new: I8  # requests scheduled for the first time in the last scheduling
    preempted: I8
    tokens: I8
    schedulings: I8  # current_step
    column: I8  # of the batch that is being made up
    sums: Sums  # of that batch, see ``STEP_COLUMNS``
    now_s: F8  # and the moment
    longest_chunk: I8  # of the last scheduling; 0 for no limit
    seen_waiting: I8  # what the load balancer believes
    seen_running: I8
    handed_s: F8
    transfer_free_s: F8
    prompts_wait: I8  # whether new prompts are kept out of the batch that is being made up
    paced: I8  # whether all are but a prompt's last token, see ``pinn.simulator.lockstep``
    has_chunks: I8  # whether it has more of one
    unserved: I8  # whether prompts were left waiting when they last were not
    since_prompts: I8  # batches since the last one with chunks
    padding: I8  # rows that round the decodes up to a CUDA graph
    # Of schedules with prompts apart, after ``sglang/srt/managers/scheduler.py``.
    chunked: I8  # chunked_req: the request whose prompt goes on, or -1
    full: I8  # running_batch.batch_is_full
    ended: I8  # requests that have ended since the last schedule
    unfiltered: I8  # and those of before that running_batch still counts
    alone: I8  # whether running_batch was empty beside the last batch of prompts
    last_prompts: I8  # whether the last batch was of prompts
    polls: I8  # SchedulerRecvSkipper._counter
    expected: F8  # new_token_ratio
    # Of a second tier.
    link_free_s: F8  # when the link to the host is free
    heard_s: F8  # when the scheduler has last heard of ended batches
    tier_target: F8  # ARC's target_t1_size
    jobs_first: I8  # oldest transfer on its way
    jobs_made: I8
    seen_ends: I8  # transfers whose end a worker has seen and the scheduler has not
    events: I8  # of transfers: planned, begun, seen to end, heard of
    flushes: I8  # transfers that the next batch waits for
    gone: I8  # requests that have ended since the last scheduling
    rows: I8  # rows of blocks that are freed later
    steps_planned: I8  # batches with tokens
    steps_done: I8  # of those
    ranks: I8
    heaped: I8  # entries of the heap of evictable chunks
    idle_chunks: I8  # chunks that could be evicted
    stored_chunks: I8
    evicted_chunks: I8
    full_stores: I8  # stores that found no room
    # Of a radix tree, see ``pinn.simulator.radix_tree``.
    unused: I8  # blocks that hold nothing
    evictable: I8  # blocks of nodes that nothing locks
    wanted: I8  # blocks that the batch that is being made up is about to take
    wanting: I8  # requests that it takes them for
    host_free: I8  # chunks of the tier that hold nothing
    ticks: I8  # uses of nodes so far
    free_nodes: I8
    leaves: Pair  # evictable leaves on the GPU and in host memory
    matched: I8  # last node on the GPU of the last match
    best: I8  # last node of it at all
    host_hits: I8  # blocks between them
    doubles: I8  # first node in the list of those on both tiers, and the last
    last_double: I8
    load_free_s: F8  # when the way from the host is free
    load_start_s: F8  # when the loads of the batch begin that is being made up
    load_s: F8  # how long they take
    planned: I8  # transfers that have not begun
    loads: I8  # loads that the scheduler has not heard of


class Copy:
    """A copy of the deployment, behind a router or a load balancer."""

    closed: I8  # whether the router sends it nothing
    turn: I8  # when the router chose it last, as the number of that choice
    seen_requests: I8  # what the router believes: not ended, waiting for a place in a batch
    seen_waiting: I8
    seen_usage: F8  # of the KV cache
    turns: I8  # of its own load balancer
    publish_s: F8  # when that learns of the replicas next


class Group:
    """Replicas that step together: one for a dense model, all of a mixture of experts."""

    in_flight: I8
    launched: I8  # of those, with tokens
    oldest: I8
    wake_s: F8
    now_s: F8
    gpu_free_s: F8
    last_end_s: F8
    waited: I8  # steps that prompts have waited for others
    turns: I8  # batches since it was last idle
    shared: Sums  # what the experts work on in a step, per rank
    events: I8  # of transfers, when a step without tokens was last launched


class Stage:
    """A load stage."""

    start_s: F8
    size: I8  # requests


class Block:
    """A block of the KV cache; entry 0 is the sentinel of the free list."""

    after: I4  # neighbours in the free list
    before: I4
    references: I4
    key: I4  # of its content, or -1
    twin: I4  # next block with the same key, or 0


class Chunk:
    """Blocks of keys and values in host memory; the first entries are the ends of lists."""

    after: I4  # neighbours in its list
    before: I4
    key: I4  # of its last block
    references: I4  # loads of it; -1 while it is stored; chunks of a list, of its end
    heap: I4  # place in the heap of evictable chunks, or -1
    kept: I1  # which list it is in
    spared: I1  # whether it is not to be evicted now
    owner: I8  # who has stored it
    rank: I8


class Node:
    """A run of blocks in a radix tree; node 0 is none, node 1 the root."""

    parent: I4
    child: I4  # first of its children, and its neighbours among those of its parent
    before: I4
    after: I4
    children: I4
    gpu_children: I4  # of those, on the GPU
    first: I8  # place of its first block in the keys
    blocks: I4
    locks: I4
    hits: I4
    on_gpu: I1
    on_host: I1
    held: I1  # whether its copy in host memory is in use
    listed: I1  # whether it is in the list of nodes on both tiers
    double_before: I4
    double_after: I4
    loading: I8  # transfer that loads it, counted from 1, or 0
    used: I8  # tick of its last use
    place: Pair  # in the heaps of leaves, or -1


class Job:
    """A transfer between GPU and host, see ``pinn.simulator.offloading``."""

    request: I8
    planned: I8  # scheduling
    column: I8  # batch whose end tells the scheduler that it has ended
    first: I4  # chunks of the request
    end: I4
    blocks: I4
    kind: I1
    progress: I1
    flush: I1
    end_s: F8


class Row:
    """Blocks of a request that has ended, which are freed later."""

    request: I8
    fence: I8
    column: I8
    slot: I4
    blocks: I4
    keyed_blocks: I4
    extra_blocks: I4


class Transfer:
    """A transfer between GPU and host as it is recorded."""

    request: I8
    replica: I4
    kind: I4
    blocks: I8
    planned_s: F8  # when it was submitted
    start_s: F8
    end_s: F8


class Batch:
    """A batch of a replica, in flight or being made up."""

    size: I8
    prompts: I1  # whether it is of prompts alone


class Entry:
    """A request in a batch."""

    request: I8
    new: I4  # tokens
    cached: I4  # tokens before them
    prefill: I1
    sampled: I1  # tokens that may come of it


class Guess:
    """A request of which an admission asks whether memory lasts until it has ended."""

    left: I8  # tokens that it will still write
    held: I8  # tokens that it holds


class Event:
    """Something that happens to a request at a moment."""

    moment_s: F8
    request: I8


class Gap:
    """A run of equal ITL gaps."""

    seconds: F8
    count: I8
    tokens: I8  # that come together at the end of each of them


#: The records that are read by the names of their fields.
REQUEST, STAGE = record_dtype(Request), record_dtype(Stage)
TRANSFER = record_dtype(Transfer)

SUMS = tuple(f.name for f in fields(BatchSums))

#: Beside ``SUMS``: over the prefill chunks, new tokens x (whole prompt + half the new tokens), the
#: reach of prefill attention as the Go simulator counts it.
PROMPT_REACH = "prompt_reach"

#: Tokens of the decodes' contexts that come from the GPU's cache, see ``pinn.specs.batch.Batch``.
REREAD_TOKENS = "reread_tokens"

#: Sums that the experts' work depends on, in the order of ``SUMS``.
SHARED_SUMS = SUMS[:3]

#: Columns of a recorded step; the sums are those of the replica that took longest, the shared ones
#: what the experts of all its group's replicas work on, per replica.
STEP_COLUMNS = (
    "start_s", "duration_s", "group", "requests", "tokens", "running", "waiting", "used_blocks",
    "new", "preempted", *SUMS, PROMPT_REACH, REREAD_TOKENS, *(f"shared_{s}" for s in SHARED_SUMS),
)  # fmt: skip
FIRST_SUM = STEP_COLUMNS.index(SUMS[0])
#: Place of ``REREAD_TOKENS`` among the sums of a batch.
REREAD = STEP_COLUMNS.index(REREAD_TOKENS) - FIRST_SUM
#: Column of the first of ``SHARED_SUMS``.
FIRST_SHARED = STEP_COLUMNS.index(REREAD_TOKENS) + 1
