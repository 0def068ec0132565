"""Where a replica's time goes, and what stops a higher rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pinn.physics.batch_sums import BatchSums, uniform_sums
from pinn.physics.speculation import deployment_features
from pinn.physics.step import STEP_FEATURES
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run

#: Steps of a run that are accounted for at most, evenly spread.
_MOST_STEPS = 20_000
#: What limits where as many requests run as may: the flag that says how many.
MOST_REQUESTS, KV_MEMORY = "max_num_seqs", "KV memory"
#: Share of the engine's time in which requests wait for memory, or for others to end, from which on
#: that is what limits.
_WAITING_SHARE = 0.05
#: Share of the blocks in use that counts as full.
_FULL_SHARE = 0.95

#: Parts of a step's breakdown that are messages between GPUs, and work that no GPU does.
_COMMUNICATION, _HOST = ("communication",), ("host", "small_kernels")

_OF_TIME = {
    "prefill": "prefill compute",
    "decode": "decode bandwidth",
    "communication": "communication",
    "host": "host",
}


def step_time_shares(run: Run, latency: LinearLatency) -> dict[str, float]:
    """Part of a step's breakdown -> share of the engine's time.

    Multiplications are cut at what a lone token takes: its weights, once a step.
    """
    found = dict.fromkeys(
        ["weights", "gemm_compute", *(f.part for f in STEP_FEATURES.values() if f.part != "gemm")],
        0.0,
    )
    seconds = deployment_features(latency.deployment, _sums(run)) * latency.beta
    one_token = uniform_sums(decode_requests=np.ones(1))
    lone = deployment_features(latency.deployment, one_token)[0] * latency.beta
    for index, feature in enumerate(STEP_FEATURES.values()):
        total = float(seconds[:, index].sum())
        if feature.part == "gemm":
            weights = float(lone[index]) * len(seconds)
            found["weights"] += weights
            found["gemm_compute"] += total - weights
        else:
            found[feature.part] += total
    whole = sum(found.values())
    return {part: value / whole for part, value in found.items()}


def time_shares(run: Run, latency: LinearLatency) -> dict[str, float]:
    """Share of the engine's time in prefill, decode, communication and the host.

    Communication and host are parts of the breakdown; of the rest, prefill is what a step's prompts
    add to its decodes.
    """
    deployment, sums = latency.deployment, _sums(run)
    seconds = deployment_features(deployment, sums) * latency.beta
    part = np.array([f.part for f in STEP_FEATURES.values()])
    communication, host = np.isin(part, _COMMUNICATION), np.isin(part, _HOST)
    work = ~communication & ~host
    decodes = deployment_features(deployment, _without_prefill(sums)) * latency.beta
    decode = float(decodes[:, work].sum())
    shares = {
        "prefill": float(seconds[:, work].sum()) - decode,
        "decode": decode,
        "communication": float(seconds[:, communication].sum()),
        "host": float(seconds[:, host].sum()),
    }
    whole = sum(shares.values())
    return {name: value / whole for name, value in shares.items()}


def limited_by(run: Run, latency: LinearLatency) -> str:
    """What stops a higher rate, from a run a little beyond the highest.

    KV memory or the number of requests that may run where others wait while nearly every block is
    taken, or so many run; else what most of the engine's time goes to.
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
    shares = time_shares(run, latency)
    return _OF_TIME[max(shares, key=lambda name: shares[name])]


def _sums(run: Run) -> BatchSums:
    every = -(-len(run.steps) // _MOST_STEPS)
    return replace(run.steps, table=run.steps.table[::every]).sums


def _without_prefill(sums: BatchSums) -> BatchSums:
    nothing = np.zeros_like(sums.prefill_requests)
    names = ("requests", "tokens", "cached", "pairs")
    gone = {f"prefill_{name}": nothing for name in names}
    gone |= {f"windowed_prefill_{name}": nothing for name in ("cached", "pairs")}
    return replace(sums, **gone)
