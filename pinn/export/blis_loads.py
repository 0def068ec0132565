"""Simulation of the loads to which BLIS's coefficients are fitted: batches and delays."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from pinn.engines.engine_spec import EngineSpec
from pinn.export import blis_features
from pinn.export.blis_batches import MOST_PROMPTS, Lengths, step_us
from pinn.export.blis_model import blis_model
from pinn.memory.kv_cache import kv_layout
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import RequestRecords, Run, StepRecords
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.workload import Workload, open_loop
from pinn.surrogate.group_features import group_features
from pinn.surrogate.step_features import step_time
from pinn.units import MICROSECOND

#: Maximum number of batches kept from each simulated load, evenly spaced over its steps.
BATCHES = 20_000
#: A load is overloaded if more than this share of its requests is preempted, or waits longer than a
#: step for a place in the batch. Its latencies then depend on the queue, not on step times.
WAITING = 0.005
#: ``_FIRST``: mean decodes per step of the first steady load. ``_APART``: ratio of mean decodes
#: between successive steady loads. ``_LAST``: request rate of the second-to-last steady load, as a
#: share of the saturation rate.
_FIRST, _APART, _LAST = 0.7, 1.4, 0.95
#: Number of candidate values for the mean decodes per step of the last steady load.
_TRIED = 24
_NAME = "decodes-"
#: Range of the uniformly distributed prompt and output lengths of a load, relative to their mean.
_LENGTHS = (0.5, 1.5)
#: Number of requests in a steady load: ``_REQUESTS``, plus ``_EACH`` per request in flight.
_REQUESTS, _EACH = 50, 8


@dataclass(frozen=True)
class Seen:
    """Batches and delays of a deployment, simulated under one load.

    Attributes:
        load: Name of the load, or ``mix`` for all loads together.
        batches: Values of BLIS's basis functions and the surrogate's step times for the batches.
        mean_step_us: Mean step time over all steps, in microseconds.
        lengths: Mean prompt and output lengths of a request.
        decodes: Number of decodes in a step of one replica, averaged over decoding requests: a step
            with n decodes counts n times.
        first_token_delay_us: Part of the median TTFT that BLIS's own simulation of queue and steps
            does not include, in microseconds.
        ttft_us: Median TTFT, in microseconds.
        prompts: 99th percentile of the number of prompts in steps with prompts, at most
            ``MOST_PROMPTS``.
        output_per_s: Output tokens per second of all replicas at the load's mean number of decodes,
            excluding the time for prompts.
        overloaded: Whether more than a share ``WAITING`` of the requests wait for a place in the
            batch or are preempted.
        shared: Relative increase in step time if decodes did not share reads of cached prompts.
    """

    load: str
    batches: blis_features.Timed
    mean_step_us: float
    lengths: Lengths
    decodes: float
    first_token_delay_us: float
    ttft_us: float
    prompts: int
    output_per_s: float
    overloaded: bool
    shared: float


def rate_per_s(latency: LinearLatency, lengths: Lengths, decodes: float) -> float:
    """Return the request rate in 1/s that keeps ``decodes`` requests decoding in each replica."""
    alone = step_us(latency, decodes, lengths)
    prompt_us = step_us(latency, decodes, lengths, prompt=True) - alone
    return decodes / (lengths.output * alone + decodes * prompt_us) / MICROSECOND


def _output_per_s(latency: LinearLatency, lengths: Lengths, decodes: float) -> float:
    """Return output tokens/s of all replicas with ``decodes`` decodes each and no prompts."""
    replicas = latency.deployment.recipe.data_parallel_size
    return decodes * replicas / (step_us(latency, max(decodes, 1.0), lengths) * MICROSECOND)


def most_decodes(latency: LinearLatency, lengths: Lengths) -> int:
    """Return the maximum number of requests in a step of one replica.

    It is limited by the engine's maximum number of running requests and by the KV cache size.
    """
    deployment = latency.deployment
    layout = kv_layout(deployment, EngineSpec())
    held = layout.request_blocks(lengths.prompt + lengths.output, deployment.recipe.block_tokens)
    return max(min(deployment.recipe.max_requests, int(layout.blocks // held)), 1)


def standard_decodes(latency: LinearLatency, lengths: Lengths) -> list[float]:
    """Return the mean decodes per step of each steady load, from one to near saturation."""
    most = most_decodes(latency, lengths)
    counts = np.unique(np.geomspace(1, most, _TRIED).astype(int))
    # Make the rates monotonic, because steps beyond the largest CUDA graph may yield lower rates.
    rates = np.maximum.accumulate([rate_per_s(latency, lengths, float(n)) for n in counts])
    last = max(float(np.interp(_LAST * rates[-1], rates, counts)), 2.0)
    apart = (_APART**i for i in range(1, 30))
    # A load's name has its decodes per step as a whole number. Names must differ, and the first
    # load has 1.
    between = [n for n in apart if n * _APART**0.5 < last and 1 < round(n) < round(last)]
    return [_FIRST, *between, last, *([float(most)] if most > last + 1 else [])]


def steady_load(latency: LinearLatency, lengths: Lengths, decodes: float) -> Workload:
    """Return a load that keeps ``decodes`` requests decoding in each replica.

    Requests arrive at random. Their lengths vary around ``lengths``, and no prompts share a prefix.
    """
    replicas = latency.deployment.recipe.data_parallel_size
    rate = rate_per_s(latency, lengths, decodes) * replicas
    stages = [Stage(rate, (_REQUESTS + _EACH * decodes * replicas) / rate)]
    name = f"{_NAME}{max(round(decodes * replicas), 1)}-prompts-{lengths.prompt}"
    return open_loop(stages, lengths.prompt, lengths.output, length_range=_LENGTHS, name=name)


def is_standard(name: str) -> bool:
    """Return whether a load's name is that of a steady load."""
    return name.startswith(_NAME)


