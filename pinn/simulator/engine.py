"""State of a simulated engine: settings, counters, records and arrays.

:mod:`pinn.simulator.compiled_engine` defines the state's type in compiled code, and
:func:`plain_engine` converts the state to plain Python objects.
"""

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple, TypeAlias, get_type_hints

import numpy as np
from jaxtyping import Float, Int, Shaped

from pinn.common.documents import MOST_ENGINE_BYTES, check_size
from pinn.simulator import state
from pinn.simulator.state import (
    BY_JOB,
    BY_NODE,
    F8,
    I8,
    LISTS,
    STEP_COLUMNS,
    Records,
    record_dtype,
)


class Config:
    """Settings of a simulated engine and lengths of its arrays, constant during a run."""

    token_budget: I8
    max_model_len: I8
    block_tokens: I8
    slots: I8
    long_prefill: I8
    window: I8
    full_groups: I8
    window_groups: I8
    window_blocks: I8
    window_share: I8
    prefix_caching: I8
    chunked_prefill: I8
    asynchronous: I8
    pipeline_parallel_size: I8
    least_loaded: I8
    router: I8  # routing policy, or ``NO_ROUTER``
    first_copy: I8  # index, within the fleet, of the engine's first server
    router_interval_s: F8  # interval in seconds between updates of the router's view of the servers
    prefix_weight: F8
    queue_weight: F8
    usage_weight: F8
    kv_blocks: I8  # KV cache blocks of one replica
    concurrency: I8
    stages_wait: I8
    max_seqs: I8  # maximum number of requests in a batch
    blocks: I8  # maximum number of KV blocks of one replica that a run can use
    row: I8  # length of a row of the block table, in blocks
    # Settings of the scheduler, described in ``pinn.engines.recipe``.
    whole_prompts: I8
    uncached_first: I8
    cuts_lone_prompts: I8
    awaits_preempted: I8
    chunk_multiple: I8
    poll_interval: I8
    prompt_interval: I8  # steps from one step with prompts to the next; 1 without throttling
    prompt_wait_steps: I8
    prompt_wait_tokens: I8
    one_batch: I8  # 1 if a request is in at most one batch in flight
    stagger: I8  # minimum scheduler calls between two decodes of a request; 0 for no limit
    foresees_ends: I8  # 1 if SGLang's scheduler knows output lengths in advance
    prefill_first: I8  # 1 if prompts run in steps without decodes
    prompt_budget: I8  # prompt tokens from which a prefill step accepts no further request
    reserves: I8  # 1 to admit a request only if its whole output fits in the KV cache
    waits_for_all: I8  # 1 if prompts wait until every replica has a prompt
    shares_experts: I8  # 1 if the replicas of a group share experts
    pads_eager_ranks: I8
    graph_tokens: I8  # size of the largest CUDA graph in tokens; 0 without CUDA graphs
    graph_requests: I8  # size of the largest decode-only CUDA graph in requests; 0 if none
    drafts: I8  # number of draft tokens that each decode verifies
    lookahead: I8  # number of future draft tokens for which a request reserves KV blocks
    depth: I8  # maximum number of batches in flight
    one_process: I8  # 1 if engine and API server share one process
    keeps_batches: I8  # 1 to record each request's tokens in a batch, for some latency models
    role: I8  # role in disaggregated prefill/decode (constants in ``pinn.simulator.state``)
    gpu_cache_tokens: F8
    warmup_requests: I8  # number of requests sent before the measurement begins
    warmup_s: F8
    stage_gap_s: F8
    transfer_latency_s: F8
    transfer_token_s: F8
    source_token_s: F8  # transfer time per token on a prefill worker's link, in seconds
    admission_share: F8  # initial share of a request's output that SGLang reserves at admission
    most_reread: F8  # maximum share of the decodes' KV reads that L2 cache hits avoid
    # Second tier of the KV cache, described in ``pinn.simulator.offloading``.
    tier: I8  # second tier: ``NO_TIER``, ``BY_REQUEST``, ``BY_JOB``, ``BY_STEP`` or ``BY_NODE``
    tier_chunks: I8
    tier_chunk_blocks: I8
    tier_arc: I8
    tier_prompt_only: I8
    tier_skips_unknown: I8
    defers_frees: I8  # 1 to keep blocks of finished requests allocated until batches in flight end
    # Settings of SGLang's HiCache, described in ``pinn.simulator.hicache``.
    tier_hits: I8  # number of insertions after which a tree node is stored; 0 to store on eviction
    tier_unified: I8  # 1 for ``UnifiedRadixCache``, 0 for ``HiRadixCache``
    tier_layers: I8  # number of layers whose KV a load transfers one after another
    host_latency_s: F8
    host_block_s: F8
    # Lengths of the engine's arrays.
    n_requests: I8
    n_replicas: I8
    n_groups: I8
    n_servers: I8
    n_stages: I8
    n_distinct_keys: I8
    n_chances: I8
    n_columns: I8
    step_rows: I8
    gap_rows: I8
    n_copies: I8  # number of servers behind one load balancer
    n_sources: I8  # number of prefill workers that send KV to this engine
    n_keys: I8  # total number of block keys of all requests
    n_watched: I8  # number of distinct block keys that a router with a delayed view tracks
    n_block_ids: I8  # number of KV blocks of a replica, plus 1 for the sentinel of the free list
    n_graphs: I8  # number of entries in the table of CUDA graph sizes
    n_guesses: I8  # maximum number of requests that an admission check considers
    n_tier: I8  # length of a second KV tier's array: chunks, ARC's ghost entries and list ends
    n_tier_keys: I8
    n_seen: I8
    n_nodes: I8  # maximum number of nodes of a radix tree
    n_leaves: I8  # capacity of a radix tree's two heaps of evictable leaves, together
    n_jobs: I8
    n_gone: I8
    n_fences: I8
    transfer_rows: I8


