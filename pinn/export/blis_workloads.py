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
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.synthetic import shared_prefix
from pinn.simulator.workloads.workload import Workload
from pinn.units import MICROSECOND

#: Seconds of load per stage; a reasoning request of 1,448 tokens takes most of a minute.
STAGE_S = 150.0
#: Batches kept of each load, evenly over its steps.
BATCHES = 2000


@dataclass(frozen=True)
class Seen:
    """What one load makes a deployment do.

    Attributes:
        name: Of the load.
        features: BLIS's basis functions of its batches.
        step_us: The surrogate's step times of the same.
        mean_step_us: Over all steps.
        first_token_delay_us: Median over requests of the time to first token that BLIS's own
            simulation of queue and steps leaves out.
    """

    name: str
    features: Float[np.ndarray, "batches basis"]
    step_us: Float[np.ndarray, " batches"]
    mean_step_us: float
    first_token_delay_us: float


def standard_loads(stage_s: float = STAGE_S, names: Sequence[str] = ()) -> list[Workload]:
    """The six loads of the public serving runs, shortened; all of them or those named."""
    return [_load(WORKLOADS[name], stage_s) for name in names or WORKLOADS]


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
    delay = whole.requests.ttft_s - as_blis.requests.ttft_s
    duration_us = as_blis.steps["duration_s"] / MICROSECOND
    kept = np.linspace(0, len(duration_us) - 1, min(BATCHES, len(duration_us))).astype(int)
    sums = recorded_sums(as_blis.steps)
    chosen = BlisSums(*(values[kept] for values in vars(sums).values()))
    return Seen(
        workload.name,
        blis_features(model, chosen.scaled(model.data_parallel)),
        duration_us[kept],
        float(duration_us.mean()),
        float(np.nanmedian(delay) / MICROSECOND),
    )
