"""Time the search for a plan: servers for a 70B model under a load of 10,000 requests.

python scripts/bench_plan.py [--workers 2] [--load-s 833] [--candidates FILE]

Prints the wall time and the CPU time of all processes in seconds, and their peak memory. The first
run after a change compiles code and fills caches, so use the second run.
"""

import json
import tempfile
from pathlib import Path

import typer
from timing import CHILDREN, PINN, most_memory_bytes, timed

LOAD = """
prompt_tokens: 1024
output_tokens: 256
length_range: [0.8, 1.0]
stages:
"""
ASKED = (
    "--model", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "H100,H200,L40S", "--rate", "12",
    "--slo", "ttft<=1s, tpot<=40ms for 95 %", "--max-gpus", "32",
    "--price", "H100=2.5 H200=3.2 L40S=1.1",
)  # fmt: skip


def main(workers: int = 2, load_s: float = 833.0, candidates: Path | None = None) -> None:
    more = ["--candidates", str(candidates)] if candidates else []
    with tempfile.TemporaryDirectory() as folder:
        load, out = Path(folder) / "load.yaml", Path(folder) / "plan"
        load.write_text(f"{LOAD}- {{rate: 12, duration: {load_s}}}")
        files = ("--workload", str(load), "--workers", str(workers), "--out", str(out))
        files += ("--cache", str(Path(folder) / "cache"), "--time-budget", "inf")
        command = (*PINN, "plan", *ASKED, *files, *more)
        most, wall_s, processor_s = timed(lambda: most_memory_bytes(command), CHILDREN)
        made = json.loads((out / "plan.json").read_text())
    found = {
        "candidates": made["candidates"],
        "requests": made["ask"]["requests"],
        "simulations": made["simulations"],
        "wall_s": round(wall_s, 1),
        "processor_s": round(processor_s, 1),
        "most_memory_mib": round(most / 2**20),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    typer.run(main)
