"""Records of a simulation's state, shared by compiled and plain Python code.

These records are the complete state of a run. The loop can therefore return when a buffer is full
and continue after the buffer has been emptied.
"""

from dataclasses import fields
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar, get_type_hints, overload

import numpy as np

from pinn.physics.batch_sums import BatchSums

#: Types of record fields, such as 1-byte integers and arrays of three floats.
I1: TypeAlias = Annotated[int, "i1"]
I4: TypeAlias = Annotated[int, "i4"]
I8: TypeAlias = Annotated[int, "i8"]
F8: TypeAlias = Annotated[float, "f8"]
Work: TypeAlias = Annotated[np.ndarray, "f8", 3]
Sums: TypeAlias = Annotated[np.ndarray, "f8", len(fields(BatchSums)) + 2]
Pair: TypeAlias = Annotated[np.ndarray, "i4", 2]

#: Type variable for a record type.
Item = TypeVar("Item", covariant=True)


class Records(Protocol[Item]):
    """Array of records: a structured array, or a list of objects in plain Python."""

    @overload
    def __getitem__(self, place: int | tuple[int, ...], /) -> Item: ...
    @overload
    def __getitem__(self, field: str, /) -> np.ndarray: ...
    def __getitem__(self, key: Any, /) -> Any:
        """Return one record by its index, or one field of all records by the field's name."""

    def __len__(self) -> int: ...


def record_dtype(kind: type) -> np.dtype:
    """Return the numpy type of a record class, with its fields in order."""
    hints = get_type_hints(kind, include_extras=True)
    return np.dtype([(name, *hint.__metadata__) for name, hint in hints.items()], align=True)


#: Status of a request, as in ``vllm/v1/request.py: RequestStatus``.
UNSENT, SENT, WAITING, LOADING, PREEMPTED, RUNNING, FINISHED, TIMED_OUT, REJECTED, LOST = range(10)

#: Role of an engine: serving whole requests, computing prompts, decoding after a KV transfer, or
#: serving the requests of a fleet's router.
ALONE, PREFILLS, DECODES, SERVES = range(4)

#: Policies by which a router chooses a server, described in ``pinn.simulator.router``. Without a
#: router, the engine's own load balancer distributes requests over all replicas.
NO_ROUTER, RANDOM, IN_TURN, LEAST_REQUESTS, PREFIX_AWARE = range(5)

#: Value of ``Request.transferred`` once the request's keys and values have arrived.
ARRIVED = -1


#: Types of a second KV tier: none; vLLM's connector in early releases; vLLM's connector with jobs;
#: LMCache, which loads before a step computes and stores before the step ends; and SGLang's
#: HiCache, which stores nodes of a radix tree.
NO_TIER, BY_REQUEST, BY_JOB, BY_STEP, BY_NODE = range(5)

#: Lists of a second KV tier's chunks: unused chunks, ARC's T1 (the only list of LRU) and T2, and
#: ghost entries of chunks evicted from T1 and T2. The first entries of the array of chunks are the
#: ends of the lists.
UNUSED, RECENT, FREQUENT, WAS_RECENT, WAS_FREQUENT, LISTS = range(6)


#: Directions of transfers to and from a second KV tier; and states of a transfer: planned, begun,
#: end known to the worker, and end known to the scheduler.
STORE, LOAD = range(2)
PLANNED, MOVING, SEEN, DONE = range(4)


