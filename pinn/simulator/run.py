"""What a simulated run leaves behind: a record per request and per step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from pinn.physics.batch_sums import BatchSums
from pinn.physics.request import RequestState
from pinn.simulator.state import (
    FINISHED,
    FIRST_SUM,
    REJECTED,
    REREAD_TOKENS,
    STEP_COLUMNS,
    SUMS,
    TIMED_OUT,
)
from pinn.simulator.workloads.workload import Workload

STATUS_NAMES = {FINISHED: "finished", TIMED_OUT: "timed_out", REJECTED: "rejected"}


@dataclass(frozen=True)
class RequestRecords:
    """Per request, in the order of sending; times in seconds, NaN for what did not happen.

    Attributes:
        status: ``finished``, ``timed_out`` or ``rejected``.
        stage: Load stage.
        replica: Data-parallel replica.
        prompt_tokens: Prompt length.
        output_tokens: Tokens generated.
        cached_tokens: Prompt tokens found in the prefix cache at its first scheduling.
        reused_tokens: Tokens found in the cache over all its schedulings.
        computed_tokens: Tokens computed, recomputation included but drafts that were rejected.
        preemptions: How often it was preempted.
        arrival_s: When the client sent it.
        handed_s: When the front end put it into the engine's input queue.
        queued_s: When the scheduler learnt of it (the QUEUED event).
        scheduled_s: When it was first scheduled.
        first_token_s: When the client saw its first token.
        finish_s: When the client saw its last token, or gave up.
        engine_first_token_s: End of the step that made its first token.
        engine_finish_s: End of the step that made its last token.
        early_preemptions: Preemptions before its first token.
        recomputed_tokens: Tokens known at each of its preemptions, added up.
        early_recomputed_tokens: Those of preemptions before its first token.
        arrival_state: What ``queueing_time`` was asked about.
        start_state: What ``scheduling_processing_time`` was asked about.
        handed_work: What its API server had done since it was last idle when the request was handed
            over: requests taken in, their prompt tokens, tokens streamed.
        first_work: The same when its first token was sent.
        last_work: The same when its last token was sent.
        drafted_tokens: Drafted tokens that steps verified for it; 0 without speculative decoding.
        accepted_tokens: Of those, what the model would have said, beyond its output's end too.
        completion_s: PostDecodeFixedOverhead, the same for all.
    """

    status: Shaped[np.ndarray, " requests"]
    stage: Int[np.ndarray, " requests"]
    replica: Int[np.ndarray, " requests"]
    prompt_tokens: Int[np.ndarray, " requests"]
    output_tokens: Int[np.ndarray, " requests"]
    cached_tokens: Int[np.ndarray, " requests"]
    reused_tokens: Int[np.ndarray, " requests"]
    computed_tokens: Int[np.ndarray, " requests"]
    preemptions: Int[np.ndarray, " requests"]
    arrival_s: Float[np.ndarray, " requests"]
    handed_s: Float[np.ndarray, " requests"]
    queued_s: Float[np.ndarray, " requests"]
    scheduled_s: Float[np.ndarray, " requests"]
    first_token_s: Float[np.ndarray, " requests"]
    finish_s: Float[np.ndarray, " requests"]
    engine_first_token_s: Float[np.ndarray, " requests"]
    engine_finish_s: Float[np.ndarray, " requests"]
    early_preemptions: Int[np.ndarray, " requests"]
    recomputed_tokens: Int[np.ndarray, " requests"]
    early_recomputed_tokens: Int[np.ndarray, " requests"]
    arrival_state: RequestState
    start_state: RequestState
    handed_work: Float[np.ndarray, "requests 3"]
    first_work: Float[np.ndarray, "requests 3"]
    last_work: Float[np.ndarray, "requests 3"]
    drafted_tokens: Int[np.ndarray, " requests"]
    accepted_tokens: Int[np.ndarray, " requests"]
    completion_s: float = 0.0

    def __len__(self) -> int:
        return len(self.status)

    @property
    def finished(self) -> Bool[np.ndarray, " requests"]:
        """Mask of the requests that were served to the end."""
        return self.status == "finished"

    @property
    def ttft_s(self) -> Float[np.ndarray, " requests"]:
        """Time to first token, as the client sees it."""
        return self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> Float[np.ndarray, " requests"]:
        """End-to-end latency; for a client that gave up, its patience."""
        return self.finish_s - self.arrival_s

    @property
    def mean_itl_s(self) -> Float[np.ndarray, " requests"]:
        """Mean gap between a request's tokens, completion left out; NaN with a single token."""
        gaps = np.where(self.output_tokens > 1, self.output_tokens - 1.0, np.nan)
        return (self.last_token_s - self.first_token_s) / gaps

    @property
    def last_token_s(self) -> Float[np.ndarray, " requests"]:
        """When the client saw the last token, before completion."""
        return self.finish_s - self.completion_s


@dataclass(frozen=True)
class GapRuns:
    """Gaps between the steps that give a request tokens, runs of equal ones together.

    Attributes:
        seconds: Length of the gaps of each run.
        count: How many gaps the run has.
        tokens: Tokens that come together at the end of each of its gaps; 1 without speculative
            decoding.
    """

    seconds: Float[np.ndarray, " runs"]
    count: Int[np.ndarray, " runs"]
    tokens: Int[np.ndarray, " runs"]


@dataclass(frozen=True)
class StepRecords:
    """Per step, in the order of launching.

    Attributes:
        table: Columns ``STEP_COLUMNS``; sums are of the replica that took longest.
    """

    table: Float[np.ndarray, "steps columns"]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, name: str) -> Float[np.ndarray, " steps"]:
        """One column by its name."""
        return self.table[:, STEP_COLUMNS.index(name)]

    @property
    def sums(self) -> BatchSums:
        """Batch sums of shape ``[steps]``, as the step features take them."""
        return self.whole_sums.without_reread(self[REREAD_TOKENS])

    @property
    def whole_sums(self) -> BatchSums:
        """The same, keys that decodes share counted for each of them."""
        return BatchSums(*(self.table[:, FIRST_SUM + i] for i in range(len(SUMS))))


@dataclass(frozen=True)
class Run:
    """A simulated run.

    Attributes:
        workload: What was sent.
        requests: Per request.
        steps: Per step.
        gaps: Gaps between steps' tokens, over all requests that generated any.
        kv_blocks: KV cache blocks of one replica.
        block_size: Tokens in a block.
        replicas: Data-parallel replicas of all servers together.
        groups: Of replicas that step together, alike in size.
    """

    workload: Workload
    requests: RequestRecords
    steps: StepRecords
    gaps: GapRuns
    kv_blocks: int
    block_size: int
    replicas: int = 1
    groups: int = 1

    @property
    def step_replicas(self) -> int:
        """Replicas that a recorded step is of: a group's."""
        return self.replicas // self.groups

    @property
    def step_blocks(self) -> int:
        """KV cache blocks of those together."""
        return self.kv_blocks * self.step_replicas
