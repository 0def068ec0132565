"""Bottleneck of a candidate: where its GPUs' time is spent, and what prevents a higher rate."""

from dataclasses import fields, replace

import numpy as np
from jaxtyping import Float

from pinn.memory.kv_cache import kv_layout
from pinn.physics.batch_sums import BatchSums, uniform_sums
from pinn.planning.candidate import Candidate, gpu_count
from pinn.planning.trials import Trials, latencies_s
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run, StepRecords
from pinn.simulator.slo import Latencies
from pinn.surrogate.deployment_features import deployment_features
from pinn.surrogate.group_features import group_features
from pinn.surrogate.step_features import STEP_FEATURES, seconds_by_feature

#: Maximum number of steps of a run to analyze, spread evenly over the run.
_MOST_STEPS = 20_000
#: Names of the bottlenecks of a full server: the flag that limits the number of running requests,
#: and KV memory.
MOST_REQUESTS, KV_MEMORY = "max_num_seqs", "KV memory"
#: KV memory, or ``max_num_seqs``, may be the bottleneck if requests wait for memory, or for a slot
#: in the batch, during more than this share of the engine's time.
_WAITING_SHARE = 0.05
#: It is the bottleneck if a replica with twice as much meets the SLO at its maximum rate times this
#: factor. An overloaded server fills its batches and its memory whatever its bottleneck is.
_HIGHER_RATE = 1.05
#: The KV cache counts as full if at least this share of its blocks is in use.
_FULL_SHARE = 0.95


def step_time_shares(run: Run, latency: LinearLatency) -> dict[str, float]:
    """Return the share of total step time spent in each part of a step, by part name.

    The time of matrix multiplications is split: the time for a single token counts as reading the
    weights once per step, the rest as arithmetic.
    """
    others = [f.part for f in STEP_FEATURES.values() if f.part != "gemm"]
    found = dict.fromkeys(["weights", "gemm_compute", *others], 0.0)
    steps = _some_steps(run)
    of_steps = group_features(latency.deployment, steps.sums, steps.shared_sums)
    seconds = seconds_by_feature(of_steps, latency.beta)
    one_token = uniform_sums(decode_requests=np.ones(1))
    lone = deployment_features(latency.deployment, one_token)[0] * latency.beta
    columns = zip(STEP_FEATURES.values(), seconds.sum(axis=0), len(seconds) * lone, strict=True)
    for feature, total, weights in columns:
        if feature.part == "gemm":
            found["weights"] += float(weights)
            found["gemm_compute"] += float(total - weights)
        else:
            found[feature.part] += float(total)
    if latency.encoder is not None:
        found["encoder"] = _encoder_seconds(steps, seconds)
    whole = sum(found.values())
    return {part: value / whole for part, value in found.items()}


def waited_for(run: Run, latency: LinearLatency) -> list[str]:
    """Return what requests of a run wait for: KV memory, ``max_num_seqs``, both or neither.

    They wait for KV memory if nearly every KV block is in use, and for ``max_num_seqs`` if the
    maximum number of requests is running.
    """
    recipe, steps = latency.deployment.recipe, run.steps
    weight = steps["duration_s"] / steps["duration_s"].sum()
    waiting = steps["waiting"] > 0
    most = min(recipe.max_requests, recipe.token_budget)
    full = steps["used_blocks"] >= _FULL_SHARE * run.step_blocks
    short = full & (waiting | (steps["preempted"] > 0))
    all_run = (steps["running"] >= most * run.step_replicas) & waiting
    found = {KV_MEMORY: short, MOST_REQUESTS: all_run}
    return [name for name, where in found.items() if weight[where].sum() > _WAITING_SHARE]


def _with_twice(candidate: Candidate, name: str) -> Candidate:
    """Return a candidate with twice as much KV memory, or twice its ``max_num_seqs``.

    ``max_num_seqs`` is at most the token budget of a step, which vLLM requires.
    """
    deployment, latency = candidate.deployment, candidate.latency
    if name == KV_MEMORY:
        blocks = kv_layout(deployment, candidate.engine).blocks
        engine = replace(candidate.engine, num_gpu_blocks_override=2 * blocks + 1)
        return replace(candidate, engine=engine)
    recipe = deployment.recipe
    most = max(min(2 * recipe.max_requests, recipe.token_budget), recipe.max_requests)
    more = replace(deployment, serving=replace(deployment.serving, max_num_seqs=most))
    return replace(candidate, latency=replace(latency, deployment=more))