class Request:
    """State of a request; the fields that every step uses fit one CPU cache line."""

    prompt: I4
    output: I4
    computed: I4  # number of tokens computed (vLLM's num_computed_tokens)
    generated: I4  # number of tokens generated (vLLM's num_output_tokens)
    placeholders: I4  # number of output tokens in flight (vLLM's num_output_placeholders)
    blocks: I4  # number of KV blocks in the cache group with hashes
    keyed_blocks: I4  # number of KV blocks in the prefix cache (vLLM's num_cached_block)
    extra_blocks: I4  # number of KV blocks in all other cache groups
    slot: I4  # row of the block table; -1 without blocks
    status: I4
    in_flight: I4  # number of batches in flight that include the request
    stale: I4  # number of batches in flight since before the request's last preemption
    last_s: F8  # engine time in seconds of the request's last token, or of its abort
    gap_start_s: F8  # time in seconds when the API server began to stream the previous token
    worked: I8  # number of tokens computed, including recomputed tokens
    replica: I8
    stage: I4
    before: I8  # previous request in this request's queue
    after: I8
    transferred: I8
    preemptions: I4
    cached_tokens: I4  # prefix cache hit in tokens when first scheduled (vLLM's num_cached_tokens)
    reused_tokens: I4  # prefix cache hits in tokens, summed over all schedulings of the request
    first_key: I8
    offset_s: F8
    timeout_s: F8
    ready_s: F8  # time in seconds when all transferred keys and values have arrived
    sent_s: F8
    handed_s: F8  # time in seconds when the request enters the engine's input queue
    queued_s: F8
    scheduled_s: F8
    first_s: F8  # engine time in seconds of the first token
    first_sent_s: F8  # time in seconds when the API server has sent the first token
    last_sent_s: F8
    scheduling_s: F8  # scheduling delay in seconds, which only the client sees
    preemption_s: F8
    early_preemption_s: F8  # preemption delays before the first token, in seconds
    early_preemptions: I8
    recomputed_tokens: I8  # prompt and generated tokens at all preemptions, summed
    # Work of the API server since it was last idle, at up to three times: when the request was
    # handed to the engine, when its first token was sent, and when its last token was sent.
    handed_work: Work
    first_work: Work
    last_work: Work
    source: I8  # prefill worker that sends keys and values, or server that a fleet's router chose
    loading_s: F8  # time in seconds when KV blocks for the transfer were allocated
    moved: I8  # number of tokens transferred to the decode server, which had cached the others
    eligible: I8  # index of the first scheduler call in which the request may decode again
    token_s: F8  # end time in seconds of the last batch that samples a token for the request
    unverified: I8  # number of draft tokens in ``computed`` that no ended step has verified yet
    drafted_tokens: I8  # number of draft tokens that steps have verified
    accepted_tokens: I8  # number of draft tokens that were accepted
    follower: I8  # request that is sent when this request ends; -1 if none
    follows: I4  # 1 if the request is sent when another request ends
    warmup: I4  # 1 for a warm-up request
    is_chunk: I8  # 1 if the last batch left known tokens uncomputed (vLLM's is_prefill_chunk)
    # State in a second KV tier, described in ``pinn.simulator.offloading``.
    arriving: I4  # number of tokens in the GPU's KV cache once the request's load has ended
    first_seen: I8  # index of the request's first entry in ``tier_seen``
    tier_chunks: I4  # number of the request's leading chunks that are stored or need no store
    tier_end: I4  # 1 + index of the last chunk stored by the request
    tier_blocks: I4  # number of KV blocks when the request was last scheduled
    tier_jobs: I4  # number of the request's transfers in flight
    tier_row: I4  # row of the block table when the request ended; -1 without blocks
    tier_stores: I1  # 1 if the request has stored a chunk
    tier_frees: I1  # 1 if a later step frees the request's row of the block table
    prefilling: I1  # 1 while the prompt is being computed or loaded
    tier_turn: I8  # index of the scheduler call that first scheduled the request
    tier_rank: I8
    tier_near: I8  # index of the chunk whose LRU rank the request set last
    loaded_tokens: I8
    stored_tokens: I8
    load_wait_s: F8
    node: I8  # last node of the radix tree on the path of the request's tokens
    inserted: I4  # number of KV blocks that the request has inserted into the radix tree


class Server:
    """API server process, which accepts requests and streams tokens, one task at a time."""

    free_s: F8
    came_s: F8  # time in seconds when the API server's last task arrived
    start_s: F8  # time in seconds when the API server begins to stream the last step's tokens
    work: Work  # work since the API server was last idle: requests, prompt tokens, tokens sent


class Queue:
    """Linked list of requests: its size, its first and its last request (-1 if empty)."""

    size: I8
    head: I8
    tail: I8


