"""Bottleneck of a candidate: where its GPUs' time is spent, and what prevents a higher rate."""

from dataclasses import fields, replace

import numpy as np
from jaxtyping import Float

from pinn.physics.batch_sums import BatchSums, uniform_sums
from pinn.planning.candidate import Candidate, gpu_count
from pinn.planning.trials import latencies_s
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run, StepRecords
from pinn.simulator.slo import Latencies, Slo
from pinn.surrogate.deployment_features import deployment_features
from pinn.surrogate.group_features import group_features
from pinn.surrogate.step_features import STEP_FEATURES, seconds_by_feature

#: Maximum number of steps of a run to analyze, spread evenly over the run.
_MOST_STEPS = 20_000
#: Names of the bottlenecks of a full server: the flag that limits the number of running requests,
#: and KV memory.
MOST_REQUESTS, KV_MEMORY = "max_num_seqs", "KV memory"
#: KV memory, or ``max_num_seqs``, is the bottleneck if requests wait for memory, or for a slot in
#: the batch, during more than this share of the engine's time.
_WAITING_SHARE = 0.05
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


def limited_by(run: Run, latency: LinearLatency) -> str:
    """Return the bottleneck of a server, from a run slightly above its maximum rate.

    If requests wait while nearly every KV block is in use, the bottleneck is KV memory. If requests
    wait while the maximum number of requests is running, that limit is the bottleneck. Otherwise
    the largest part of the engine's time is the bottleneck.
    """
    recipe, steps = latency.deployment.recipe, run.steps
    weight = steps["duration_s"] / steps["duration_s"].sum()
    waiting = steps["waiting"] > 0
    most = min(recipe.max_requests, recipe.token_budget)
    full = steps["used_blocks"] >= _FULL_SHARE * run.step_blocks
    short = float(weight[full & (waiting | (steps["preempted"] > 0))].sum())
    all_run = steps["running"] >= most * run.step_replicas
    if short > _WAITING_SHARE:
        return KV_MEMORY
    if float(weight[all_run & waiting].sum()) > _WAITING_SHARE:
        return MOST_REQUESTS
    return _most_time(run, latency)


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


def bottleneck(candidate: Candidate, beyond: Run, slo: Slo) -> str:
    """Return the bottleneck of a candidate, from a run slightly above its maximum rate.

    For disaggregated P/D the prefill workers' bottleneck is returned if the decode workers are not
    full and all metrics except TTFT meet their limits. Otherwise the decode workers' bottleneck is
    returned.
    """
    parts = candidate.parts(beyond)
    found = limited_by(*parts[-1])
    if found in (KV_MEMORY, MOST_REQUESTS) or slo.excess(*_but_ttft(beyond)) > 1:
        return found
    return limited_by(*parts[0])


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
