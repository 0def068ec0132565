"""Measure time and memory to simulate conversations, with and without shared prefixes.

    python scripts/bench_conversations.py [--tier-gib 2000]

The load has 10,000 conversations of 8 turns, each with 12,000 new prompt tokens and 60 output
tokens: 80,000 requests of up to 96,480 tokens, at 1 request/s. They are sent to Llama-3.1-8B on one
B200 with prefix caching. Then requests with the same lengths and times, but with unique prompts,
are sent without prefix caching. With ``--tier-gib``, vLLM's OffloadingConnector keeps evicted
blocks in host memory of that size. The last line of output is JSON.
"""

import json
import resource
import sys
from dataclasses import replace

import numpy as np
import typer
from timing import timed

from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run
from pinn.simulator.simulate import simulate
from pinn.simulator.statistics import run_statistics
from pinn.simulator.workloads.load import LoadFlags
from pinn.simulator.workloads.workload import Workload
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES

MODEL, GPU = "meta-llama/Llama-3.1-8B", "B200"
BARS = {"times_as_long": 8.0, "peak_gib": 2.0}


def without_prefixes(workload: Workload, run: Run) -> Workload:
    """Return a load with the lengths and sending times of a run's requests, but unique prompts."""
    r = run.requests
    order = np.argsort(r.arrival_s, kind="stable")
    return Workload(
        "alone", r.prompt_tokens[order], workload.output_tokens[order], r.arrival_s[order]
    )


def main(
    conversations: int = 10_000, rate: float = 1.0, think_time: float = 5.0, tier_gib: float = 0.0
) -> None:
    model, gpu = load_model(MODEL), load_gpu(GPU)
    deployment = Deployment(model, gpu, ServingSpec())
    uncached = Deployment(model, gpu, ServingSpec(enable_prefix_caching=False))
    beta, alpha = (
        np.array([each.prior for each in registry.values()])
        for registry in (STEP_FEATURES, REQUEST_FEATURES)
    )
    latency = LinearLatency(deployment, beta, alpha)
    flags = LoadFlags(
        input_len=12_000, output_len=60, turns=8, think_time=think_time,
        num_prompts=8 * conversations,
    )  # fmt: skip
    load = flags.draw(rate, 0)
    small = replace(flags, num_prompts=80)
    engine = EngineSpec(kv_offloading_size=tier_gib or None)
    simulate(deployment, small.draw(rate, 0), latency, engine)  # compile the code before timing
    run, wall_s, cpu_s = timed(lambda: simulate(deployment, load, latency, engine))
    # ru_maxrss is in KiB on Linux and in bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
    metrics = run_statistics(run)
    alone = without_prefixes(load, run)
    other, alone_wall_s, alone_cpu_s = timed(lambda: simulate(uncached, alone, latency))
    found = {
        "requests": len(load),
        "longest_tokens": int((load.prompt_tokens + load.output_tokens).max()),
        "steps": len(run.steps),
        "steps_alone": len(other.steps),
        "cache_hit_rate": metrics["cache_hit_rate"],
        "host_hit_rate": metrics.get("host_hit_rate", 0.0),
        "transfers": len(run.transfers),
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "alone_wall_s": alone_wall_s,
        "alone_cpu_s": alone_cpu_s,
        "times_as_long": cpu_s / alone_cpu_s,
        "peak_gib": peak,
    }
    for name, value in found.items():
        bar = f"  (bar {BARS[name]:g})" if name in BARS else ""
        print(f"{name:16} {value:14,.3f}{bar}")
    print(json.dumps(found))


if __name__ == "__main__":
    typer.run(main)
