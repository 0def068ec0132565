"""Where the loop asks the latency model.

Each hook is a plain function for any Python object with the methods of ``LatencyModel`` and, under
``numba.extending.overload``, a compiled one for ``LinearCoefficients``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numba import types

from pinn.coefficients.protocol import LatencyModel
from pinn.physics.request import RequestState
from pinn.simulator import arrays
from pinn.simulator.engine import PlainEngine
from pinn.simulator.jit import compiled_as, inner
from pinn.simulator.prefill_first import schedule_apart
from pinn.simulator.request_kernel import (
    ARRIVAL,
    COMPLETION,
    FIRST_TOKEN,
    OUTPUT_TOKEN,
    PREEMPTION,
    SCHEDULE,
    Situation,
    request_values,
)
from pinn.simulator.state import REREAD
from pinn.simulator.step_formulas import step_formulas
from pinn.simulator.step_kernel import step_values
from pinn.simulator.topology import group_of
from pinn.specs.batch import Batch


class LinearCoefficients(NamedTuple):
    """A deployment's linear latency model as compiled code reads it."""

    costs: Any  # Costs
    beta: Float[np.ndarray, " step_values"]
    alpha: Float[np.ndarray, "phases request_values"]
    apart: int | None = None  # 1 where prompts have steps of their own: a type of its own


class SpeculativeCoefficients(NamedTuple):
    """Step times of a deployment that drafts and verifies (``pinn.physics.speculation``).

    A type of its own, so that the code of plain steps stays what it is.
    """

    costs: Any  # Costs of the pass that verifies
    beta: Float[np.ndarray, " step_values"]  # Of what happens once a step
    alpha: Float[np.ndarray, "phases request_values"]
    pass_beta: Float[np.ndarray, " step_values"]  # and in every pass
    first: Any  # Costs of the draft's first pass
    later: Any  # and of the further ones
    tokens: float
    passes: float
    branches: float
    apart: int | None = None


@inner
def situation(engine, r):
    """What is known of a request and the replica that it is on, right now.

    The step time is a moving average over the replica's last steps, 0 before the first; the queue
    does not count the request itself; all its known tokens count as recomputed.
    """
    request = arrays.requests(engine, r)
    state = arrays.replicas(engine, request.replica)
    group = arrays.groups(engine, group_of(engine, request.replica))
    return Situation(
        float(request.prompt),
        group.step_time_s,
        state.waiting / engine.max_num_seqs,
        (engine.blocks - state.free_blocks) / engine.cache_blocks,
        request.prompt / engine.max_model_len,
        1 / engine.tensor_parallel,
        1.0 if engine.caching else 0.0,
        1.0 if engine.chunked else 0.0,
        float(request.prompt + request.generated),
    )


@inner
def note_sent(engine, r):
    """Record the situation that ``queueing_time`` is asked about."""
    request, now = arrays.requests(engine, r), situation(engine, r)
    request.sent_step_s = now.step_time_s
    request.sent_queue_share = now.queue_share
    request.sent_kv_usage = now.kv_usage


@inner
def note_start(engine, r):
    """Record the situation that ``scheduling_processing_time`` is asked about."""
    request, now = arrays.requests(engine, r), situation(engine, r)
    request.start_step_s = now.step_time_s
    request.start_queue_share = now.queue_share
    request.start_kv_usage = now.kv_usage


def request_state(engine: PlainEngine, r: int) -> RequestState:
    """A request's situation for Python latency models."""
    return RequestState(*(np.asarray(value, np.float64) for value in situation(engine, r)))


def step_seconds(latency: LatencyModel, engine: PlainEngine, replica: int) -> float:
    """StepTime of the batch that a replica has just scheduled."""
    group = arrays.groups(engine, group_of(engine, replica))
    column = (group.oldest + group.in_flight) % engine.depth
    rows = slice(0, arrays.batch_size(engine, replica, column))
    added = arrays.replicas(engine, replica).padding
    batch = Batch(
        tuple(arrays.batch_new(engine, replica, column, rows).tolist()) + (1,) * added,
        tuple(arrays.batch_cached(engine, replica, column, rows).tolist()) + (0,) * added,
        tuple(arrays.batch_prefill(engine, replica, column, rows).astype(bool).tolist())
        + (False,) * added,
        float(arrays.sums(engine, replica, REREAD)),
    )
    return float(latency.step_time(batch))


def schedule_apart_if(
    latency: LatencyModel,  # noqa: ARG001  compiled code goes by its type
    engine: PlainEngine,
    replica: int,
    column: int,
    now: float,
) -> None:
    """Fill a batch with prompts alone or decodes alone, where an engine does so.

    Engines whose steps have both are spared the time that compiling this takes.
    """
    schedule_apart(engine, replica, column, now)


