"""Where the loop asks the latency model.

Each hook is a plain function for any Python object with the methods of ``LatencyModel`` and, under
``numba.extending.overload``, a compiled one for ``LinearCoefficients``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from pinn.features.request import RequestState
from pinn.latency.protocol import LatencyModel
from pinn.simulator import arrays
from pinn.simulator.engine import PlainEngine
from pinn.simulator.jit import inner
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
from pinn.simulator.step_kernel import step_values
from pinn.specs.batch import Batch


class LinearCoefficients(NamedTuple):
    """A deployment's linear latency model as compiled code reads it."""

    costs: Any  # Costs
    beta: np.ndarray  # [len(StepValues)]
    alpha: np.ndarray  # [phases, len(RequestValues)]


@inner
def situation(engine, r):
    """What is known of a request and the replica that it is on, right now.

    The step time is a moving average over the replica's last steps, 0 before the first; the queue
    does not count the request itself; all its known tokens count as recomputed.
    """
    request = arrays.requests(engine)[r]
    state = arrays.replicas(engine)[request.replica]
    group = arrays.groups(engine)[request.replica if engine.n_groups > 1 else 0]
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
    request, now = arrays.requests(engine)[r], situation(engine, r)
    request.sent_step_s = now.step_time_s
    request.sent_queue_share = now.queue_share
    request.sent_kv_usage = now.kv_usage


@inner
def note_start(engine, r):
    """Record the situation that ``scheduling_processing_time`` is asked about."""
    request, now = arrays.requests(engine)[r], situation(engine, r)
    request.start_step_s = now.step_time_s
    request.start_queue_share = now.queue_share
    request.start_kv_usage = now.kv_usage


def request_state(engine: PlainEngine, r: int) -> RequestState:
    """A request's situation for Python latency models."""
    return RequestState(*(np.asarray(value, np.float64) for value in situation(engine, r)))


def step_seconds(latency: LatencyModel, engine: PlainEngine, replica: int) -> float:
    """StepTime of the batch that a replica has just scheduled."""
    group = arrays.groups(engine)[replica if engine.n_groups > 1 else 0]
    column = (group.oldest + group.in_flight) % engine.depth
    rows = slice(0, arrays.batch_size(engine)[replica, column])
    added = arrays.replicas(engine)[replica].padding
    batch = Batch(
        tuple(arrays.batch_new(engine)[replica, column, rows].tolist()) + (1,) * added,
        tuple(arrays.batch_cached(engine)[replica, column, rows].tolist()) + (0,) * added,
        tuple(arrays.batch_prefill(engine)[replica, column, rows].astype(bool).tolist())
        + (False,) * added,
        float(arrays.sums(engine)[replica, REREAD]),
    )
    return float(latency.step_time(batch))


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
def _phase_seconds(latency, engine, r, phase):
    return _dot(latency.alpha[phase], request_values(situation(engine, r)))


def _is_linear(latency) -> bool:
    return getattr(latency, "instance_class", None) is LinearCoefficients


@overload(step_seconds)
def _(latency, engine, replica):  # noqa: ARG001
    if _is_linear(latency):
        return lambda latency, engine, replica: _dot(
            latency.beta, step_values(latency.costs, arrays.sums(engine)[replica])
        )
    return None


@overload(queueing_seconds)
def _(latency, engine, r):  # noqa: ARG001
    if _is_linear(latency):
        return lambda latency, engine, r: _phase_seconds(latency, engine, r, ARRIVAL)
    return None


@overload(scheduling_seconds)
def _(latency, engine, r):  # noqa: ARG001
    if _is_linear(latency):
        return lambda latency, engine, r: (
            _phase_seconds(latency, engine, r, SCHEDULE)
            + _phase_seconds(latency, engine, r, FIRST_TOKEN)
        )
    return None


@overload(preemption_seconds)
def _(latency, engine, r):  # noqa: ARG001
    if _is_linear(latency):
        return lambda latency, engine, r: _phase_seconds(latency, engine, r, PREEMPTION)
    return None


@overload(after_output_seconds)
def _(latency):
    if _is_linear(latency):
        return lambda latency: (latency.alpha[OUTPUT_TOKEN, 0], latency.alpha[COMPLETION, 0])
    return None
