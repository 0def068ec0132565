"""Simulation of a workload on a deployment, once or many times."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from pinn.common.documents import MOST_STEPS, check_size
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.memory.host_tier import host_tier
from pinn.memory.kv_cache import kv_layout, started
from pinn.simulator import setup
from pinn.simulator.engine import Engine, plain_engine, write_back
from pinn.simulator.latency_model import LatencyModel
from pinn.simulator.linear_latency import LinearLatency, complete_latency
from pinn.simulator.loop import BAD_STEP, FULL, advance, compiled_advance
from pinn.simulator.run import STATUSES, GapRuns, RequestRecords, Run, StepRecords
from pinn.simulator.state import FINISHED, LOST, REQUEST, TRANSFER, Records, Transfer
from pinn.simulator.transfers import TransferRecords, with_tier
from pinn.simulator.workloads.workload import Workload

# Records of a run, read from the engine's final state.


def read_records(state: Engine, latency: LatencyModel) -> RequestRecords:
    """Return the times and token counts of every request.

    Raises:
        PinnError: If requests remain that the engine can never schedule.
    """
    r = state.requests
    stuck = np.flatnonzero(~np.isin(r["status"], list(STATUSES)))
    if len(stuck):
        raise PinnError(
            f"the engine is stuck, because transferred KV blocks fill the KV cache: {len(stuck)} "
            f"requests can never be scheduled, of which the first is request {stuck[0]}. Send "
            "fewer requests at a time, or shorter requests"
        )
    completion_s = float(latency.post_decode_fixed_overhead())
    finished, started = r["status"] == FINISHED, r["generated"] > 0
    last = r["last_sent_s"] + (r["scheduling_s"] + r["preemption_s"] + completion_s)
    first = r["first_sent_s"] + r["scheduling_s"] + r["early_preemption_s"]
    same = [f.name for f in fields(RequestRecords) if f.name in (REQUEST.names or ())]
    columns: dict[str, Any] = {name: _column(r[name]) for name in same}
    names = np.array([STATUSES.get(s, "") for s in range(LOST + 1)])
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
        "completion_s": completion_s,
    }
    return RequestRecords(**columns)


def _column(values: np.ndarray) -> np.ndarray:
    """Return a column of request records as float64 or int64; times never set become NaN."""
    if values.dtype.kind == "i":
        return values.astype(np.int64)
    return np.where(values < 0, np.nan, values)


# Simulation of a workload on a deployment.

#: Records of an engine's run: steps, ITL gaps and KV transfers.
Recorded = tuple[StepRecords, GapRuns, TransferRecords]

#: Function that advances engines with their latency models until a record buffer is full.
Loop = Callable[..., int]

#: Criterion for an early stop: function of the requests so far and the engine's time in seconds.
EarlyStop = Callable[[np.ndarray, float], bool]

#: Number of steps before the first check for an early stop. Each later check follows after another
#: 1/8 of the steps so far.
_FIRST_LOOK_STEPS = 512
_LOOKS = 8


class StoppedEarlyError(Exception):
    """Signal that the caller's criterion stopped a run early."""