class Replica:
    """State of a data-parallel replica of the engine."""

    running: I8
    free_blocks: I8
    held_blocks: I8  # number of KV blocks in use; a shared block counts once per request
    free_slots: I8
    new: I8  # number of requests started by the last scheduler call
    preempted: I8
    tokens: I8
    schedulings: I8  # number of scheduler calls so far (vLLM's current_step)
    column: I8  # index of the batch under construction among the replica's batches
    sums: Sums  # sums over the batch under construction, such as tokens, see ``STEP_COLUMNS``
    now_s: F8  # start time in seconds of the batch under construction
    longest_chunk: I8  # maximum prompt chunk in this scheduler call, in tokens; 0 for no limit
    seen_waiting: I8  # number of waiting requests in the load balancer's view
    seen_running: I8
    handed_s: F8
    transfer_free_s: F8
    prompts_wait: I8  # 1 if the batch under construction must not start prompts
    # 1 if the batch delays prompts while other requests decode, see ``pinn.simulator.lockstep``
    paced: I8
    has_chunks: I8  # 1 if the batch computes prompt tokens other than a prompt's last token
    unserved: I8  # 1 if the last scheduler call with room for prompts left prompts waiting
    since_prompts: I8  # number of batches since the last batch with prompt chunks
    # State of schedules with separate prefill steps, as in ``sglang/srt/managers/scheduler.py``.
    chunked: I8  # request with a partly computed prompt (chunked_req), or -1
    full: I8  # 1 if no request may join the running batch (running_batch.batch_is_full)
    ended: I8  # number of requests that have ended since the last scheduler call
    unfiltered: I8  # number of requests that ended earlier but are still in running_batch
    alone: I8  # 1 if running_batch was empty when the last prefill batch ran
    last_prompts: I8  # 1 if the last batch was a prefill batch
    polls: I8  # weighted number of steps since the last poll (SchedulerRecvSkipper._counter)
    expected: F8  # expected share of requests' remaining output tokens (new_token_ratio)
    # State of a second KV tier.
    link_free_s: F8  # time in seconds when the link to the host becomes free
    heard_s: F8  # time in seconds when the scheduler last processed ended batches
    tier_target: F8  # ARC's target size of T1 (target_t1_size)
    jobs_first: I8  # index of the oldest transfer in flight
    jobs_made: I8
    seen_ends: I8  # number of transfers whose end is known to the worker, but not to the scheduler
    events: I8  # number of transfer events so far: planned, begun, ended, reported
    flushes: I8  # number of transfers that the next batch waits for
    gone: I8  # number of requests that ended after the last scheduler call
    rows: I8  # number of ended requests whose rows of the block table are freed later
    steps_planned: I8  # number of planned batches with tokens
    steps_done: I8  # number of ended batches with tokens
    ranks: I8
    idle_chunks: I8  # number of evictable chunks in host memory
    stored_chunks: I8
    evicted_chunks: I8
    full_stores: I8  # number of stores skipped because the tier was full
    # State of a radix tree, described in ``pinn.simulator.radix_tree``.
    unused: I8  # number of KV blocks on the GPU that no request and no node uses
    evictable: I8  # number of KV blocks on the GPU that belong to unlocked nodes
    wanted: I8  # number of KV blocks that the batch under construction will allocate
    wanting: I8  # number of requests for which the batch under construction will allocate blocks
    host_free: I8  # number of unused chunks in host memory
    ticks: I8  # number of uses of nodes so far, which is the clock of the LRU policy
    free_nodes: I8
    leaves: Pair  # number of evictable leaves on the GPU, and in host memory
    matched: I8  # last node of the latest prefix match that is on the GPU
    best: I8  # last node of the latest prefix match, on the GPU or in host memory
    host_hits: I8  # number of blocks between ``matched`` and ``best``
    doubles: I8  # first node in the list of nodes on the GPU and in host memory
    last_double: I8  # last node in this list
    load_free_s: F8  # time in seconds when the link from the host becomes free
    load_start_s: F8  # time in seconds when the loads of the batch under construction begin
    load_s: F8  # duration of the KV loads of the batch under construction, in seconds
    planned: I8  # number of planned transfers that have not begun
    loads: I8  # number of loads whose end is not yet known to the scheduler


class Copy:
    """State of one server behind a router or a load balancer."""

    closed: I8  # 1 if the router sends no requests to this server
    turn: I8  # index of the router's latest choice of this server
    seen_requests: I8  # number of the server's unfinished requests in the router's view
    seen_waiting: I8
    seen_usage: F8  # KV cache usage in the router's view, from 0 to 1
    turns: I8  # number of requests that the server's load balancer has sent to replicas
    publish_s: F8  # time in seconds when the load balancer next receives the queue lengths


class Group:
    """State of a group of replicas that run steps together, such as those that share experts."""

    in_flight: I8
    launched: I8  # number of batches in flight with tokens
    oldest: I8
    wake_s: F8
    now_s: F8
    gpu_free_s: F8
    last_end_s: F8
    waited: I8  # number of steps for which prompts have waited for other prompts
    turns: I8  # number of batches since the group was last idle
    shared: Sums  # experts' work in a step, shared by all ranks, divided by the number of ranks
    events: I8  # value of ``Replica.events`` when a step without tokens was last launched


class Stage:
    """Load stage of the workload, with its number of requests."""

    start_s: F8
    size: I8  # number of requests of the stage


class Block:
    """Block of the KV cache; block 0 is the sentinel of the free list."""

    after: I4  # next block in the free list
    before: I4
    references: I4
    key: I4  # key of the block's content (instead of vLLM's block hash), or -1
    twin: I4  # next block with an equal key; 0 if none


class Chunk:
    """Chunk of KV blocks in host memory; the first records are not chunks, but ends of lists."""

    after: I4  # next chunk in the list that contains this chunk
    before: I4
    key: I4  # key of the chunk's last block
    references: I4  # number of loads in progress; -1 during the store; for a list's end, its length
    kept: I1  # index of the list (``UNUSED``, ...) that contains the chunk
    spared: I1  # 1 if the chunk must not be evicted now
    owner: I8  # index of the request or transfer that stored the chunk
    rank: I8


