"""Simulation of a fleet that serves a workload, and the records of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Float, Int

from pinn.engines.routers import LEAST_REQUESTS
from pinn.errors import PinnError
from pinn.memory.kv_cache import kv_layout
from pinn.simulator import linear_latency, setup
from pinn.simulator.engine import Engine
from pinn.simulator.fleets.autoscaler import MeanRequest, Scaling
from pinn.simulator.fleets.control import Control, ServerState
from pinn.simulator.fleets.spec import FleetSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.pools import Pool
from pinn.simulator.run import GapRuns, RequestRecords, Run, StepRecords
from pinn.simulator.simulate import Recorded, finished_run, read_records, run_engines
from pinn.simulator.state import REJECTED, SERVES, STEP_COLUMNS, UNSENT
from pinn.simulator.workloads.workload import Workload


@dataclass(frozen=True)
class FleetRun:
    """Records of a simulated fleet.

    Attributes:
        run: Requests as clients see them, and the steps of all servers.
        kinds: Run of the servers of each kind, with the records of all requests of the fleet.
        kind: Index of the kind that served each request; -1 for requests that no server served.
        servers: State of each server at the end, with the time spans in which it was on, kind by
            kind.
        resent: Number of requests that clients resent because their server failed.
        lost: Number of requests that ended with an error because their server failed.
    """

    run: Run
    kinds: Sequence[Run]
    kind: Int[np.ndarray, " requests"]
    servers: Sequence[ServerState]
    resent: int
    lost: int


def simulate_fleet(kinds: Sequence[Pool], spec: FleetSpec, workload: Workload) -> FleetRun:
    """Serve a workload on servers of several kinds behind one router.

    The router uses the routing policy of the first kind's engine; by default it chooses the server
    with the fewest requests. The order of the kinds does not change the result, because the random
    numbers that break ties between servers do not depend on it.

    Args:
        kinds: Kinds of identical servers, each with ``replicas`` servers initially. For the kind
            with an autoscaler, this number is limited to the autoscaler's range.
        spec: Start-up time, failures and autoscaler.
        workload: Requests of the clients.

    Raises:
        PinnError: If :func:`pinn.simulator.simulate.simulate` would reject a kind or the workload,
            if kinds cannot be simulated together, or if requests wait for a server that never
            starts.
    """
    latencies = [_linear(kind) for kind in kinds]
    most = [_most(k, kind, spec) for k, kind in enumerate(kinds)]
    router = kinds[0].engine.router or LEAST_REQUESTS
    specs = [
        replace(kind.engine, replicas=count, router=router)
        for kind, count in zip(kinds, most, strict=True)
    ]
    layouts = [kv_layout(kind.deployment, each) for kind, each in zip(kinds, specs, strict=True)]
    refused = np.zeros(len(workload), np.bool_)
    for kind, each, layout in zip(kinds, specs, layouts, strict=True):
        refused |= setup.check_run(kind.deployment, workload, each, layout)
    first = kinds[0].deployment
    one = replace(specs[0], replicas=1)
    front = setup.set_up(first, workload, one, layouts[0], refused, serves=False)
    engines = [
        setup.set_up(kind.deployment, workload, each, layout, refused)
        for kind, each, layout in zip(kinds, specs, layouts, strict=True)
    ]
    first_copy = 0
    for k in sorted(range(len(kinds)), key=lambda k: _identity(kinds[k])):
        config, engines[k].counters.next = engines[k].config, engines[k].config.n_requests
        config.role, config.concurrency, config.first_copy = SERVES, 0, first_copy
        first_copy += int(config.n_copies)
    control = Control(
        spec, front, tuple(engines), _models(latencies, engines), _scaling(spec, kinds, workload),
        [_at_first(k, kind, spec) for k, kind in enumerate(kinds)],
    )  # fmt: skip
    recorded = run_engines((control.run, control.run), engines, latencies, True)
    return _finished(workload, control, latencies, recorded, [each.blocks for each in layouts])


def _identity(kind: Pool) -> tuple[object, ...]:
    """Return a sort key of a server kind, so that results do not depend on the order of kinds."""
    facts = (kind.deployment, kind.engine)
    latency = _linear(kind)
    return (repr(facts), latency.beta.tolist(), latency.alpha.tolist())


def _linear(kind: Pool) -> LinearLatency:
    if not isinstance(kind.latency, LinearLatency):
        name = type(kind.latency).__name__
        raise PinnError(
            f"the latency model of each kind of server must be a LinearLatency, got {name}"
        )
    return linear_latency.complete_latency(kind.latency)  # type: ignore[return-value]


def _at_first(k: int, kind: Pool, spec: FleetSpec) -> int:
    """Return how many servers of a kind are on when the first request is sent."""
    rule, count = spec.autoscaler, kind.engine.replicas
    return min(max(count, rule.least), rule.most) if rule and rule.kind == k else count


def _most(k: int, kind: Pool, spec: FleetSpec) -> int:
    rule = spec.autoscaler
    return rule.most if rule and rule.kind == k else kind.engine.replicas


def _models(latencies: Sequence[LinearLatency], engines: Sequence[Engine]) -> tuple[object, ...]:
    """Return compiled latency models of one type, so that one compiled loop accepts all of them."""
    apart = any(bool(engine.config.prefill_first) for engine in engines)
    shares = any(latency.shares for latency in latencies)
    models = tuple(latency.compile(apart, shares) for latency in latencies)
    if len({model.dtype for model in models}) > 1:
        raise PinnError(
            "kinds of servers with and without speculative decoding cannot be "
            "simulated together: give all kinds an equal --speculative-config"
        )
    return models


def _scaling(spec: FleetSpec, kinds: Sequence[Pool], workload: Workload) -> Scaling | None:
    rule = spec.autoscaler
    if rule is None:
        return None
    kind = kinds[rule.kind]
    shared = np.where(workload.shares_with >= 0, workload.shared_tokens, 0)
    cached = shared if kind.deployment.recipe.prefix_caching else 0 * shared
    request = MeanRequest(
        _linear(kind),
        max(float((workload.prompt_tokens - cached).mean()), 1.0),
        float(workload.output_tokens.mean()),
        kind.deployment.recipe.max_requests,
    )
    return Scaling(rule, request)


def _finished(
    workload: Workload,
    control: Control,
    latencies: Sequence[LinearLatency],
    recorded: Sequence[Recorded],
    blocks: Sequence[int],
) -> FleetRun:
    front, engines = control.front, control.engines
    merged, kind = np.array(front.requests), np.full(len(workload), -1)
    first_rank = 0
    for k, engine in enumerate(engines):
        rows = np.array(engine.requests)
        mine = ~np.isin(rows["status"], (UNSENT, REJECTED))
        rows["sent_s"], rows["replica"] = merged["sent_s"], rows["replica"] + first_rank
        merged[mine], kind[mine] = rows[mine], k
        first_rank += int(engine.config.n_replicas)
    view = front._replace(requests=merged)
    records = read_records(view, latencies[0])
    for k, latency in enumerate(latencies[1:], 1):
        records = _where(kind == k, read_records(view, latency), records)
    control.finish(float(records.finish_s.max()))
    kinds = [
        finished_run(workload, engine, records, kept, size)
        for engine, kept, size in zip(engines, recorded, blocks, strict=True)
    ]
    whole = replace(kinds[0], steps=_all_steps(kinds), gaps=_all_gaps(kinds))
    whole = replace(
        whole,
        replicas=sum(run.replicas for run in kinds),
        groups=sum(run.groups for run in kinds),
        copies=sum(run.copies for run in kinds),
    )
    return FleetRun(whole, kinds, kind, control.servers, control.resent, control.lost)


def _where(mine: np.ndarray, one: RequestRecords, other: RequestRecords) -> RequestRecords:
    """Select each request's record from ``one`` where ``mine`` is true, else from ``other``."""
    columns = {}
    for f in fields(RequestRecords):
        a, b = getattr(one, f.name), getattr(other, f.name)
        if np.ndim(a) == 0:
            columns[f.name] = a if mine.mean() > 0.5 else b
        else:
            columns[f.name] = np.where(mine[:, None] if np.ndim(a) == 2 else mine, a, b)
    return RequestRecords(**columns)


