"""Simulate a workload on a deployment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pinn.errors import PinnError
from pinn.latency.protocol import LatencyModel
from pinn.simulator.admission import check_run
from pinn.simulator.engine import Engine, PlainEngine
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.loop import BAD_STEP, FULL, advance, advance_compiled
from pinn.simulator.memory import kv_layout
from pinn.simulator.python_latency import complete_latency
from pinn.simulator.records import read_records
from pinn.simulator.run import GapRuns, Run, StepRecords
from pinn.simulator.setup import set_up
from pinn.specs.deployment import Deployment
from pinn.workloads.workload import Workload


def simulate(
    deployment: Deployment,
    workload: Workload,
    latency: LatencyModel,
    engine: EngineSpec | None = None,
    *,
    compiled: bool | None = None,
) -> Run:
    """Serve a workload on a simulated vLLM V1 engine.

    The run is a pure function of its arguments: nothing is drawn at random.

    Args:
        deployment: Model, GPU and serving configuration.
        workload: What clients send.
        latency: Seconds for everything that takes time. A ``LinearLatency`` runs compiled, any
            other object with the methods of ``LatencyModel`` in plain Python; scheduling,
            preemption and completion may be missing and take 0 s then.
        engine: Further engine settings.
        compiled: Run in compiled code or not; by default whenever ``latency`` allows it.

    Raises:
        PinnError: If the model does not fit, a request exceeds max_model_len or the KV cache, a
            flag contradicts another, or the latency model gives a step no positive time.
    """
    latency, engine = complete_latency(latency), engine or EngineSpec()
    layout = kv_layout(deployment, engine)
    too_long = check_run(deployment, workload, engine, layout)
    state = set_up(deployment, workload, engine, layout, too_long)
    steps, gaps = _run(state, latency, compiled)
    return Run(
        workload,
        read_records(state, latency),
        steps,
        gaps,
        layout.blocks,
        deployment.recipe.block_tokens,
        deployment.recipe.data_parallel_size,
    )


def _run(
    engine: Engine, latency: LatencyModel, compiled: bool | None
) -> tuple[StepRecords, GapRuns]:
    if compiled is None:
        compiled = isinstance(latency, LinearLatency)
    if not compiled:
        plain = PlainEngine(engine)
        records = _collect(advance, plain, plain.arrays, latency)
        plain.write_back(engine)
        return records
    if not isinstance(latency, LinearLatency):
        raise PinnError(f"only a LinearLatency runs compiled, got {type(latency).__name__}")
    return _collect(advance_compiled, engine.handle, engine.arrays, latency.compile())


def _collect(
    go: Callable[[Any, Any], int],
    state: Any,
    arrays: dict[str, Any],
    model: Any,
) -> tuple[StepRecords, GapRuns]:
    """Run to the end, emptying the record buffers whenever they are full."""
    steps, seconds, counts = [], [], []
    status = FULL
    while status == FULL:
        before = state.progress
        status = go(state, model)
        if status == FULL and state.progress == before:
            raise PinnError(
                f"the engine is stuck: {state.n_steps} steps generated no token; requests preempt "
                f"each other, because a KV cache of {state.blocks} blocks is full of others that "
                "wait for theirs"
            )
        steps.append(arrays["steps"][: state.n_steps].copy())
        seconds.append(arrays["gap_s"][: state.n_gaps].copy())
        counts.append(arrays["gap_count"][: state.n_gaps].copy())
        state.n_steps = state.n_gaps = 0
    if status == BAD_STEP:
        raise PinnError(
            f"the latency model gave a step {state.bad_step_s} s; it must be positive and finite "
            "for every batch"
        )
    return StepRecords(np.concatenate(steps)), GapRuns(
        np.concatenate(seconds), np.concatenate(counts)
    )
