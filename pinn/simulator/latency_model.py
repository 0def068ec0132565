"""The interface of latency models, which predict seconds for a simulator."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pinn.specs.batch import Batch

# What a simulator asks of a latency model, and where each answer goes.
#
# A request's end-to-end latency, as its client sees it, is the sum of
#
# | part | method | note | |---|---|---| | arrival to queue | ``queueing_time`` | work of the API
# server on it; others wait meanwhile | | waiting | none | emerges: API server, steps in flight,
# queue, token budget, KV blocks | | scheduling | ``scheduling_processing_time`` | once per
# request; delays what its client sees | | steps | ``step_time`` | the engine's clock: the only
# part that other requests feel | | output | ``output_token_processing_time`` | work of the API
# server on each token it streams | | preemption | ``preemption_processing_time`` | per
# preemption; its recomputation is in the steps | | completion | ``post_decode_fixed_overhead`` |
# once, after the last token; in E2E alone |
#
# The first five but waiting are the methods StepTime, QueueingTime, OutputTokenProcessingTime,
# SchedulingProcessingTime and PreemptionProcessingTime; the current Go simulator has the first
# three and PostDecodeFixedOverhead. An API server process takes requests in and streams tokens
# out, one thing after another: while it works on one, the others wait. It works while the engine
# does, so a token's work adds to a gap only where the server cannot keep up. Since the wait for
# the steps in flight emerges in a simulator (2.5 steps on average until the first token, under
# asynchronous scheduling), a model that adds a share of the step time for it must not do so
# here.
#
# Data-parallel ranks that share experts step together. Where a model has
# ``shared_step_time(prompts, decodes, prompt_tokens)``, which is asked about the mean rank's work,
# and ``own_step_time(batch, shared_s)``, their step takes the longest of the latter; else the
# longest ``step_time``.


@runtime_checkable
class LatencyModel(Protocol):
    """Seconds of everything that takes time; no method may return a negative or infinite value."""

    def step_time(self, batch: Batch) -> float:
        """Return the seconds of one engine step for a batch; positive."""

    def queueing_time(self, prompt_tokens: float) -> float:
        """Return the API server's seconds on a request until it enters the engine's input queue."""

    def output_token_processing_time(self) -> float:
        """Return the API server's seconds for each token that it streams."""

    def scheduling_processing_time(self, prompt_tokens: float) -> float:
        """Return a request's delay between queue and first token, beyond waiting and steps."""

    def preemption_processing_time(self, prompt_tokens: float) -> float:
        """Return the seconds of one preemption, without the recomputation."""

    def post_decode_fixed_overhead(self) -> float:
        """Return the seconds after the last token of a request."""
