"""Interface of latency models, which predict times in seconds for a simulator."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pinn.specs.batch import Batch

# Methods that the simulator calls on a latency model, and how it uses each result.
#
# A request's E2E latency, as its client sees it, is the sum of
#
# - arrival to queue, ``queueing_time``: work of the API server, for which later requests wait
# - waiting, no method: a result of the simulation (API server, steps in flight, queue, token
#   budget, KV blocks)
# - scheduling, ``scheduling_processing_time``: once per request, seen by its client only
# - steps, ``step_time``: the engine's clock, the only part that affects other requests
# - output, ``output_token_processing_time``: work of the API server on each streamed token
# - preemption, ``preemption_processing_time``: once per preemption; steps include its recomputation
# - completion, ``post_decode_fixed_overhead``: once after the last token, only in E2E
#
# The first five, except waiting, are the methods StepTime, QueueingTime, OutputTokenProcessingTime,
# SchedulingProcessingTime and PreemptionProcessingTime; the current release of BLIS has the first
# three and PostDecodeFixedOverhead. While the engine works, an API server process accepts requests
# and streams tokens, one task at a time. Streaming a token therefore lengthens an ITL gap only if
# the server cannot keep up. The simulation includes the wait for steps in flight (2.5 steps on
# average until the first token, under asynchronous scheduling). A latency model must not add it.
#
# Data-parallel ranks that share experts step together. For such ranks a latency model may have
# ``shared_step_time(prompts, decodes, prompt_tokens)``, for the mean rank's work, and
# ``own_step_time(batch, shared_s)``. With both methods, a step of the ranks lasts as long as the
# longest ``own_step_time``; otherwise as long as the longest ``step_time``.


@runtime_checkable
class LatencyModel(Protocol):
    """Predictor of all times in a simulation; methods return finite seconds, at least 0."""

    def step_time(self, batch: Batch) -> float:
        """Return the engine step time of a batch in seconds, which must be positive."""

    def queueing_time(self, prompt_tokens: float) -> float:
        """Return the API server's time in seconds before a request enters the engine's queue."""

    def output_token_processing_time(self) -> float:
        """Return the API server's time in seconds for each token that it streams."""

    def scheduling_processing_time(self, prompt_tokens: float) -> float:
        """Return a request's delay in seconds before its first token, outside queue and steps."""

    def preemption_processing_time(self, prompt_tokens: float) -> float:
        """Return a request's extra delay in seconds per preemption, excluding recomputation."""

    def post_decode_fixed_overhead(self) -> float:
        """Return the time from a request's last token until its client sees its end, in seconds."""