def _most_time(run: Run, latency: LinearLatency) -> str:
    """Return the type of work that takes the largest share of the engine's time.

    Prefill compute is the additional step time caused by prompts.
    """
    steps = _some_steps(run)
    prompts = [f.name for f in fields(BatchSums) if "prefill_" in f.name]
    nothing = dict.fromkeys(prompts, np.zeros(len(steps)))
    whole = steps.sums, steps.shared_sums
    without = [replace(sums, **nothing) for sums in whole]
    seconds, decodes = (
        seconds_by_feature(group_features(latency.deployment, *each), latency.beta).sum(axis=0)
        for each in (whole, without)
    )
    part = np.array([f.part for f in STEP_FEATURES.values()])
    communication = part == "communication"
    host = np.isin(part, ("host", "launching", "small_kernels"))
    work = ~communication & ~host
    spent = {
        "prefill compute": (seconds - decodes)[work].sum(),
        "decode bandwidth": decodes[work].sum(),
        "communication": seconds[communication].sum(),
        "host": seconds[host].sum(),
        "vision encoder": 0.0 if latency.encoder is None else _encoder_seconds(steps, seconds),
    }
    return max(spent, key=lambda name: spent[name])


def _encoder_seconds(steps: StepRecords, seconds: Float[np.ndarray, "..."]) -> float:
    """Return the time in seconds that a vision encoder adds to steps: step times minus ``seconds``.

    ``seconds`` are the times of all features of these steps.
    """
    return max(float(steps["duration_s"].sum() - seconds.sum()), 0.0)


def _some_steps(run: Run) -> StepRecords:
    every = -(-len(run.steps) // _MOST_STEPS)
    return StepRecords(run.steps.table[::every])


def bottleneck(trials: Trials, beyond: Run, rate_per_s: float) -> str:
    """Return the bottleneck of a replica: what has to increase for a higher maximum rate.

    The bottleneck is KV memory or ``max_num_seqs`` if requests wait for it and twice as much of it
    increases the maximum rate. Otherwise it is the type of work that takes most of the time. For
    disaggregated P/D, that is the prefill workers' time if all metrics except TTFT meet their
    limits, and else the decode workers' time.

    Args:
        trials: Simulations of the replica.
        beyond: Run of the replica slightly above its maximum rate.
        rate_per_s: Maximum rate of the replica in requests/s.
    """
    candidate, slo = trials.candidate, trials.slo
    parts = candidate.parts(beyond)
    for name in waited_for(*parts[-1]):
        more = replace(trials, candidate=_with_twice(candidate, name))
        if more.excess(_HIGHER_RATE * rate_per_s) <= 1:
            return name
    is_slow = slo.excess(*_but_ttft(beyond)) > 1
    return _most_time(*parts[-1 if is_slow else 0])


def _but_ttft(run: Run) -> tuple[Latencies, tuple[np.ndarray, np.ndarray]]:
    """Return a run's latencies with TTFT set to 0, and its ITLs, to check all other limits."""
    found = latencies_s(run)
    served = np.isfinite(found["e2e"])
    ttft = np.where(served, found["ttft"], 0.0)
    without = {**found, "ttft": found["ttft"] - ttft, "e2e": found["e2e"] - ttft}
    return without, run.gaps.per_token


def gpu_time_shares(candidate: Candidate, run: Run) -> dict[str, float]:
    """Return the share of all servers' busy GPU time spent in each part of a step, by part name."""
    parts = candidate.parts(run)
    busy = [
        float(part.steps["duration_s"].sum()) * gpu_count(latency.deployment)
        for part, latency in parts
    ]
    found = [step_time_shares(part, latency) for part, latency in parts]
    return {
        name: sum(time / sum(busy) * each[name] for time, each in zip(busy, found, strict=True))
        for name in found[0]
    }