class Counters:
    """Counters and times of a simulated engine that change during a run."""

    open_stage: I8
    routed: I8  # number of requests that the router has forwarded
    endings: I8  # number of events in the heap of request end times
    deadlines: I8  # number of events in the heap of client timeouts
    due: I8  # number of events in the heap of conversations' next turns
    all_sent: I8
    next: I8  # index of the next request to send
    sent: I8  # number of requests whose clients are still waiting, under a concurrency limit
    unresolved: I8  # number of unfinished requests in the current load stage
    n_steps: I8  # number of filled rows in the step records
    n_gaps: I8
    n_transfers: I8
    progress: I8  # number of decodes with tokens and of ended requests, to detect a stuck engine
    leaving: I8  # number of requests to hand over to another engine, such as the other pool of P/D
    opened_s: F8
    stage_end_s: F8
    looked_s: F8  # time in seconds when the router last updated its view
    look_s: F8  # time in seconds when the router next updates its view
    bad_step_s: F8


_OfRequests: TypeAlias = Annotated[Int[np.ndarray, "n_replicas max_seqs"], np.int64]


class Engine(NamedTuple):
    """State of an engine and of its clients.

    Each annotation of an array gives the type of its items, and the lengths of its axes as names of
    fields of :class:`Config`.
    """

    config: Config
    counters: Counters
    requests: Annotated[Records[state.Request], state.Request, "n_requests"]
    replicas: Annotated[Records[state.Replica], state.Replica, "n_replicas"]
    # queue of requests in the scheduler of each replica
    waiting: Annotated[Records[state.Queue], state.Queue, "n_replicas"]
    # queue of requests at the input of each replica's engine
    input: Annotated[Records[state.Queue], state.Queue, "n_replicas"]
    groups: Annotated[Records[state.Group], state.Group, "n_groups"]
    copies: Annotated[Records[state.Copy], state.Copy, "n_copies"]
    servers: Annotated[Records[state.Server], state.Server, "n_servers"]
    stages: Annotated[Records[state.Stage], state.Stage, "n_stages"]
    # block keys of all requests, concatenated
    keys: Annotated[Int[np.ndarray, " n_keys"], np.int32]
    running: _OfRequests
    started: _OfRequests
    preempted: _OfRequests
    table: Annotated[Int[np.ndarray, "n_replicas slots row"], np.int32]
    slot_stack: Annotated[Int[np.ndarray, "n_replicas slots"], np.int32]
    cache: Annotated[Records[state.Block], state.Block, "n_replicas", "n_block_ids"]
    # index of the first KV block with a block key, for each replica and key; 0 if there is none
    holder: Annotated[Int[np.ndarray, "n_replicas n_distinct_keys"], np.int32]
    # time in seconds when a block key last entered or left a replica's prefix cache
    key_s: Annotated[Float[np.ndarray, "n_replicas n_watched"], np.float64]
    batches: Annotated[Records[state.Batch], state.Batch, "n_replicas", "depth"]
    batch_end_s: Annotated[Float[np.ndarray, "n_groups depth"], np.float64]
    entries: Annotated[Records[state.Entry], state.Entry, "n_replicas", "depth", "max_seqs"]
    # batch size after padding to a CUDA graph, by number of decodes
    graph_size: Annotated[Int[np.ndarray, " n_graphs"], np.int64]
    # probability that at least 1, 2, ... draft tokens are accepted
    chances: Annotated[Float[np.ndarray, " n_chances"], np.float64]
    guesses: Annotated[Records[state.Guess], state.Guess, "n_guesses"]
    # heap of requests, ordered by when their clients see them end
    endings: Annotated[Records[state.Event], state.Event, "n_requests"]
    # heap of requests, ordered by when their clients disconnect
    deadlines: Annotated[Records[state.Event], state.Event, "n_requests"]
    # heap of conversations' next requests, ordered by when they are sent
    due: Annotated[Records[state.Event], state.Event, "n_requests"]
    leaving: Annotated[Records[state.Event], state.Event, "n_requests"]
    tier: Annotated[Records[state.Chunk], state.Chunk, "n_replicas", "n_tier"]
    tier_holder: Annotated[Int[np.ndarray, "n_replicas n_tier_keys"], np.int32]
    tier_missing: Annotated[Int[np.ndarray, "n_replicas row"], np.int32]
    tier_seen: Annotated[Int[np.ndarray, " n_seen"], np.int8]
    nodes: Annotated[Records[state.Node], state.Node, "n_replicas", "n_nodes"]
    node_stack: Annotated[Int[np.ndarray, "n_replicas n_nodes"], np.int32]
    node_heaps: Annotated[Int[np.ndarray, "n_replicas n_leaves"], np.int32]
    node_list: Annotated[Int[np.ndarray, "n_replicas n_nodes"], np.int32]
    jobs: Annotated[Records[state.Job], state.Job, "n_replicas", "n_jobs"]
    rows: Annotated[Records[state.Row], state.Row, "n_replicas", "slots"]
    gone: Annotated[Int[np.ndarray, "n_replicas n_gone"], np.int32]
    fences: Annotated[Int[np.ndarray, "n_replicas n_fences"], np.int64]
    stamps: Annotated[Int[np.ndarray, "n_replicas n_fences"], np.int64]
    transfers: Annotated[Records[state.Transfer], state.Transfer, "transfer_rows"]
    source_free_s: Annotated[Float[np.ndarray, " n_sources"], np.float64]
    steps: Annotated[Float[np.ndarray, "step_rows n_columns"], np.float64]
    gaps: Annotated[Records[state.Gap], state.Gap, "gap_rows"]
    record: Shaped[np.recarray, "1"]  # settings, counters and addresses of the engine's arrays

    @property
    def pointer(self) -> int:
        """Memory address of the engine's record, for compiled code."""
        return int(self.record.ctypes.data)