def _all_steps(kinds: Sequence[Run]) -> StepRecords:
    tables, first = [], 0
    for run in kinds:
        table = run.steps.table.copy()
        table[:, STEP_COLUMNS.index("group")] += first
        tables.append(table)
        first += run.groups
    return StepRecords(np.concatenate(tables))


def _all_gaps(kinds: Sequence[Run]) -> GapRuns:
    return GapRuns(*(
        np.concatenate([getattr(run.gaps, f.name) for run in kinds]) for f in fields(GapRuns)
    ))  # fmt: skip


# A fleet's GPU use over time: time spans of servers, GPU hours and mean number of GPUs.


def gpu_spans(found: FleetRun, gpus: Sequence[int]) -> Float[np.ndarray, "spans 3"]:
    """Return (begin in s, end in s, number of GPUs) of every time span in which a server was on.

    Args:
        found: Records of the fleet's run.
        gpus: Number of GPUs per server of each kind.
    """
    spans = [
        (begin, end, gpus[server.kind]) for server in found.servers for begin, end in server.on
    ]
    return np.array(spans, dtype=np.float64).reshape(-1, 3)


def gpu_hours(spans: Float[np.ndarray, "spans 3"]) -> float:
    """Return the total GPU hours of time spans (begin in s, end in s, number of GPUs)."""
    return float(((spans[:, 1] - spans[:, 0]) * spans[:, 2]).sum() / 3600)


def mean_gpus(
    spans: Float[np.ndarray, "spans 3"], edges_s: Float[np.ndarray, " edges"]
) -> Float[np.ndarray, " periods"]:
    """Return the mean number of GPUs in use in each period between two consecutive ``edges_s``.

    ``spans`` has the rows (begin in s, end in s, number of GPUs) of ``gpu_spans``.
    """
    low, high = edges_s[:-1, None], edges_s[1:, None]
    inside = np.minimum(spans[None, :, 1], high) - np.maximum(spans[None, :, 0], low)
    return (np.maximum(inside, 0.0) * spans[None, :, 2]).sum(1) / (high - low)[:, 0]
