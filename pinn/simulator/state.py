"""The whole state of a simulation, in arrays that compiled and plain Python code share.

A run is resumable: everything lives here, so the loop may return when a record buffer is full
and go on after it was emptied.
"""

from dataclasses import fields

import numpy as np

from pinn.physics.batch_sums import BatchSums

#: Life of a request, after ``vllm/v1/request.py: RequestStatus``.
UNSENT, SENT, WAITING, LOADING, PREEMPTED, RUNNING, FINISHED, TIMED_OUT, REJECTED = range(9)

#: What an engine does of a request: all of it, its prompt, or its answer from a prompt's keys and
#: values on.
ALONE, PREFILLS, DECODES = range(3)

#: In place of a request's transferred tokens, once they are there.
ARRIVED = -1

#: What every step touches comes first, in one cache line.
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
        ("in_flight", "i4"),  # batches in flight that hold it
        ("stale", "i4"),  # of those, from before it was preempted
        ("last_s", "f8"),  # engine time of the last token, or of the abort
        ("gap_start_s", "f8"),  # when the API server began to stream the token before
        ("worked", "i8"),  # tokens computed, recomputation included
        ("replica", "i8"),
        ("stage", "i4"),
        ("before", "i8"),  # neighbours in the queue that it is in
        ("after", "i8"),
        ("transferred", "i8"),
        ("preemptions", "i4"),
        ("cached_tokens", "i4"),  # num_cached_tokens at its first scheduling
        ("reused_tokens", "i4"),  # tokens found in the cache over all its schedulings
        ("first_key", "i8"),
        ("offset_s", "f8"),
        ("timeout_s", "f8"),
        ("ready_s", "f8"),  # when its transferred keys and values are there
        ("sent_s", "f8"),
        ("handed_s", "f8"),  # in the engine's input queue
        ("queued_s", "f8"),
        ("scheduled_s", "f8"),
        ("first_s", "f8"),  # engine time of the first token
        ("first_sent_s", "f8"),  # when the API server had sent it
        ("last_sent_s", "f8"),
        ("scheduling_s", "f8"),  # delays that the client sees and the engine does not
        ("preemption_s", "f8"),
        ("early_preemption_s", "f8"),  # of that, before the first token
        ("early_preemptions", "i8"),
        ("recomputed_tokens", "i8"),  # tokens known at each preemption, together
        # Work of the API server, since it was last idle, up to the request's hand-over, its first
        # and its last token.
        ("handed_work", "f8", 3),
        ("first_work", "f8", 3),
        ("last_work", "f8", 3),
        ("source", "i8"),  # prefill worker that has its keys and values
        ("loading_s", "f8"),  # when their blocks were there
        ("moved", "i8"),  # tokens of them that were not there before
        ("eligible", "i8"),  # scheduling from which on it may decode again
        ("token_s", "f8"),  # when the last batch that samples for it ends
        ("unverified", "i8"),  # drafted tokens among those computed, in batches in flight
        ("drafted_tokens", "i8"),  # tokens that steps have verified
        ("accepted_tokens", "i8"),  # of those
    ],
    align=True,
)

#: An API server process: it takes requests in and streams tokens out, one thing after another.
SERVER = np.dtype(
    [
        ("free_s", "f8"),
        ("came_s", "f8"),  # when its last task came
        ("start_s", "f8"),  # when it begins with the tokens of the step that has just ended
        ("work", "f8", 3),  # since it was last idle: requests, their prompt tokens, tokens sent
    ],
    align=True,
)

#: Requests that are in line, by the first and the last of them; -1 without any.
QUEUE = np.dtype([("size", "i8"), ("head", "i8"), ("tail", "i8")])

REPLICA = np.dtype(
    [
        ("running", "i8"),
        ("free_blocks", "i8"),
        ("held_blocks", "i8"),  # by each request for itself: a shared block counts for all of them
        ("free_slots", "i8"),
        ("new", "i8"),  # requests scheduled for the first time in the last scheduling
        ("preempted", "i8"),
        ("tokens", "i8"),
        ("schedulings", "i8"),  # current_step
        ("column", "i8"),  # of the batch that is being made up
        ("now_s", "f8"),  # and the moment
        ("longest_chunk", "i8"),  # of the last scheduling; 0 for no limit
        ("seen_waiting", "i8"),  # what the load balancer believes
        ("seen_running", "i8"),
        ("handed_s", "f8"),
        ("transfer_free_s", "f8"),
        ("padding", "i8"),  # rows that round the decodes up to a CUDA graph
        # Of schedules with prompts apart, after ``sglang/srt/managers/scheduler.py``.
        ("chunked", "i8"),  # chunked_req: the request whose prompt goes on, or -1
        ("full", "i8"),  # running_batch.batch_is_full
        ("ended", "i8"),  # requests that have ended since the last schedule
        ("unfiltered", "i8"),  # and those of before that running_batch still counts
        ("alone", "i8"),  # whether running_batch was empty beside the last batch of prompts
        ("last_prompts", "i8"),  # whether the last batch was of prompts
        ("polls", "i8"),  # SchedulerRecvSkipper._counter
        ("expected", "f8"),  # new_token_ratio
    ],
    align=True,
)

#: Replicas that step together: one for a dense model, all of a mixture of experts.
GROUP = np.dtype(
    [
        ("in_flight", "i8"),
        ("launched", "i8"),  # of those, with tokens
        ("oldest", "i8"),
        ("wake_s", "f8"),
        ("now_s", "f8"),
        ("gpu_free_s", "f8"),
        ("last_end_s", "f8"),
        ("waited", "i8"),  # steps that prompts have waited for others
    ],
    align=True,
)

SUMS = tuple(f.name for f in fields(BatchSums))

#: Beside ``SUMS``: over the prefill chunks, new tokens x (whole prompt + half the new tokens), the
#: reach of prefill attention as the Go simulator counts it.
PROMPT_REACH = "prompt_reach"

#: Tokens of the decodes' contexts that come from the GPU's cache, see ``pinn.specs.batch.Batch``.
REREAD_TOKENS = "reread_tokens"

#: Columns of a recorded step; the sums are those of the replica that took longest.
STEP_COLUMNS = (
    "start_s", "duration_s", "group", "requests", "tokens", "running", "waiting", "used_blocks",
    "new", "preempted", *SUMS, PROMPT_REACH, REREAD_TOKENS,
)  # fmt: skip
FIRST_SUM = STEP_COLUMNS.index(SUMS[0])
#: Place of ``REREAD_TOKENS`` among the sums of a batch.
REREAD = STEP_COLUMNS.index(REREAD_TOKENS) - FIRST_SUM