CONFIG_FIELDS = tuple(get_type_hints(Config))


class ArrayType(NamedTuple):
    """Item type and axes of one of the arrays of a simulated engine.

    Attributes:
        dtype: Type of the array's items.
        shape: Names of the fields of ``Config`` that contain the lengths of the array's axes.
    """

    dtype: np.dtype[Any]
    shape: tuple[str, ...]


def _array_type(hint: Any) -> ArrayType:
    kind, *shape = hint.__metadata__
    if issubclass(kind, np.generic):
        return ArrayType(np.dtype(kind), tuple(hint.__origin__.dim_str.split()))
    return ArrayType(record_dtype(kind), tuple(shape))


ARRAYS = {
    name: _array_type(hint)
    for name, hint in get_type_hints(Engine, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}

#: Dtype of the engine's record: settings, counters and addresses of arrays.
ENGINE = np.dtype(
    [
        ("config", record_dtype(Config)),
        ("counters", record_dtype(Counters)),
        ("address", "i8", len(ARRAYS)),
    ]
)


def offsets(record: np.dtype[Any]) -> dict[str, int]:
    """Return the offset of each field of a record type, in bytes."""
    return {name: field[1] for name, field in (record.fields or {}).items()}


# Construction of an engine before its first request: settings, idle replicas, empty queues.

#: Fields of ``Replica`` with numbers of stored chunks, evicted chunks and skipped stores of a KV
#: tier.
TIER_COUNTS = ("stored_chunks", "evicted_chunks", "full_stores")
_STEP_ROWS = 1 << 16
#: Arrays that are not initialized to zero, because each row is written before it is read. Zeroing
#: them would take as long as a short run.
_RECORDED = {"steps", "gaps", "transfers"}


def new_engine(
    settings: Mapping[str, float], given: Mapping[str, Shaped[np.ndarray, " n"]], distinct: int
) -> Engine:
    """Build an engine with idle replicas and empty queues.

    Args:
        settings: Mapping from each field of ``Config`` to its value: all settings, and the lengths
            ``n_replicas``, ``n_groups``, ``n_copies``, ``n_servers`` and ``n_sources``.
        given: Arrays ``requests``, ``keys``, ``stages``, ``graph_size`` and ``chances`` of the
            engine, by name.
        distinct: Number of different block keys.
    """
    record = np.zeros(1, ENGINE).view(np.recarray)
    config, counters = record[0].config, record[0].counters
    for name, value in settings.items():
        setattr(config, name, value)
    for name, array in given.items():
        (size,) = ARRAYS[name].shape
        setattr(config, size, len(array))
    config.n_distinct_keys = distinct
    config.n_block_ids = config.blocks + 1
    config.n_guesses = config.max_seqs + 2
    config.n_columns = len(STEP_COLUMNS)
    config.step_rows = _STEP_ROWS
    config.gap_rows = _STEP_ROWS + config.n_replicas * config.max_seqs * config.depth
    _size_tier(config)
    watches = config.router == state.PREFIX_AWARE and config.router_interval_s > 0
    config.n_watched = distinct if watches else 1
    counters.opened_s, counters.unresolved = given["stages"][0]
    made = {
        name: (tuple(int(getattr(config, size)) for size in shape), dtype)
        for name, (dtype, shape) in ARRAYS.items()
        if name not in given
    }
    check_size(
        sum(math.prod(shape) * dtype.itemsize for shape, dtype in made.values()),
        MOST_ENGINE_BYTES,
        "the memory of the simulated engine in bytes",
        "lower --max-num-seqs, --data-parallel-size or --num-gpu-blocks-override",
    )
    arrays = {
        name: (np.empty if name in _RECORDED else np.zeros)(*made[name])
        if name in made
        else np.ascontiguousarray(given[name], dtype=dtype)
        for name, (dtype, _) in ARRAYS.items()
    }
    record.address = [array.ctypes.data for array in arrays.values()]
    engine = Engine(config, counters, **arrays, record=record)
    _make_idle(engine)
    return engine


#: Number of a radix tree's nodes that own no block: node 0 (no node), the root, and a spare node
#: for splits.
_NODES_BESIDE = 3
#: Maximum number of KV transfers in flight to or from host memory; further stores are skipped.
_MOST_JOBS = 1 << 16


def _size_tier(config: Any) -> None:
    """Set the array lengths of a second KV tier in ``config``; minimal if there is no tier."""
    on, by_job, by_node = config.tier > 0, config.tier == BY_JOB, config.tier == BY_NODE
    chunks = 0 if by_node else config.tier_chunks * (3 if config.tier_arc else 1)
    config.n_tier = LISTS + chunks
    # Each node owns at least one KV block, on the GPU or in host memory.
    nodes = min(config.n_distinct_keys, config.blocks + config.tier_chunks)
    config.n_nodes = nodes + _NODES_BESIDE if by_node else 1
    config.n_leaves = 2 * config.n_nodes
    config.n_tier_keys = config.n_distinct_keys if on else 1
    config.n_seen = max(config.n_seen, 1) if by_job else 1
    config.n_jobs = min(config.tier_chunks + config.slots + 1, _MOST_JOBS) if on else 1
    config.n_gone = config.n_requests if on else 1
    config.n_fences = config.n_block_ids if by_job else 1
    config.transfer_rows = _STEP_ROWS + config.n_replicas * config.n_jobs if on else 1


def _make_idle(engine: Engine) -> None:
    """Initialize all queues as empty, and all KV blocks as free, in ascending order."""
    config = engine.config
    ids = np.arange(config.n_block_ids, dtype=np.int32)
    engine.cache["after"][:] = np.roll(ids, -1)
    engine.cache["before"][:] = np.roll(ids, 1)
    engine.cache["key"][:] = -1
    engine.slot_stack[:] = np.arange(config.slots)
    for queue in (engine.waiting, engine.input):
        queue["head"][:] = queue["tail"][:] = -1
    engine.replicas["chunked"][:] = -1
    engine.replicas["since_prompts"][:] = config.prompt_interval
    engine.replicas["expected"][:] = config.admission_share
    engine.replicas["free_blocks"][:] = config.blocks
    engine.replicas["free_slots"][:] = config.slots
    engine.groups["wake_s"][:] = np.inf
    engine.copies["turn"][:] = np.arange(-config.n_copies, 0)
    engine.key_s[:] = -np.inf
    if config.tier > 0:
        _make_tier(engine)
    if config.tier == BY_NODE:
        _make_tree(engine)


def _make_tier(engine: Engine) -> None:
    """Initialize a second KV tier as empty, with all chunks in its free list."""
    engine.requests["tier_row"][:] = -1
    chunks, places = engine.tier, np.arange(engine.config.n_tier)
    ends = places < LISTS
    chunks["after"][:] = np.where(ends, places, np.where(places + 1 < len(places), places + 1, 0))
    chunks["before"][:] = np.where(ends, places, np.where(places > LISTS, places - 1, 0))
    if len(places) > LISTS:
        chunks["after"][:, 0], chunks["before"][:, 0] = LISTS, len(places) - 1
    chunks["references"][:, 0] = len(places) - LISTS


def _make_tree(engine: Engine) -> None:
    """Initialize a radix tree, whose only node is the root; the root is always locked."""
    config = engine.config
    # Use the lowest node numbers first, so that few memory pages are touched.
    engine.node_stack[:] = np.arange(config.n_nodes)[::-1]
    engine.replicas["free_nodes"][:] = config.n_nodes - 2
    engine.replicas["unused"][:] = config.blocks
    engine.replicas["host_free"][:] = config.tier_chunks
    engine.nodes["place"][:] = -1
    engine.nodes["locks"][:, 1] = engine.nodes["on_gpu"][:, 1] = 1
    engine.requests["node"][:] = 1


def plain_engine(engine: Engine) -> Engine:
    """Return a copy of an engine whose records are Python objects, for uncompiled code."""
    parts = zip(engine._fields[:-1], engine[:-1], strict=True)
    plain = engine._replace(**{name: _plain(part) for name, part in parts})
    plain.config.keeps_batches = 1
    return plain


def _plain(part: Any) -> Any:
    """Convert a record or an array of records to Python objects; return other values unchanged."""
    names = part.dtype.names
    if names is None:
        return part
    if not part.shape:
        return SimpleNamespace(**{name: part[name].tolist() for name in names})
    if part.size > _STEP_ROWS:  # large arrays only record results, so they remain numpy arrays
        return part.view(np.recarray)
    objects = np.empty(part.shape, object)
    objects.flat[:] = [_plain(row) for row in part.flat]
    return objects


def write_back(plain: Engine, engine: Engine) -> None:
    """Copy requests and KV tier counters of a plain-Python engine into the original arrays."""
    for i in range(len(engine.requests)):
        engine.requests[i] = tuple(vars(plain.requests[i]).values())  # type: ignore[index]
    for name in TIER_COUNTS:
        counts = (getattr(plain.replicas[i], name) for i in range(len(engine.replicas)))
        engine.replicas[name][:] = [*counts]
