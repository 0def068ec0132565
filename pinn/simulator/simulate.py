"""Serve a workload in simulated time."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from pinn.coefficients.coefficients import LatencyModel
from pinn.common.documents import MOST_STEPS, check_size
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.physics.request import RequestState
from pinn.simulator import engine_spec, linear_latency, memory, setup
from pinn.simulator.engine import Engine, PlainEngine
from pinn.simulator.loop import BAD_STEP, FULL, advance
from pinn.simulator.run import STATUSES, GapRuns, RequestRecords, Run, StepRecords
from pinn.simulator.state import FINISHED, REJECTED, REQUEST
from pinn.simulator.workloads.workload import Workload

# The records of a run, read off the engine's final state.


def read_records(state: Engine, latency: LatencyModel) -> RequestRecords:
    """What happened to every request.

    Raises:
        PinnError: If requests are left that the engine can never schedule.
    """
    r = state.arrays["requests"]
    stuck = np.flatnonzero(~np.isin(r["status"], list(STATUSES)))
    if len(stuck):
        raise PinnError(
            f"the engine is stuck: {len(stuck)} requests can never be scheduled, the first is "
            f"request {stuck[0]}; transferred keys and values fill the KV cache"
        )
    completion_s = float(latency.post_decode_fixed_overhead())
    finished, started = r["status"] == FINISHED, r["generated"] > 0
    last = r["last_sent_s"] + (r["scheduling_s"] + r["preemption_s"] + completion_s)
    first = r["first_sent_s"] + r["scheduling_s"] + r["early_preemption_s"]
    same = [f.name for f in fields(RequestRecords) if f.name in (REQUEST.names or ())]
    columns: dict[str, Any] = {name: _column(r[name]) for name in same}
    names = np.array([STATUSES.get(s, "") for s in range(REJECTED + 1)])
    columns |= {
        "status": names[r["status"]],
        "prompt_tokens": _column(r["prompt"]),
        "output_tokens": _column(r["generated"]),
        "computed_tokens": _column(r["worked"]),
        "arrival_s": r["sent_s"].copy(),
        "first_token_s": np.where(started, first, np.nan),
        "finish_s": np.where(finished, last, r["last_s"]),
        "engine_first_token_s": _column(r["first_s"]),
        "engine_finish_s": np.where(finished, r["last_s"], np.nan),
        "arrival_state": _state(state, "sent"),
        "start_state": _state(state, "start"),
        "completion_s": completion_s,
    }
    return RequestRecords(**columns)


def _column(values: np.ndarray) -> np.ndarray:
    """Whole numbers of one size, or seconds, NaN where there are none yet."""
    if values.dtype.kind == "i":
        return values.astype(np.int64)
    return np.where(values < 0, np.nan, values)


def _state(engine: Engine, when: str) -> RequestState:
    """The situation of every request at one moment of its life."""
    r, record = engine.arrays["requests"], engine.record[0]
    prompt = r["prompt"].astype(np.float64)
    known = np.ones(len(r))
    step_time_s, queue_share, kv_usage = r[f"{when}_situation"].T.copy()
    return RequestState(
        prompt_tokens=prompt,
        step_time_s=step_time_s,
        queue_share=queue_share,
        kv_usage=kv_usage,
        prompt_share=prompt / record["max_model_len"],
        inverse_tensor_parallel=known / record["tensor_parallel"],
        prefix_caching=known * record["prefix_caching"],
        chunked_prefill=known * record["chunked_prefill"],
        recomputed_tokens=prompt,
    )


# Simulate a workload on a deployment.

#: What an engine has recorded of its steps, and of the gaps between tokens.
Recorded = tuple[StepRecords, GapRuns]

#: Whether a run is of no use any more, from its requests so far and the engine's time.
Hopeless = Callable[[np.ndarray, float], bool]

#: Steps before the first such question, and of those so far the share until the next.
_FIRST_LOOK_STEPS = 512
_LOOKS = 8


class HopelessError(Exception):
    """A run was given up."""


def simulate(
    deployment: Deployment,
    workload: Workload,
    latency: LatencyModel,
    engine: engine_spec.EngineSpec | None = None,
    *,
    compiled: bool | None = None,
    hopeless: Hopeless | None = None,
) -> Run:
    """Serve a workload on a simulated vLLM V1 engine.

    The run is a pure function of its arguments: nothing is drawn at random but which drafted tokens
    are accepted, by numbers that belong to the requests (``pinn.simulator.servers``).

    Args:
        deployment: Model, GPU and serving configuration.
        workload: What clients send.
        latency: Seconds for everything that takes time. A ``LinearLatency`` runs compiled, any
            other object with the methods of ``LatencyModel`` in plain Python; scheduling,
            preemption and completion may be missing and take 0 s then.
        engine: Further engine settings.
        compiled: Run in compiled code or not; by default whenever ``latency`` allows it.
        hopeless: Looks at the requests so far (``pinn.simulator.state.REQUEST``) and the engine's
            time, and tells whether to give up; asked ever more rarely as the run grows, and of
            compiled runs alone.

    Raises:
        PinnError: If the model does not fit, a request exceeds max_model_len or the KV cache, a
            flag contradicts another, or the latency model gives a step no positive time.
        HopelessError: If ``hopeless`` said so.
    """
    latency, engine = linear_latency.complete_latency(latency), engine or engine_spec.EngineSpec()
    layout = memory.kv_layout(deployment, engine)
    too_long = setup.check_run(deployment, workload, engine, layout)
    state = setup.set_up(deployment, workload, engine, layout, too_long)
    (recorded,) = run_engines(advance, [state], [latency], compiled, hopeless)
    return finished_run(workload, state, read_records(state, latency), recorded)


def finished_run(
    workload: Workload, state: Engine, requests: RequestRecords, recorded: Recorded
) -> Run:
    """A run from its parts."""
    blocks, replicas, groups = (
        int(state.record[name][0]) for name in ("cache_blocks", "n_replicas", "n_groups")
    )
    return Run(workload, requests, *recorded, blocks, replicas, groups)


def run_engines(
    loop: Any,
    engines: Sequence[Engine],
    latencies: Sequence[LatencyModel],
    compiled: bool | None,
    hopeless: Hopeless | None = None,
) -> list[Recorded]:
    """What engines record that one loop steps together, to the end or until that is hopeless.

    Raises:
        PinnError: If they get stuck, or a latency model cannot be used.
        HopelessError: If the run was given up.
    """
    linear = [each for each in latencies if isinstance(each, linear_latency.LinearLatency)]
    if compiled is None:
        compiled = len(linear) == len(latencies)
    if not compiled:
        plain = [PlainEngine(engine) for engine in engines]
        records = _collect(loop.py_func, plain, [each.arrays for each in plain], latencies)
        for state, engine in zip(plain, engines, strict=True):
            state.write_back(engine)
        return records
    if len(linear) < len(latencies):
        kinds = ", ".join(type(each).__name__ for each in latencies)
        raise PinnError(f"only a LinearLatency runs compiled, got {kinds}")
    states = [engine.handle for engine in engines]
    models = [
        each.compile(bool(state.prefill_first)) for each, state in zip(linear, states, strict=True)
    ]
    return _collect(loop, states, [each.arrays for each in engines], models, hopeless)


def _collect(
    go: Callable[..., int],
    states: Sequence[Any],
    arrays: Sequence[dict[str, Any]],
    models: Sequence[Any],
    hopeless: Hopeless | None = None,
) -> list[Recorded]:
    """Run to the end, emptying the record buffers whenever one is full or somebody looks."""
    taken: list[list[list[np.ndarray]]] = [[] for _ in states]
    status, rows, idle, total = FULL, states[0].step_rows, 0, 0
    while status == FULL:
        if hopeless is not None:
            states[0].step_rows = min(rows, max(_FIRST_LOOK_STEPS, total // _LOOKS))
        before = sum(state.progress for state in states)
        status = go(*states, *models)
        steps = sum(state.n_steps for state in states)
        idle = 0 if sum(state.progress for state in states) > before else idle + steps
        if status == FULL and idle >= rows // 2:
            raise PinnError(
                f"the engine is stuck: {idle} steps generated no token; requests preempt each "
                f"other, because a KV cache of {states[-1].blocks} blocks is full of others that "
                "wait for theirs"
            )
        total += steps
        check_size(total, MOST_STEPS, "steps of the simulation", "simulate a shorter load")
        for parts, state, of_state in zip(taken, states, arrays, strict=True):
            parts.append(_take(state, of_state))
        if status == FULL and hopeless is not None:
            now_s = float(arrays[0]["groups"]["now_s"].max())
            if hopeless(arrays[0]["requests"], now_s):
                raise HopelessError
    if status == BAD_STEP:
        seconds = next((s.bad_step_s for s in states if s.bad_step_s != 0), 0.0)
        raise PinnError(
            f"the latency model gave a step {seconds} s; it must be positive and finite for every "
            "batch"
        )
    records = []
    for parts in taken:
        steps, *gaps = (np.concatenate(column) for column in zip(*parts, strict=True))
        records.append((StepRecords(steps), GapRuns(*gaps)))
    return records


def _take(state: Any, arrays: dict[str, Any]) -> list[np.ndarray]:
    """Steps and gaps that an engine has recorded since the last time, out of its buffers."""
    steps = arrays["steps"][: state.n_steps].copy()
    gaps = [arrays[name][: state.n_gaps].copy() for name in ("gap_s", "gap_count", "gap_tokens")]
    state.n_steps = state.n_gaps = 0
    return [steps, *gaps]