class Node:
    """Node of a radix tree, a run of KV blocks; node 0 means no node, node 1 is the root."""

    parent: I4
    child: I4  # first child of the node
    before: I4  # previous sibling of the node
    after: I4  # next sibling of the node
    children: I4
    gpu_children: I4  # number of the node's children that are on the GPU
    first: I8  # index of the block key of the node's first KV block
    blocks: I4
    locks: I4
    hits: I4
    on_gpu: I1
    on_host: I1
    held: I1  # 1 if the node's copy in host memory is in use and must not be evicted
    listed: I1  # 1 if the node is in the list of nodes that are on the GPU and in host memory
    double_before: I4
    double_after: I4
    loading: I8  # 1 + index of the transfer that loads the node; 0 if none
    used: I8  # value of ``ticks`` at the node's last use
    place: Pair  # indices of the node in the two heaps of evictable leaves; -1 if in none


class Job:
    """KV transfer between GPU and host memory, described in ``pinn.simulator.offloading``."""

    request: I8
    planned: I8  # index of the scheduler call that planned the transfer
    column: I8  # index of the batch whose end reports the transfer's end to the scheduler
    first: I4  # index of the first chunk to transfer
    end: I4  # 1 + index of the last chunk to transfer
    blocks: I4
    kind: I1
    progress: I1
    flush: I1
    end_s: F8


class Row:
    """KV blocks of a request that has ended; they are freed when no transfer or batch uses them."""

    request: I8
    fence: I8
    column: I8
    slot: I4
    blocks: I4
    keyed_blocks: I4
    extra_blocks: I4


class Transfer:
    """Record of a KV transfer between GPU and host memory, for the result."""

    request: I8
    replica: I4
    kind: I4
    blocks: I8
    planned_s: F8  # time in seconds when the transfer was submitted
    start_s: F8
    end_s: F8


class Batch:
    """Batch of a replica, in flight or under construction."""

    size: I8
    prompts: I1  # 1 for a prefill batch


class Entry:
    """Request in a batch, with its numbers of computed, cached and sampled tokens."""

    request: I8
    new: I4  # number of the request's tokens computed in the batch
    cached: I4  # number of the request's tokens computed before the batch
    prefill: I1
    sampled: I1  # maximum number of tokens that the request generates in the batch


class Guess:
    """A running request as counted by SGLang's admission check.

    The check estimates whether KV memory suffices until all requests finish.
    """

    left: I8  # number of tokens that the request is still expected to generate
    held: I8  # number of the request's tokens in the KV cache


class Event:
    """Event of a request at a point in time, an entry of a binary heap."""

    moment_s: F8
    request: I8


class Gap:
    """ITL gaps of equal length in a load stage: their length in seconds, and their number."""

    seconds: F8
    count: I8
    tokens: I8  # number of tokens that arrive together at the end of each gap
    stage: I8  # load stage of the requests


#: Numpy types of the records whose fields are accessed by name.
REQUEST, STAGE = record_dtype(Request), record_dtype(Stage)
TRANSFER = record_dtype(Transfer)

SUMS = tuple(f.name for f in fields(BatchSums))

#: Name of a batch sum used only in BLIS's prefill attention: the sum over prefill chunks of new
#: tokens x (whole prompt + half the new tokens).
PROMPT_REACH = "prompt_reach"

#: Name of the batch sum of the decodes' context tokens that are read from the GPU's L2 cache, see
#: ``pinn.specs.batch.Batch``.
REREAD_TOKENS = "reread_tokens"

#: Names of the batch sums that determine the experts' work, in the order of ``SUMS``.
SHARED_SUMS = SUMS[:3]

#: Columns of a recorded step. Batch sums are those of the group's slowest replica. Sums with the
#: prefix ``shared_`` are the experts' work for all replicas of the group, per replica.
STEP_COLUMNS = (
    "start_s", "duration_s", "group", "requests", "tokens", "running", "waiting", "used_blocks",
    "new", "preempted", *SUMS, PROMPT_REACH, REREAD_TOKENS, *(f"shared_{s}" for s in SHARED_SUMS),
)  # fmt: skip
FIRST_SUM = STEP_COLUMNS.index(SUMS[0])
#: Indices, among the sums of a batch, of rows of padding, ``PROMPT_REACH`` and ``REREAD_TOKENS``.
PADDING = SUMS.index("padding")
REACH = STEP_COLUMNS.index(PROMPT_REACH) - FIRST_SUM
REREAD = STEP_COLUMNS.index(REREAD_TOKENS) - FIRST_SUM
#: Index of the first of the ``SHARED_SUMS`` among ``STEP_COLUMNS``.
FIRST_SHARED = STEP_COLUMNS.index(REREAD_TOKENS) + 1