def simulate(
    deployment: Deployment,
    workload: Workload,
    latency: LatencyModel,
    engine: EngineSpec | None = None,
    *,
    compiled: bool | None = None,
    early_stop: EarlyStop | None = None,
) -> Run:
    """Serve a workload on a simulated vLLM V1 engine.

    Equal arguments produce identical runs. Only the acceptance of draft tokens is random, with
    random numbers that are fixed for each request (``pinn.simulator.client``).

    Args:
        deployment: Model, GPU and serving configuration.
        workload: Requests and their arrivals.
        latency: Latency model, in seconds. A ``LinearLatency`` runs compiled; any other object
            with the methods of ``LatencyModel`` runs in plain Python. Its methods for scheduling,
            preemption and completion are optional and default to 0 s.
        engine: Engine settings beyond the deployment's flags; defaults if None.
        compiled: Whether to run compiled code; by default, if ``latency`` allows it.
        early_stop: Criterion for an early stop, from the requests so far
            (``pinn.simulator.state.REQUEST``) and the engine's time in seconds. Compiled runs
            check it at intervals that grow with the run; other runs ignore it.

    Raises:
        PinnError: If the model does not fit, a request exceeds max_model_len or the KV cache, flags
            contradict each other, or the latency model returns a step time that is not positive.
        StoppedEarlyError: If ``early_stop`` returned true.
    """
    latency, engine = complete_latency(latency), engine or EngineSpec()
    layout = kv_layout(deployment, engine)
    too_long = setup.check_run(deployment, workload, engine, layout)
    state = setup.set_up(deployment, workload, engine, layout, too_long)
    (recorded,) = run_engines((advance, compiled_advance), [state], [latency], compiled, early_stop)
    run = finished_run(workload, state, read_records(state, latency), recorded, layout.blocks)
    tier = host_tier(deployment, engine, layout)
    return with_tier(run, tier, state.replicas, deployment.recipe.block_tokens)


def finished_run(
    workload: Workload, state: Engine, records: RequestRecords, kept: Recorded, blocks: int
) -> Run:
    """Build a run from its records; ``blocks`` is the KV cache size of a replica in blocks."""
    replicas, groups = int(state.config.n_replicas), int(state.config.n_groups)
    steps, gaps, transfers = kept
    asked = _as_asked(workload, records)
    copies = int(state.config.n_copies)
    return Run(workload, asked, steps, gaps, blocks, replicas, groups, copies, transfers)


def _as_asked(workload: Workload, records: RequestRecords) -> RequestRecords:
    """Set the number of output tokens to 0 for requests without output.

    The end of such a request is recorded as the time of its first token.
    """
    alone = workload.output_tokens == 0
    if not alone.any():
        return records
    return replace(
        records,
        output_tokens=np.where(alone, 0, records.output_tokens),
        first_token_s=np.where(alone & records.finished, records.finish_s, records.first_token_s),
    )


def run_engines(
    loops: tuple[Loop, Loop],
    engines: Sequence[Engine],
    latencies: Sequence[LatencyModel],
    compiled: bool | None,
    early_stop: EarlyStop | None = None,
) -> list[Recorded]:
    """Run engines in one event loop to the end, and return each engine's records.

    Raises:
        PinnError: If the engines get stuck, or a latency model cannot be used.
        StoppedEarlyError: If ``early_stop`` returned true.
    """
    linear = [each for each in latencies if isinstance(each, LinearLatency)]
    if compiled is None:
        compiled = len(linear) == len(latencies)
    if not compiled:
        plain = [plain_engine(engine) for engine in engines]
        records = _collect(loops[0], plain, latencies)
        for state, engine in zip(plain, engines, strict=True):
            write_back(state, engine)
        return records
    if len(linear) < len(latencies):
        kinds = ", ".join(type(each).__name__ for each in latencies)
        raise PinnError(f"a compiled simulation needs a LinearLatency, got {kinds}")
    for each, engine in zip(linear, engines, strict=True):
        engine.config.keeps_batches = int(each.encoder is not None)
    pairs = zip(linear, engines, strict=True)
    models = [each.compile(bool(engine.config.prefill_first)) for each, engine in pairs]
    return _collect(loops[1], engines, models, early_stop)


