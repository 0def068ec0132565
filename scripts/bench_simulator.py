"""How fast the simulator is: one run, forty runs on two cores, and the command from the shell.

    python scripts/bench_simulator.py            # all of it
    python scripts/bench_simulator.py --no-shell # without the two shell starts

The load is 16,800 requests over 1,200 s (8 req/s x 600 s, then 20 req/s x 600 s; 10 groups of 10
prompts of 547 tokens, 248 output tokens) on Llama-2-7B and one H100. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from pinn.engines.deployment import Deployment
from pinn.physics.request import REQUEST_FEATURES
from pinn.physics.step import STEP_FEATURES
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.many import Job, simulate_many
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.synthetic import PromptGroups, shared_prefix
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec

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


def make_job(seed: int) -> Job:
    serving = ServingSpec(max_num_batched_tokens=2048, max_num_seqs=128, max_model_len=4096)
    deployment = Deployment(load_model(MODEL), load_gpu("H100"), serving)
    workload = shared_prefix(
        [Stage(8, 600), Stage(20, 600)],
        PromptGroups(10, 10, 100, 447),
        248,
        stage_gap_s=1.0,
        seed=seed,
    )
    beta = np.array([f.prior for f in STEP_FEATURES.values()])
    alpha = np.array([f.prior for f in REQUEST_FEATURES.values()])
    return Job(deployment, workload, LinearLatency(deployment, beta, alpha))


def time_runs() -> dict[str, float]:
    """Wall times, and processor times, which a busy machine stretches less."""
    job = make_job(0)
    run = job.run()
    walls, cpus = [], []
    for _ in range(5):
        wall, cpu = time.perf_counter(), time.process_time()
        job.run()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    jobs = [make_job(seed) for seed in range(40)]
    start, cpu = time.perf_counter(), time.process_time()
    simulate_many(jobs, workers=2)
    forty, forty_cpu = time.perf_counter() - start, time.process_time() - cpu
    return {
        "requests": len(run.requests),
        "steps": len(run.steps),
        "one_run_s": median(walls),
        "one_run_cpu_s": median(cpus),
        "forty_runs_s": forty,
        "forty_runs_cpu_s": forty_cpu,
    }


def time_shell() -> dict[str, float]:
    """``pinn simulate`` in a new process, first without and then with what it compiled."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "load.yaml").write_text(WORKLOAD)
        values = {
            "beta": {name: f.prior for name, f in STEP_FEATURES.items()},
            "alpha": {name: f.prior for name, f in REQUEST_FEATURES.items()},
        }
        (root / "coefficients.json").write_text(json.dumps(values))
        flags = f"--model {MODEL} --gpu H100 --max-num-seqs 128 --max-num-batched-tokens 2048"
        command = [
            sys.executable, "-m", "pinn.interface.commands.main", "simulate", *flags.split(),
            "--workload", str(root / "load.yaml"),
            "--coefficients", str(root / "coefficients.json"),
        ]  # fmt: skip
        environment = os.environ | {"XDG_CACHE_HOME": folder}
        environment.pop("NUMBA_CACHE_DIR", None)
        cold, cold_cpu = _time_command(command, environment)
        warm, warm_cpu = _time_command(command, environment)
    return {
        "shell_cold_s": cold,
        "shell_cold_cpu_s": cold_cpu,
        "shell_warm_s": warm,
        "shell_warm_cpu_s": warm_cpu,
    }


def _time_command(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall and processor time of a command."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    after, wall = os.times(), time.perf_counter() - start
    used = after.children_user + after.children_system
    return wall, used - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-shell", action="store_true", help="skip the two shell starts")
    arguments = parser.parse_args()
    found = time_runs() | ({} if arguments.no_shell else time_shell())
    found["load_average"] = os.getloadavg()[0]
    for name, value in found.items():
        bar = f"  (bar {BARS_S[name]:g})" if name in BARS_S else ""
        print(f"{name:16} {value:10.3f}{bar}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
