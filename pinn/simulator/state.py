"""The whole state of a simulation, in arrays that compiled and plain Python code share.

A run is resumable: everything lives here, so the loop may return when a record buffer is full
and go on after it was emptied.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: Life of a request, after ``vllm/v1/request.py: RequestStatus``.
UNSENT, SENT, WAITING, LOADING, PREEMPTED, RUNNING, FINISHED, TIMED_OUT, REJECTED = range(9)

REQUEST = np.dtype(
    [
        ("prompt", "i4"),
        ("output", "i4"),
        ("computed", "i4"),  # num_computed_tokens
        ("generated", "i4"),  # num_output_tokens
        ("placeholders", "i4"),  # num_output_placeholders
        ("blocks", "i4"),  # blocks of the group whose blocks have hashes
        ("keyed_blocks", "i4"),  # num_cached_block
        ("extra_blocks", "i4"),  # blocks of the other KV cache groups
        ("slot", "i4"),  # row of the block table; -1 without blocks
        ("status", "i4"),
        ("replica", "i4"),
        ("stage", "i4"),
        ("before", "i4"),  # neighbours in the queue that it is in
        ("after", "i4"),
        ("transferred", "i4"),
        ("preemptions", "i4"),
        ("cached", "i4"),  # num_cached_tokens at its first scheduling
        ("reused", "i4"),  # tokens found in the cache over all its schedulings
        ("worked", "i8"),  # tokens computed, recomputation included
        ("first_key", "i8"),
        ("offset_s", "f8"),
        ("timeout_s", "f8"),
        ("ready_s", "f8"),  # when its transferred keys and values are there
        ("sent_s", "f8"),
        ("handed_s", "f8"),  # in the engine's input queue
        ("queued_s", "f8"),
        ("scheduled_s", "f8"),
        ("first_s", "f8"),  # engine time of the first token
        ("last_s", "f8"),  # engine time of the last token, or of the abort
        ("gap_start_s", "f8"),
        ("scheduling_s", "f8"),  # delays that the client sees and the engine does not
        ("preemption_s", "f8"),
        ("early_preemption_s", "f8"),  # of that, before the first token
    ],
    align=True,
)

REPLICA = np.dtype(
    [
        ("running", "i8"),
        ("waiting", "i8"),
        ("waiting_head", "i8"),
        ("waiting_tail", "i8"),
        ("input", "i8"),
        ("input_head", "i8"),
        ("input_tail", "i8"),
        ("free_blocks", "i8"),
        ("free_slots", "i8"),
        ("new", "i8"),  # requests scheduled for the first time in the last scheduling
        ("preempted", "i8"),
        ("tokens", "i8"),
        ("seen_waiting", "i8"),  # what the load balancer believes
        ("seen_running", "i8"),
        ("handed_s", "f8"),
        ("transfer_free_s", "f8"),
    ],
    align=True,
)

#: Replicas that step together: one for a dense model, all of a mixture of experts.
GROUP = np.dtype(
    [
        ("in_flight", "i8"),
        ("oldest", "i8"),
        ("wake_s", "f8"),
        ("now_s", "f8"),
        ("gpu_free_s", "f8"),
        ("last_end_s", "f8"),
        ("step_time_s", "f8"),  # moving average
    ],
    align=True,
)

CLIENT = np.dtype(
    [
        ("next", "i8"),
        ("in_flight", "i8"),
        ("open_stage", "i8"),
        ("unresolved", "i8"),  # requests of the open stage that have not ended
        ("round_robin", "i8"),
        ("endings", "i8"),  # entries of the two heaps
        ("deadlines", "i8"),
        ("steps", "i8"),  # filled rows of the record buffers
        ("gaps", "i8"),
        ("opened_s", "f8"),
        ("stage_end_s", "f8"),
        ("publish_s", "f8"),
        ("bad_step_s", "f8"),
    ],
    align=True,
)

SUMS = (
    "prefill_requests",
    "decode_requests",
    "prefill_tokens",
    "decode_context",
    "prefill_cached",
    "prefill_pairs",
    "windowed_decode_context",
    "windowed_prefill_cached",
    "windowed_prefill_pairs",
)

#: Columns of a recorded step; the sums are those of the replica that took longest.
STEP_COLUMNS = (
    "start_s", "duration_s", "group", "requests", "tokens", "running", "waiting", "used_blocks",
    "new", "preempted", *SUMS,
)  # fmt: skip
FIRST_SUM = STEP_COLUMNS.index(SUMS[0])


class Limits(NamedTuple):
    """What does not change during a run."""

    max_tokens: int
    max_seqs: int
    max_model_len: int
    block_size: int
    blocks: int  # usable blocks of one replica
    row: int  # width of a block-table row
    slots: int
    keys: int
    long_prefill: int
    window: int
    full_groups: int
    window_groups: int
    window_blocks: int
    caching: bool
    chunked: bool
    asynchronous: bool
    depth: int  # batches in flight
    pipeline: int
    replicas: int
    groups: int
    least_loaded: bool
    concurrency: int
    stages_wait: bool
    stage_gap_s: float
    transfer_latency_s: float
    transfer_token_s: float


class Engine(NamedTuple):
    """Limits and state; the first axis of per-replica arrays is the replica.

    Block 0 of a replica is the sentinel of its free list, blocks 1 to ``limits.blocks`` are real.
    """

    limits: Limits
    requests: np.ndarray  # REQUEST [n]
    replicas: np.ndarray  # REPLICA [replicas]
    groups: np.ndarray  # GROUP [groups]
    client: np.ndarray  # CLIENT [1]
    stage_starts_s: np.ndarray  # [stages]
    stage_sizes: np.ndarray  # [stages]
    keys: np.ndarray  # block keys of every request, one after the other
    running: np.ndarray  # [replicas, max_seqs]
    new: np.ndarray  # [replicas, max_seqs]
    preempted: np.ndarray  # [replicas, max_seqs]
    table: np.ndarray  # [replicas, slots, row]
    slot_stack: np.ndarray  # [replicas, slots]
    next_free: np.ndarray  # [replicas, blocks + 1]
    previous_free: np.ndarray
    references: np.ndarray
    block_key: np.ndarray
    twin: np.ndarray  # next block with the same key
    holder: np.ndarray  # key -> first block that holds it, or 0: [replicas, keys]
    batch_size: np.ndarray  # [replicas, depth]
    batch_request: np.ndarray  # [replicas, depth, max_seqs]
    batch_new: np.ndarray
    batch_cached: np.ndarray
    batch_prefill: np.ndarray
    batch_sampled: np.ndarray
    batch_end_s: np.ndarray  # [groups, depth]
    sums: np.ndarray  # [replicas, 9]
    ending_s: np.ndarray  # heap of the moments at which clients see a request end
    ending_id: np.ndarray
    deadline_s: np.ndarray  # heap of the moments at which clients hang up
    deadline_id: np.ndarray
    steps: np.ndarray  # [buffer, len(STEP_COLUMNS)]
    gap_s: np.ndarray  # runs of equal gaps between tokens
    gap_count: np.ndarray


def new_engine(
    limits: Limits,
    requests: np.ndarray,
    keys: np.ndarray,
    stage_starts_s: np.ndarray,
    stage_sizes: np.ndarray,
    buffer: int,
) -> Engine:
    """An idle engine before the first request is sent."""
    n, replicas, seqs = len(requests), limits.replicas, limits.max_seqs
    ids = (replicas, limits.blocks + 1)
    batch = (replicas, limits.depth, seqs)
    return Engine(
        limits=limits,
        requests=requests,
        replicas=_replicas(limits),
        groups=_groups(limits),
        client=_client(stage_starts_s, stage_sizes),
        stage_starts_s=stage_starts_s,
        stage_sizes=stage_sizes,
        keys=keys,
        running=np.zeros((replicas, seqs), np.int32),
        new=np.zeros((replicas, seqs), np.int32),
        preempted=np.zeros((replicas, seqs), np.int32),
        table=np.zeros((replicas, limits.slots, limits.row), np.int32),
        slot_stack=np.tile(np.arange(limits.slots, dtype=np.int32), (replicas, 1)),
        next_free=np.tile(np.roll(np.arange(ids[1], dtype=np.int32), -1), (replicas, 1)),
        previous_free=np.tile(np.roll(np.arange(ids[1], dtype=np.int32), 1), (replicas, 1)),
        references=np.zeros(ids, np.int32),
        block_key=np.full(ids, -1, np.int32),
        twin=np.zeros(ids, np.int32),
        holder=np.zeros((replicas, limits.keys), np.int32),
        batch_size=np.zeros((replicas, limits.depth), np.int64),
        batch_request=np.zeros(batch, np.int32),
        batch_new=np.zeros(batch, np.int32),
        batch_cached=np.zeros(batch, np.int32),
        batch_prefill=np.zeros(batch, np.bool_),
        batch_sampled=np.zeros(batch, np.bool_),
        batch_end_s=np.zeros((limits.groups, limits.depth)),
        sums=np.zeros((replicas, len(SUMS))),
        ending_s=np.zeros(n + 1),
        ending_id=np.zeros(n + 1, np.int32),
        deadline_s=np.zeros(n + 1),
        deadline_id=np.zeros(n + 1, np.int32),
        steps=np.zeros((buffer, len(STEP_COLUMNS))),
        gap_s=np.zeros(buffer + replicas * seqs * limits.depth),
        gap_count=np.zeros(buffer + replicas * seqs * limits.depth, np.int64),
    )


def _replicas(limits: Limits) -> np.ndarray:
    replicas = np.zeros(limits.replicas, REPLICA)
    for name in ("waiting_head", "waiting_tail", "input_head", "input_tail"):
        replicas[name] = -1
    replicas["free_blocks"] = limits.blocks
    replicas["free_slots"] = limits.slots
    return replicas


def _groups(limits: Limits) -> np.ndarray:
    groups = np.zeros(limits.groups, GROUP)
    groups["wake_s"] = np.inf
    return groups


def _client(stage_starts_s: np.ndarray, stage_sizes: np.ndarray) -> np.ndarray:
    client = np.zeros(1, CLIENT)
    client["unresolved"], client["opened_s"] = stage_sizes[0], stage_starts_s[0]
    return client
