"""The loads that projections are made for, simulated: their batches and their waiting times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pinn.export.blis_batches import Lengths, step_us
from pinn.export.blis_features import BlisSums, blis_features, recorded_sums
from pinn.export.blis_model import blis_model
from pinn.export.blis_projection import Timed
from pinn.physics.speculation import deployment_features
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.memory import kv_layout
from pinn.simulator.run import RequestRecords, Run, StepRecords
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.synthetic import open_loop
from pinn.simulator.workloads.workload import Workload
from pinn.units import MICROSECOND

#: Batches kept of each load, evenly over its steps.
BATCHES = 2000
#: A load is overloaded where more than this share of its requests wait longer than a step for a
#: place in the batch, or lose theirs: their times then follow the queue, not the steps.
WAITING = 0.005
#: Decodes of the first load, of each over the one before, and what the last but one sends of the
#: rate that saturates.
_FIRST, _APART, _LAST = 0.7, 1.7, 0.95
#: Numbers of decodes among which the last is looked for.
_TRIED = 24
_NAME = "decodes-"
#: Lengths are uniform between these shares of the mean ones.
_LENGTHS = (0.5, 1.5)
#: Requests of a load, and further ones for each that is in flight.
_REQUESTS, _EACH = 50, 8


@dataclass(frozen=True)
class Seen:
    """What one load makes a deployment do.

    Attributes:
        name: Of the load.
        batches: BLIS's basis functions of its batches and the surrogate's step times.
        mean_step_us: Over all steps.
        lengths: Of a request in the mean.
        decodes: In a step of a replica, the mean over the requests that decode.
        first_token_delay_us: Of the time to first token, what BLIS's own simulation of queue and
            steps leaves out.
        ttft_us: Median time to first token.
        overloaded: Whether its requests queue up.
        shared: Share of its steps' time that prompts which decodes have in common save.
    """

    name: str
    batches: Timed
    mean_step_us: float
    lengths: Lengths
    decodes: float
    first_token_delay_us: float
    ttft_us: float
    overloaded: bool
    shared: float = 0.0


def rate_per_s(latency: LinearLatency, lengths: Lengths, decodes: float) -> float:
    """Requests per second that keep so many decodes in a step of one replica."""
    alone = step_us(latency, decodes, lengths)
    prompt_us = step_us(latency, decodes, lengths, prompt=True) - alone
    return decodes / (lengths.output * alone + decodes * prompt_us) / MICROSECOND


def most_decodes(latency: LinearLatency, lengths: Lengths) -> int:
    """Requests of a step of one replica, as places in the batch and in the KV cache allow."""
    deployment = latency.deployment
    layout = kv_layout(deployment, EngineSpec())
    held = layout.request_blocks(lengths.prompt + lengths.output, deployment.recipe.block_tokens)
    return max(min(deployment.recipe.max_requests, int(layout.blocks // held)), 1)


def standard_loads(latency: LinearLatency, lengths: Lengths) -> list[Workload]:
    """Steady loads from one request at a time to all that the deployment can keep up with.

    Requests arrive at random, about that long and unlike each other.
    """
    most = most_decodes(latency, lengths)
    counts = np.unique(np.geomspace(1, most, _TRIED).astype(int))
    # Steps beyond the largest graph may give fewer tokens than some below it.
    rates = np.maximum.accumulate([rate_per_s(latency, lengths, float(n)) for n in counts])
    last = max(float(np.interp(_LAST * rates[-1], rates, counts)), 2.0)
    apart = (_APART**i for i in range(1, 20))
    between = [n for n in apart if n * _APART**0.5 < last and round(n) < round(last)]
    return [
        steady_load(latency, lengths, n)
        for n in (_FIRST, *between, last, *([most] if most > last + 1 else []))
    ]


def steady_load(latency: LinearLatency, lengths: Lengths, decodes: float) -> Workload:
    """One that keeps so many requests decoding in each replica."""
    replicas = latency.deployment.recipe.data_parallel_size
    rate = rate_per_s(latency, lengths, decodes) * replicas
    stages = [Stage(rate, (_REQUESTS + _EACH * decodes * replicas) / rate)]
    name = f"{_NAME}{max(round(decodes * replicas), 1)}-prompts-{lengths.prompt}"
    return open_loop(stages, lengths.prompt, lengths.output, length_range=_LENGTHS, name=name)


def is_standard(name: str) -> bool:
    """Whether a name is one of a steady load."""
    return name.startswith(_NAME)


def mean_lengths(loads: Sequence[Workload]) -> Lengths:
    """Tokens of a mean request, each load counting alike."""
    prompt = np.mean([load.prompt_tokens.mean() for load in loads])
    output = np.mean([load.output_tokens.mean() for load in loads])
    return Lengths(round(float(prompt)), round(float(output)))


def observe(latency: LinearLatency, workload: Workload) -> Seen:
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
    model, overloaded = blis_model(latency.deployment), is_overloaded(as_blis)
    counts = sums.decode_requests
    return Seen(
        workload.name,
        Timed(blis_features(model, chosen.scaled(model.data_parallel)), duration_us[kept]),
        float(duration_us.mean()),
        mean_lengths([workload]),
        float(counts @ counts / max(counts.sum(), 1.0)) or 1.0,
        _first_token_delay_s(as_blis.requests, whole.requests, overloaded) / MICROSECOND,
        float(np.nanmedian(whole.requests.ttft_s)) / MICROSECOND,
        overloaded,
        _shared(latency, as_blis.steps),
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


def _shared(latency: LinearLatency, steps: StepRecords) -> float:
    """What all steps would take more if no decode found another's keys in the GPU's cache."""
    saved = deployment_features(latency.deployment, steps.sums) @ latency.beta
    whole = deployment_features(latency.deployment, steps.whole_sums) @ latency.beta
    return float(whole.sum() / saved.sum() - 1)