def mean_lengths(loads: Sequence[Workload]) -> Lengths:
    """Return the mean prompt and output lengths over loads, with equal weight for each load."""
    prompt = np.mean([load.prompt_tokens.mean() for load in loads])
    output = np.mean([load.output_tokens.mean() for load in loads])
    return Lengths(round(float(prompt)), round(float(output)))


def observe(latency: LinearLatency, workload: Workload) -> Seen:
    """Simulate a load twice: with BLIS's scheduling, and with the surrogate's engine.

    BLIS schedules a batch only after the previous one has ended, and its only delays are its
    request coefficients (alpha). The first simulation therefore uses synchronous scheduling, the
    surrogate's step times and an alpha of 0. The additional TTFT in the second simulation is the
    delay that BLIS needs as alpha.

    Raises:
        PinnError: If the deployment cannot serve the load.
    """
    bare = replace(latency, alpha=np.zeros_like(latency.alpha))
    serving = replace(latency.deployment.serving, async_scheduling=False)
    as_blis = simulate(replace(latency.deployment, serving=serving), workload, bare)
    whole = simulate(latency.deployment, workload, latency)
    steps = _steady_steps(as_blis.steps) if is_standard(workload.name) else as_blis.steps
    duration_us = steps["duration_s"] / MICROSECOND
    kept = evenly(duration_us, BATCHES)
    sums = blis_features.recorded_sums(steps)
    chosen = blis_features.BlisSums(*(values[kept] for values in vars(sums).values()))
    model, overloaded = blis_model(latency.deployment), is_overloaded(as_blis)
    counts, lengths = sums.decode_requests, mean_lengths([workload])
    return Seen(
        workload.name,
        blis_features.Timed(
            blis_features.blis_features(model, chosen.scaled(model.data_parallel)),
            duration_us[kept],
        ),
        float(duration_us.mean()),
        lengths,
        float(counts @ counts / max(counts.sum(), 1.0)) or 1.0,
        _first_token_delay_s(as_blis.requests, whole.requests, overloaded) / MICROSECOND,
        float(np.nanmedian(whole.requests.ttft_s)) / MICROSECOND,
        _most_prompts(steps),
        _output_per_s(latency, lengths, float(counts.mean())),
        overloaded,
        _shared(latency, steps),
    )


def _steady_steps(steps: StepRecords) -> StepRecords:
    """Return the steps from the first to the last batch whose size is in the top quarter.

    Before and after these steps the batch fills up or drains, unlike under a continuous load.
    """
    requests = steps.sums.requests
    full = np.flatnonzero(requests >= np.quantile(requests, 0.75))
    return StepRecords(steps.table[full[0] : full[-1] + 1])


def _most_prompts(steps: StepRecords) -> int:
    """Return the 99th percentile of prompts in steps with prompts, at most ``MOST_PROMPTS``."""
    prompts = steps.sums.prefill_requests
    if not prompts.any():
        return 1
    # Round the quantile down, because the maximum of fewer than a hundred steps is mere chance.
    found = np.quantile(prompts[prompts > 0], 0.99, method="lower")
    return int(min(found, MOST_PROMPTS))


def is_overloaded(run: Run) -> bool:
    """Return whether too many requests wait for a place in the batch or are preempted."""
    wait_s = run.requests.scheduled_s - run.requests.queued_s
    waited = wait_s > run.steps["duration_s"].mean()
    return float((waited | (run.requests.preemptions > 0)).mean()) > WAITING


def _first_token_delay_s(blis: RequestRecords, whole: RequestRecords, overloaded: bool) -> float:
    """Return the median over requests of the part of TTFT that BLIS does not simulate, in seconds.

    Under overload, queue time is excluded, because the queue times of the two simulations would
    differ by more than this part.
    """
    if not overloaded:
        return float(np.nanmedian(whole.ttft_s - blis.ttft_s))
    before = whole.queued_s - whole.arrival_s - (blis.queued_s - blis.arrival_s)
    after = whole.first_token_s - whole.scheduled_s - (blis.first_token_s - blis.scheduled_s)
    return float(np.nanmedian(before + after))


def _shared(latency: LinearLatency, steps: StepRecords) -> float:
    """Return the relative step time increase if decodes did not share reads of cached prompts."""
    saved, whole = (
        step_time(group_features(latency.deployment, sums, steps.shared_sums), latency.beta).sum()
        for sums in (steps.sums, steps.whole_sums)
    )
    return float(whole / saved - 1)


def observe_steady(latency: LinearLatency, lengths: Lengths) -> list[Seen]:
    """Return simulations of steady loads with given lengths, by increasing number of decodes."""
    found = []
    for decodes in standard_decodes(latency, lengths):
        one = observe(latency, steady_load(latency, lengths, decodes))
        # run.sh picks a vector by the request rate of the user's load, so use the output rate of
        # the planned decodes, not that of the simulated batches.
        rate = _output_per_s(latency, lengths, decodes)
        # Some requests of the last load wait for a place in the batch. It is not marked as
        # overloaded, because it is meant to be near saturation.
        found.append(replace(one, lengths=lengths, output_per_s=rate, overloaded=False))
    return sorted(found, key=lambda one: one.decodes)


def evenly(values: Float[np.ndarray, " values"], count: int) -> Int[np.ndarray, " kept"]:
    """Return up to ``count`` indices, evenly spaced from the first value to the last."""
    return np.linspace(0, len(values) - 1, min(count, len(values))).astype(int)
