"""The records of a simulation's state, which compiled and plain Python code share.

A run is resumable: these records are its whole state, so the loop may return when a buffer is full
and continue after it was emptied.
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

#: A record type.
Item = TypeVar("Item", covariant=True)


class Records(Protocol[Item]):
    """An array of records: a structured array, or a list of objects for plain Python."""

    @overload
    def __getitem__(self, place: int | tuple[int, ...], /) -> Item: ...
    @overload
    def __getitem__(self, field: str, /) -> np.ndarray: ...
    def __getitem__(self, key: Any, /) -> Any:
        """Return one record by its index, or a field of all records by its name."""

    def __len__(self) -> int: ...


def record_dtype(kind: type) -> np.dtype:
    """Return the numpy type of a record: its fields in their order."""
    hints = get_type_hints(kind, include_extras=True)
    return np.dtype([(name, *hint.__metadata__) for name, hint in hints.items()], align=True)


#: Status of a request, after ``vllm/v1/request.py: RequestStatus``.
UNSENT, SENT, WAITING, LOADING, PREEMPTED, RUNNING, FINISHED, TIMED_OUT, REJECTED, LOST = range(10)

#: Role of an engine: serves whole requests, computes prompts, decodes after a KV transfer, or
#: serves the requests that a fleet's router sends it.
ALONE, PREFILLS, DECODES, SERVES = range(4)

#: Rules by which a router chooses a copy of the deployment, see ``pinn.simulator.router``.
#: Without a rule the engine's own load balancer spreads requests over all replicas.
NO_ROUTER, RANDOM, IN_TURN, LEAST_REQUESTS, PREFIX_AWARE = range(5)

#: Replaces a request's number of transferred tokens once they have arrived.
ARRIVED = -1


#: Kinds of a second KV tier: none, vLLM's connector in early releases, and with jobs; LMCache,
#: which loads before a step computes and stores before it ends; and SGLang's HiCache, which stores
#: nodes of a radix tree.
NO_TIER, BY_REQUEST, BY_JOB, BY_STEP, BY_NODE = range(5)

#: Lists of a tier's chunks: unused ones, ARC's T1 (the only list of LRU) and T2, and the ghosts
#: that each has evicted. The first chunks of the array are the ends of the lists.
UNUSED, RECENT, FREQUENT, WAS_RECENT, WAS_FREQUENT, LISTS = range(6)


#: Kinds of transfers of a tier, and their progress.
STORE, LOAD = range(2)
PLANNED, MOVING, SEEN, DONE = range(4)


class Request:
    """State of a request; the fields that every step touches fit one cache line."""

    prompt: I4
    output: I4
    computed: I4  # num_computed_tokens
    generated: I4  # num_output_tokens
    placeholders: I4  # num_output_placeholders
    blocks: I4  # blocks of the cache group that has hashes
    keyed_blocks: I4  # num_cached_block
    extra_blocks: I4  # blocks of the other KV cache groups
    slot: I4  # row of the block table; -1 without blocks
    status: I4
    in_flight: I4  # batches in flight that include the request
    stale: I4  # batches in flight from before it was preempted
    last_s: F8  # engine time of the last token, or of the abort
    gap_start_s: F8  # when the API server began to stream the previous token
    worked: I8  # tokens computed, recomputation included
    replica: I8
    stage: I4
    before: I8  # previous request in its queue
    after: I8
    transferred: I8
    preemptions: I4
    cached_tokens: I4  # num_cached_tokens at its first scheduling
    reused_tokens: I4  # tokens found in the cache over all its schedulings
    first_key: I8
    offset_s: F8
    timeout_s: F8
    ready_s: F8  # when its transferred keys and values have arrived
    sent_s: F8
    handed_s: F8  # when it enters the engine's input queue
    queued_s: F8
    scheduled_s: F8
    first_s: F8  # engine time of the first token
    first_sent_s: F8  # when the API server has sent the first token
    last_sent_s: F8
    scheduling_s: F8  # delays that only the client sees
    preemption_s: F8
    early_preemption_s: F8  # preemption delay before the first token
    early_preemptions: I8
    recomputed_tokens: I8  # sum of the tokens known at each preemption
    # Work of the API server since it was last idle, when it handed over the request, sent its first
    # token and sent its last one.
    handed_work: Work
    first_work: Work
    last_work: Work
    source: I8  # prefill worker of its keys and values, or copy that a fleet's router chose
    loading_s: F8  # when blocks for the transferred keys and values were allocated
    moved: I8  # transferred tokens that were not cached
    eligible: I8  # first scheduling in which it may decode again
    token_s: F8  # when the last batch ends that samples a token for it
    unverified: I8  # draft tokens among the computed ones, in batches in flight
    drafted_tokens: I8  # draft tokens that steps have verified
    accepted_tokens: I8  # draft tokens that were accepted
    follower: I8  # request that is sent when this one ends, or -1
    follows: I4  # whether it is sent when another request ends
    warmup: I4  # whether it belongs to the warm-up
    is_chunk: I8  # is_prefill_chunk: whether its last batch left some of its known tokens out
    # State in a second KV tier, see ``pinn.simulator.offloading``.
    arriving: I4  # tokens that are cached once its load has ended
    first_seen: I8  # its first entry in ``tier_seen``; requests that share keys share entries
    tier_chunks: I4  # chunks that are stored or need no store
    tier_end: I4  # end of the chunks that it has stored
    tier_blocks: I4  # its number of blocks when it was last scheduled
    tier_jobs: I4  # transfers in flight
    tier_row: I4  # its row of the block table when it ended; -1 without blocks
    tier_stores: I1  # whether it has stored anything
    tier_frees: I1  # whether a later step frees its row
    prefilling: I1  # whether its prompt is being computed or loaded
    tier_turn: I8  # number of the scheduling step in which the request was new
    tier_rank: I8
    loaded_tokens: I8
    stored_tokens: I8
    load_wait_s: F8
    node: I8  # tree node up to which its tokens are in the tree
    inserted: I4  # blocks that it has inserted into the tree


class Server:
    """An API server process: it takes requests in and streams tokens out, one at a time."""

    free_s: F8
    came_s: F8  # when its last task arrived
    start_s: F8  # when the process begins to stream the tokens of the last step
    work: Work  # work since it was last idle: requests, their prompt tokens, tokens sent


class Queue:
    """A linked queue of requests: its first and last request, -1 if empty."""

    size: I8
    head: I8
    tail: I8


class Replica:
    """A replica of the engine."""

    running: I8
    free_blocks: I8
    held_blocks: I8  # blocks held, a shared block counted once per request
    free_slots: I8
    new: I8  # requests that the last scheduling started
    preempted: I8
    tokens: I8
    schedulings: I8  # current_step
    column: I8  # place of the batch under construction
    sums: Sums  # sums of that batch, see ``STEP_COLUMNS``
    now_s: F8  # start time of that batch
    longest_chunk: I8  # longest chunk of the last scheduling; 0 for no limit
    seen_waiting: I8  # waiting requests in the load balancer's view
    seen_running: I8
    handed_s: F8
    transfer_free_s: F8
    prompts_wait: I8  # whether new prompts are kept out of the batch under construction
    # whether all requests but last tokens of prompts are padded, see ``pinn.simulator.lockstep``
    paced: I8
    has_chunks: I8  # whether the batch has more than a prompt's last token
    unserved: I8  # whether prompts were left waiting in the last scheduling that could take them
    since_prompts: I8  # batches since the last one with prompt chunks
    padding: I8  # padding rows up to the CUDA graph's size
    # State of schedules with separate prefill steps, after ``sglang/srt/managers/scheduler.py``.
    chunked: I8  # chunked_req: the request with a partly computed prompt, or -1
    full: I8  # running_batch.batch_is_full
    ended: I8  # requests that have ended since the last scheduling
    unfiltered: I8  # requests that ended before and that running_batch still counts
    alone: I8  # whether running_batch was empty when the last prefill batch ran
    last_prompts: I8  # whether the last batch was a prefill batch
    polls: I8  # SchedulerRecvSkipper._counter
    expected: F8  # new_token_ratio
    # State of a second KV tier.
    link_free_s: F8  # when the link to the host is free
    heard_s: F8  # when the scheduler last learnt of ended batches
    tier_target: F8  # ARC's target_t1_size
    jobs_first: I8  # oldest transfer in flight
    jobs_made: I8
    seen_ends: I8  # transfers that a worker knows to have ended and the scheduler does not
    events: I8  # counts of transfers: planned, begun, seen to end, reported
    flushes: I8  # transfers that the next batch waits for
    gone: I8  # requests that have ended since the last scheduling
    rows: I8  # rows of the block table that are freed later
    steps_planned: I8  # number of batches with tokens
    steps_done: I8  # number of those that have ended
    ranks: I8
    heaped: I8  # entries of the heap of evictable chunks
    idle_chunks: I8  # evictable chunks
    stored_chunks: I8
    evicted_chunks: I8
    full_stores: I8  # stores that found no room in the tier
    # State of a radix tree, see ``pinn.simulator.radix_tree``.
    unused: I8  # unused blocks
    evictable: I8  # blocks of unlocked nodes
    wanted: I8  # blocks that the batch under construction will take
    wanting: I8  # requests that will take those blocks
    host_free: I8  # unused chunks of the tier
    ticks: I8  # number of node uses so far
    free_nodes: I8
    leaves: Pair  # numbers of evictable leaves on the GPU and in host memory
    matched: I8  # last node of the latest match that is on the GPU
    best: I8  # last node of the latest match on either tier
    host_hits: I8  # blocks between those two nodes
    doubles: I8  # first and last node in the list of nodes on both tiers
    last_double: I8
    load_free_s: F8  # when the link from the host is free
    load_start_s: F8  # when the loads of the batch under construction begin
    load_s: F8  # duration of those loads
    planned: I8  # transfers that have not begun
    loads: I8  # loads that the scheduler does not know to have ended


class Copy:
    """A copy of the deployment, behind a router or a load balancer."""

    closed: I8  # whether the router sends it no requests
    turn: I8  # number of the router's latest choice of this copy
    seen_requests: I8  # unfinished and waiting requests in the router's view
    seen_waiting: I8
    seen_usage: F8  # KV cache usage in the router's view
    turns: I8  # requests that its load balancer has placed
    publish_s: F8  # when its load balancer next learns the queue lengths


class Group:
    """Replicas that step together: one for a dense model, all of a mixture of experts."""

    in_flight: I8
    launched: I8  # replicas with tokens in the running step
    oldest: I8
    wake_s: F8
    now_s: F8
    gpu_free_s: F8
    last_end_s: F8
    waited: I8  # steps that prompts have waited for others
    turns: I8  # batches since it was last idle
    shared: Sums  # work of the shared experts in a step, per rank
    events: I8  # transfer events at the last launch of a step without tokens


class Stage:
    """A load stage."""

    start_s: F8
    size: I8  # requests of the stage


class Block:
    """A block of the KV cache; entry 0 is the sentinel of the free list."""

    after: I4  # next block in the free list
    before: I4
    references: I4
    key: I4  # key of its content, or -1
    twin: I4  # next block with the same key, or 0


class Chunk:
    """A chunk of KV blocks in host memory; the first chunks are the ends of lists."""

    after: I4  # next chunk in its list
    before: I4
    key: I4  # key of its last block
    references: I4  # number of loads; -1 while being stored; for a list's end, chunks of the list
    heap: I4  # index in the heap of evictable chunks, or -1
    kept: I1  # list that it is in
    spared: I1  # whether it must not be evicted now
    owner: I8  # request or job that has stored it
    rank: I8


class Node:
    """A run of blocks in a radix tree; node 0 stands for no node, node 1 is the root."""

    parent: I4
    child: I4  # its first child, and its siblings
    before: I4
    after: I4
    children: I4
    gpu_children: I4  # children on the GPU
    first: I8  # index of its first block in the keys
    blocks: I4
    locks: I4
    hits: I4
    on_gpu: I1
    on_host: I1
    held: I1  # whether its copy in host memory is in use
    listed: I1  # whether it is in the list of nodes on both tiers
    double_before: I4
    double_after: I4
    loading: I8  # number of the transfer that loads it, from 1, or 0
    used: I8  # tick of its last use
    place: Pair  # indices in the two heaps of leaves, or -1


class Job:
    """A transfer between GPU and host, see ``pinn.simulator.offloading``."""

    request: I8
    planned: I8  # number of the scheduling that planned it
    column: I8  # batch whose end reports the transfer's end to the scheduler
    first: I4  # its first and last chunk of the request
    end: I4
    blocks: I4
    kind: I1
    progress: I1
    flush: I1
    end_s: F8


class Row:
    """Blocks of a request that has ended, to be freed later."""

    request: I8
    fence: I8
    column: I8
    slot: I4
    blocks: I4
    keyed_blocks: I4
    extra_blocks: I4


class Transfer:
    """Record of a transfer between GPU and host."""

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
    prompts: I1  # whether it is a prefill batch


class Entry:
    """A request in a batch."""

    request: I8
    new: I4  # tokens computed in the batch
    cached: I4  # tokens computed before the batch
    prefill: I1
    sampled: I1  # tokens that it may generate


class Guess:
    """A request in the admission check of whether memory lasts until it ends."""

    left: I8  # tokens that it is expected to generate still
    held: I8  # tokens that it holds


class Event:
    """An event of a request at a point in time."""

    moment_s: F8
    request: I8


class Gap:
    """A run of equal ITL gaps."""

    seconds: F8
    count: I8
    tokens: I8  # tokens that arrive together at the end of each gap


#: Record types whose fields are read by name.
REQUEST, STAGE = record_dtype(Request), record_dtype(Stage)
TRANSFER = record_dtype(Transfer)

SUMS = tuple(f.name for f in fields(BatchSums))

#: Sums beside ``SUMS``: over prefill chunks, new tokens x (whole prompt + half the new tokens),
#: which is how the Go simulator counts prefill attention.
PROMPT_REACH = "prompt_reach"

#: Context tokens of decodes that are read from the GPU's cache, see ``pinn.specs.batch.Batch``.
REREAD_TOKENS = "reread_tokens"

#: Sums that determine the experts' work, in the order of ``SUMS``.
SHARED_SUMS = SUMS[:3]

#: Columns of a recorded step. The sums are those of the slowest replica; the shared ones are the
#: experts' work of all replicas of its group, per replica.
STEP_COLUMNS = (
    "start_s", "duration_s", "group", "requests", "tokens", "running", "waiting", "used_blocks",
    "new", "preempted", *SUMS, PROMPT_REACH, REREAD_TOKENS, *(f"shared_{s}" for s in SHARED_SUMS),
)  # fmt: skip
FIRST_SUM = STEP_COLUMNS.index(SUMS[0])
#: Index of ``REREAD_TOKENS`` in the sums of a batch.
REREAD = STEP_COLUMNS.index(REREAD_TOKENS) - FIRST_SUM
#: Index of the first column of ``SHARED_SUMS``.
FIRST_SHARED = STEP_COLUMNS.index(REREAD_TOKENS) + 1