def _collect(
    go: Loop,
    states: Sequence[Engine],
    models: Sequence[object],
    early_stop: EarlyStop | None = None,
) -> list[Recorded]:
    """Run engines to the end; at each full buffer collect records and check for an early stop."""
    taken: list[list[np.ndarray]] = [[] for _ in states]
    status, rows, idle, total = FULL, states[0].config.step_rows, 0, 0
    while status == FULL:
        if early_stop is not None:
            states[0].config.step_rows = min(rows, max(_FIRST_LOOK_STEPS, total // _LOOKS))
        before = sum(state.counters.progress for state in states)
        status = go(*states, *models)
        steps = sum(state.counters.n_steps for state in states)
        idle = 0 if sum(state.counters.progress for state in states) > before else idle + steps
        if status == FULL and idle >= rows // 2:
            raise PinnError(
                f"the engine is stuck, since {idle} steps generated no token. Requests preempt one "
                f"another, because the KV cache of {states[-1].config.blocks} blocks is too small: "
                "leave more GPU memory to the KV cache"
            )
        total += steps
        check_size(total, MOST_STEPS, "the number of simulated steps", "simulate a shorter load")
        for parts, state in zip(taken, states, strict=True):
            counters, names = state.counters, [f.name for f in fields(GapRuns)]
            runs = (state.gaps[name][: counters.n_gaps] for name in names)
            moved = _taken(state.transfers, counters.n_transfers)
            _extend(parts, (state.steps[: counters.n_steps], *runs, moved))
            counters.n_steps = counters.n_gaps = counters.n_transfers = 0
        if status == FULL and early_stop is not None:
            now_s = float(states[0].groups["now_s"].max())
            if early_stop(np.asarray(states[0].requests), now_s):
                raise StoppedEarlyError
    if status == BAD_STEP:
        seconds = next((s.counters.bad_step_s for s in states if s.counters.bad_step_s != 0), 0.0)
        raise PinnError(
            f"the latency model returned {seconds} s for a step, expected a positive and finite "
            "step time"
        )
    return [
        (StepRecords(table), GapRuns(*gaps), TransferRecords.of(moved))
        for table, *gaps, moved in taken
    ]


def _extend(columns: list[np.ndarray], rows: Iterable[np.ndarray]) -> None:
    """Append rows to columns in place, since joining them later would double the memory use."""
    if not columns:
        columns.extend(part.copy() for part in rows)
        return
    for column, part in zip(columns, rows, strict=True):
        size = len(column)
        column.resize((size + len(part), *part.shape[1:]), refcheck=False)
        column[size:] = part


def _taken(transfers: Records[Transfer], count: int) -> np.ndarray:
    """Return the first ``count`` recorded KV transfers; empty if there is no second KV tier."""
    return np.asarray(transfers)[:count] if count else np.zeros(0, TRANSFER)


# Parallel simulations in threads, because compiled runs release the interpreter lock.

Result = TypeVar("Result")


@dataclass(frozen=True)
class Job:
    """Arguments of one call of :func:`simulate`."""

    deployment: Deployment
    workload: Workload
    latency: LinearLatency
    engine: EngineSpec | None = None

    def run(self) -> Run:
        """Run the simulation and return its records."""
        return simulate(self.deployment, self.workload, self.latency, self.engine)


def measured_job(
    deployment: Deployment,
    workload: Workload,
    latency: LinearLatency,
    engine: EngineSpec | None = None,
) -> Job:
    """Return the simulation of a measured server.

    A predicted KV cache that is too small is enlarged, since the server is known to have started.
    """
    return Job(deployment, workload, latency, started(deployment, engine))


def simulate_many(jobs: Iterable[Job], workers: int | None = None) -> list[Run]:
    """Simulate jobs in threads and return their runs in the order of the jobs.

    Args:
        jobs: Simulations to run.
        workers: Number of threads; the number of cores by default.

    Raises:
        PinnError: If a job cannot run; the error of the first such job is raised.
    """
    return map_runs(lambda _, run: run, jobs, workers)


def map_runs(
    figure: Callable[[Job, Run], Result], jobs: Iterable[Job], workers: int | None = None
) -> list[Result]:
    """Simulate jobs, and return the result of ``figure`` for each job and its run.

    The runs are discarded. ``workers`` is the number of threads, by default the number of cores.
    """
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        return list(pool.map(lambda job: figure(job, job.run()), jobs))