def queueing_seconds(latency: LatencyModel, engine: PlainEngine, r: int) -> float:
    """QueueingTime of a request that was just sent."""
    return float(latency.queueing_time(request_state(engine, r)))


def scheduling_seconds(latency: LatencyModel, engine: PlainEngine, r: int) -> float:
    """SchedulingProcessingTime of a request that was just scheduled for the first time."""
    return float(latency.scheduling_processing_time(request_state(engine, r)))


def preemption_seconds(latency: LatencyModel, engine: PlainEngine, r: int) -> float:
    """PreemptionProcessingTime of a request that was just preempted."""
    return float(latency.preemption_processing_time(request_state(engine, r)))


def after_output_seconds(latency: LatencyModel) -> tuple[float, float]:
    """(OutputTokenProcessingTime, PostDecodeFixedOverhead)."""
    per_token = float(latency.output_token_processing_time())
    return per_token, float(latency.post_decode_fixed_overhead())


@inner
def _dot(weights, values):
    total = 0.0
    for i in range(len(weights)):
        total += weights[i] * values[i]
    return total


@inner
def speculative_seconds(latency, sums):
    """A step of several passes, see ``pinn.physics.speculation``."""
    context, near = sums[3], sums[6]
    if sums[REREAD] > 0:
        context -= sums[REREAD]
        near *= context / sums[3]
    added = sums[1] * latency.tokens
    verified = step_formulas(
        latency.costs, sums[0], sums[1] + added, sums[2], context + added, sums[4], sums[5],
        near + added, sums[7], sums[8],
    )  # fmt: skip
    once = step_values(latency.costs, sums)
    total = _dot(latency.pass_beta, verified) + _dot(latency.beta, once)
    if latency.passes == 0:
        return total
    first = step_formulas(
        latency.first, sums[0], sums[1], sums[2] + added, context + added, sums[4], sums[5],
        near + added, sums[7], sums[8],
    )  # fmt: skip
    total += _dot(latency.pass_beta, first)
    known, b = sums[4] + sums[2], latency.branches
    later = step_formulas(
        latency.later, 0.0, b * (sums[0] + sums[1]), 0.0, b * (context + known), 0.0, 0.0,
        b * (near + sums[7] + sums[2]), 0.0, 0.0,
    )  # fmt: skip
    return total + (latency.passes - 1) * _dot(latency.pass_beta, later)


@inner
def _phase_seconds(latency, engine, r, phase):
    return _dot(latency.alpha[phase], request_values(situation(engine, r)))


def _is_linear(latency) -> bool:
    kind = getattr(latency, "instance_class", None)
    return kind is LinearCoefficients or kind is SpeculativeCoefficients


@compiled_as(step_seconds)
def _(latency, engine, replica):  # noqa: ARG001
    if getattr(latency, "instance_class", None) is SpeculativeCoefficients:
        return lambda latency, engine, replica: speculative_seconds(
            latency, arrays.sums(engine, replica)
        )
    if _is_linear(latency):
        return lambda latency, engine, replica: _dot(
            latency.beta, step_values(latency.costs, arrays.sums(engine, replica))
        )
    return None


@compiled_as(schedule_apart_if)
def _(latency, engine, replica, column, now):  # noqa: ARG001
    if not _is_linear(latency):
        return None
    if latency[latency.fields.index("apart")] is types.none:
        return lambda latency, engine, replica, column, now: None  # noqa: ARG005

    def apart(latency, engine, replica, column, now):  # noqa: ARG001
        schedule_apart(engine, replica, column, now)

    return apart


@compiled_as(queueing_seconds)
def _(latency, engine, r):  # noqa: ARG001
    if _is_linear(latency):
        return lambda latency, engine, r: _phase_seconds(latency, engine, r, ARRIVAL)
    return None


@compiled_as(scheduling_seconds)
def _(latency, engine, r):  # noqa: ARG001
    if _is_linear(latency):
        return lambda latency, engine, r: (
            _phase_seconds(latency, engine, r, SCHEDULE)
            + _phase_seconds(latency, engine, r, FIRST_TOKEN)
        )
    return None


@compiled_as(preemption_seconds)
def _(latency, engine, r):  # noqa: ARG001
    if _is_linear(latency):
        return lambda latency, engine, r: _phase_seconds(latency, engine, r, PREEMPTION)
    return None


@compiled_as(after_output_seconds)
def _(latency):
    if _is_linear(latency):
        return lambda latency: (latency.alpha[OUTPUT_TOKEN, 0], latency.alpha[COMPLETION, 0])
    return None
