"""Simulate a workload on a deployment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pinn.coefficients.protocol import LatencyModel
from pinn.errors import PinnError
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
from pinn.simulator.workloads.workload import Workload
from pinn.specs.deployment import Deployment
from pinn.specs.limits import MOST_STEPS, check_size

#: Whether a run is of no use any more, from its requests so far and the engine's time.
Hopeless = Callable[[np.ndarray, float], bool]

#: Steps before the first such question, and of those so far the share until the next.
_FIRST_LOOK_STEPS = 512
_LOOKS = 8


def simulate(
    deployment: Deployment,
    workload: Workload,
    latency: LatencyModel,
    engine: EngineSpec | None = None,
    *,
    compiled: bool | None = None,
) -> Run:
    """Serve a workload on a simulated vLLM V1 engine.

    The run is a pure function of its arguments: nothing is drawn at random but which drafted tokens
    are accepted, by numbers that belong to the requests (``pinn.simulator.verification``).

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
    run = simulate_unless(None, deployment, workload, latency, engine, compiled=compiled)
    assert run is not None, "a run that nothing may stop came to no end"
    return run


def simulate_unless(
    hopeless: Hopeless | None,
    deployment: Deployment,
    workload: Workload,
    latency: LatencyModel,
    engine: EngineSpec | None = None,
    *,
    compiled: bool | None = None,
) -> Run | None:
    """Simulate, but give up as soon as the run is known to be of no use.

    Args:
        hopeless: Looks at the requests so far (``pinn.simulator.state.REQUEST``) and the engine's
            time, and tells whether to give up; asked ever more rarely as the run grows, and of
            compiled runs alone.
        deployment: As for :func:`simulate`, like the rest.
        workload: What clients send.
        latency: Seconds for everything that takes time.
        engine: Further engine settings.
        compiled: Run in compiled code or not.

    Returns:
        The run; None where it was given up.
    """
    latency, engine = complete_latency(latency), engine or EngineSpec()
    layout = kv_layout(deployment, engine)
    too_long = check_run(deployment, workload, engine, layout)
    state = set_up(deployment, workload, engine, layout, too_long)
    records = _run(state, latency, compiled, hopeless)
    if records is None:
        return None
    return Run(
        workload,
        read_records(state, latency),
        *records,
        layout.blocks,
        deployment.recipe.block_tokens,
        engine.replicas * deployment.recipe.data_parallel_size,
        int(state.record["n_groups"][0]),
    )


def _run(
    engine: Engine, latency: LatencyModel, compiled: bool | None, hopeless: Hopeless | None
) -> tuple[StepRecords, GapRuns] | None:
    if compiled is None:
        compiled = isinstance(latency, LinearLatency)
    if not compiled:
        plain = PlainEngine(engine)
        records = _collect(advance, plain, plain.arrays, latency)
        plain.write_back(engine)
        return records
    if not isinstance(latency, LinearLatency):
        raise PinnError(f"only a LinearLatency runs compiled, got {type(latency).__name__}")
    model = latency.compile(bool(engine.handle.prefill_first))
    return _collect(advance_compiled, engine.handle, engine.arrays, model, hopeless)


def _collect(
    go: Callable[[Any, Any], int],
    state: Any,
    arrays: dict[str, Any],
    model: Any,
    hopeless: Hopeless | None = None,
) -> tuple[StepRecords, GapRuns] | None:
    """Run to the end, emptying the record buffers whenever they are full or somebody looks."""
    records = Buffers(state, arrays)
    status, rows, idle, total = FULL, state.step_rows, 0, 0
    while status == FULL:
        if hopeless is not None:
            state.step_rows = min(rows, max(_FIRST_LOOK_STEPS, total // _LOOKS))
        before = state.progress
        status = go(state, model)
        idle = 0 if state.progress > before else idle + state.n_steps
        if status == FULL and idle >= rows // 2:
            raise stuck(state, idle)
        total += state.n_steps
        check_steps(total)
        records.empty()
        if status == FULL and hopeless is not None and hopeless(*_so_far(arrays)):
            return None
    if status == BAD_STEP:
        raise bad_step(state)
    return records.whole()


class Buffers:
    """What an engine has recorded, in buffers that are emptied now and then."""

    def __init__(self, state: Any, arrays: dict[str, Any]) -> None:
        self.state, self.arrays = state, arrays
        self.steps: list[np.ndarray] = []
        self.gaps: list[list[np.ndarray]] = []

    def empty(self) -> None:
        """Take what has come since the last time."""
        state, arrays = self.state, self.arrays
        self.steps.append(arrays["steps"][: state.n_steps].copy())
        columns = ("gap_s", "gap_count", "gap_tokens")
        self.gaps.append([arrays[name][: state.n_gaps].copy() for name in columns])
        state.n_steps = state.n_gaps = 0

    def whole(self) -> tuple[StepRecords, GapRuns]:
        """All that was taken."""
        gaps = GapRuns(*(np.concatenate(parts) for parts in zip(*self.gaps, strict=True)))
        return StepRecords(np.concatenate(self.steps)), gaps


def stuck(state: Any, idle: int) -> PinnError:
    """The error of an engine whose steps come to nothing."""
    return PinnError(
        f"the engine is stuck: {idle} steps generated no token; requests preempt each "
        f"other, because a KV cache of {state.blocks} blocks is full of others that wait "
        "for theirs"
    )


def check_steps(total: int) -> None:
    """Refuse a simulation of more than ``MOST_STEPS`` steps."""
    check_size(total, MOST_STEPS, "steps of the simulation", "simulate a shorter load")


def bad_step(state: Any) -> PinnError:
    """The error of a latency model whose step times cannot be."""
    return PinnError(
        f"the latency model gave a step {state.bad_step_s} s; it must be positive and finite "
        "for every batch"
    )


def _so_far(arrays: dict[str, Any]) -> tuple[np.ndarray, float]:
    return arrays["requests"], float(arrays["groups"]["now_s"].max())
