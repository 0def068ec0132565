"""The load that a projection is made for, simulated: its batches and its waiting times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from pinn.data.serving_runs import WORKLOADS
from pinn.data.serving_runs import Workload as Load
from pinn.export.blis_features import BlisSums, blis_features, recorded_sums
from pinn.export.blis_model import BlisModel
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import RequestRecords, Run
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.synthetic import shared_prefix
from pinn.simulator.workloads.workload import Workload
from pinn.units import MICROSECOND

#: Seconds of load per stage; a reasoning request of 1,448 tokens takes most of a minute.
STAGE_S = 150.0
#: Batches kept of each load, evenly over its steps.
BATCHES = 2000
#: A load is overloaded where more than this share of its requests wait longer than a step for a
#: place in the batch, or lose theirs: their times then follow the queue, not the steps.
WAITING = 0.005


@dataclass(frozen=True)
class Seen:
    """What one load makes a deployment do.

    Attributes:
        name: Of the load.
        features: BLIS's basis functions of its batches.
        step_us: The surrogate's step times of the same.
        mean_step_us: Over all steps.
        first_token_delay_us: Of the time to first token, what BLIS's own simulation of queue and
            steps leaves out.
        ttft_us: Median time to first token.
        overloaded: Whether its requests queue up.
    """

    name: str
    features: Float[np.ndarray, "batches basis"]
    step_us: Float[np.ndarray, " batches"]
    mean_step_us: float
    first_token_delay_us: float
    ttft_us: float
    overloaded: bool


def standard_loads(stage_s: float = STAGE_S, names: Sequence[str] = ()) -> list[Workload]:
    """The six loads of the public serving runs, shortened; all of them or those named."""
    return [_load(WORKLOADS[name], stage_s) for name in names or WORKLOADS]


def mean_request_tokens(loads: Sequence[Workload]) -> int:
    """Prompt and output tokens of a mean request, each load counting alike."""
    means = [float((load.prompt_tokens + load.output_tokens).mean()) for load in loads]
    return round(float(np.mean(means)))


def _load(load: Load, stage_s: float) -> Workload:
    return shared_prefix(
        [Stage(s.rate_per_s, min(stage_s, s.duration_s)) for s in load.stages],
        groups=load.groups,
        prompts_per_group=load.prompts_per_group,
        shared_tokens=load.shared_prefix_tokens,
        question_tokens=load.prompt_tokens - load.shared_prefix_tokens,
        output_tokens=load.output_tokens,
        name=load.name,
    )


def observe(latency: LinearLatency, model: BlisModel, workload: Workload) -> Seen:
    """Serve a load twice: as BLIS does, and as the surrogate's engine does.

    BLIS schedules a batch when the last one has ended and knows no delay but its alphas, so its
    batches, queue and wait for the step in flight are those of synchronous scheduling with the same
    step times and alpha 0. What the full simulation adds to the time to first token is the delay
    that BLIS has to be told.

    Raises:
        PinnError: If the deployment cannot serve the load.
    """
    bare = replace(latency, alpha=np.zeros_like(latency.alpha))
    as_blis = simulate(latency.deployment, workload, bare, EngineSpec(async_scheduling=False))
    whole = simulate(latency.deployment, workload, latency)
    duration_us = as_blis.steps["duration_s"] / MICROSECOND
    kept = np.linspace(0, len(duration_us) - 1, min(BATCHES, len(duration_us))).astype(int)
    sums = recorded_sums(as_blis.steps)
    chosen = BlisSums(*(values[kept] for values in vars(sums).values()))
    overloaded = is_overloaded(as_blis)
    return Seen(
        workload.name,
        blis_features(model, chosen.scaled(model.data_parallel)),
        duration_us[kept],
        float(duration_us.mean()),
        _first_token_delay_s(as_blis.requests, whole.requests, overloaded) / MICROSECOND,
        float(np.nanmedian(whole.requests.ttft_s)) / MICROSECOND,
        overloaded,
    )


def is_overloaded(run: Run) -> bool:
    """Whether requests queue up for a place in the batch, or lose it to others."""
    wait_s = run.requests.scheduled_s - run.requests.queued_s
    waited = wait_s > run.steps["duration_s"].mean()
    return float((waited | (run.requests.preemptions > 0)).mean()) > WAITING


def _first_token_delay_s(blis: RequestRecords, whole: RequestRecords, overloaded: bool) -> float:
    """Median over requests of what is missing; of overloaded ones, without their time in the queue.

    Two queues of seconds differ by more than what is looked for.
    """
    if not overloaded:
        return float(np.nanmedian(whole.ttft_s - blis.ttft_s))
    before = whole.queued_s - whole.arrival_s - (blis.queued_s - blis.arrival_s)
    after = whole.first_token_s - whole.scheduled_s - (blis.first_token_s - blis.scheduled_s)
    return float(np.nanmedian(before + after))
