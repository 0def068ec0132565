"""Time the simulator: one run, forty runs on two cores, and the command from the shell.

    python scripts/bench_simulator.py            # all of it
    python scripts/bench_simulator.py --no-shell # without the two shell starts

The load is 16,800 requests over 1,200 s (8 req/s x 600 s, then 20 req/s x 600 s; 10 groups of 10
prompts of 547 tokens, 248 output tokens) on Llama-2-7B and one H100. CPU times depend less on other
programs than wall times do. The last line is JSON.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import typer
from timing import PINN, timed

from pinn.engines.deployment import Deployment
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import Job, simulate_many
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.workload import PromptGroups, shared_prefix
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES

MODEL = "meta-llama/Llama-2-7b-hf"
BARS_S = {"one_run_s": 0.3, "forty_runs_s": 10.0, "shell_cold_s": 8.0, "shell_warm_s": 3.0}
WORKLOAD = """
prompt_tokens: 547
output_tokens: 248
stages: [{rate: 8, duration: 600}, {rate: 20, duration: 600}]
groups: 10
prompts_per_group: 10
shared_tokens: 100
"""
BETA = {name: feature.prior for name, feature in STEP_FEATURES.items()}
ALPHA = {name: feature.prior for name, feature in REQUEST_FEATURES.items()}


def make_job(seed: int) -> Job:
    serving = ServingSpec(max_num_batched_tokens=2048, max_num_seqs=128, max_model_len=4096)
    deployment = Deployment(load_model(MODEL), load_gpu("H100"), serving)
    stages, prompts = [Stage(8, 600), Stage(20, 600)], PromptGroups(10, 10, 100, 447)
    workload = shared_prefix(stages, prompts, 248, stage_gap_s=1.0, seed=seed)
    beta, alpha = (np.array([*each.values()]) for each in (BETA, ALPHA))
    return Job(deployment, workload, LinearLatency(deployment, beta, alpha))


def time_runs() -> dict[str, float]:
    job = make_job(0)
    run = job.run()
    times = [timed(job.run)[1:] for _ in range(5)]
    jobs = [make_job(seed) for seed in range(40)]
    _, forty, forty_cpu = timed(lambda: simulate_many(jobs, workers=2))
    return {
        "requests": len(run.requests),
        "steps": len(run.steps),
        "one_run_s": median(wall for wall, _ in times),
        "one_run_cpu_s": median(cpu for _, cpu in times),
        "forty_runs_s": forty,
        "forty_runs_cpu_s": forty_cpu,
    }


def time_shell() -> dict[str, float]:
    """Return the time of ``pinn simulate`` in a new process, with and without compiled code."""
    flags = f"--model {MODEL} --gpu H100 --max-num-seqs 128 --max-num-batched-tokens 2048"
    with tempfile.TemporaryDirectory() as folder:
        load, coefficients = Path(folder, "load.yaml"), Path(folder, "coefficients.json")
        load.write_text(WORKLOAD)
        coefficients.write_text(json.dumps({"beta": BETA, "alpha": ALPHA}))
        files = f"--workload {load} --coefficients {coefficients}"
        command = [*PINN, "simulate", *flags.split(), *files.split()]
        environment = os.environ | {"XDG_CACHE_HOME": folder}
        environment.pop("NUMBA_CACHE_DIR", None)
        found = {}
        for start in ("cold", "warm"):
            _, found[f"shell_{start}_s"], found[f"shell_{start}_cpu_s"] = timed(
                lambda: subprocess.run(
                    command, env=environment, check=True, stdout=subprocess.DEVNULL
                )
            )
    return found


def main(shell: bool = True) -> None:
    found = time_runs() | (time_shell() if shell else {})
    found["load_average"] = os.getloadavg()[0]
    for name, value in found.items():
        bar = f"  (bar {BARS_S[name]:g})" if name in BARS_S else ""
        print(f"{name:16} {value:10.3f}{bar}")
    print(json.dumps(found))


if __name__ == "__main__":
    typer.run(main)
