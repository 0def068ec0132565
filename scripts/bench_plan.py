"""How long a plan takes: candidates of a 70B model under 10,000 requests.

python scripts/bench_plan.py [--workers 2] [--load-s 833] [--candidates FILE]

Prints wall clock, processor seconds of all processes, and the most memory that they held. The first
run after a change compiles and remembers; take the second.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

LOAD = """
prompt_tokens: 1024
output_tokens: 256
length_range: [0.8, 1.0]
stages:
"""
ASKED = [
    "--model", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "H100,H200,L40S", "--rate", "12",
    "--slo", "ttft<=1s, tpot<=40ms for 95 %", "--max-gpus", "32",
    "--price", "H100=2.5 H200=3.2 L40S=1.1",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="2", help="Processes.")
    parser.add_argument("--load-s", type=float, default=833, help="How long requests are sent.")
    parser.add_argument("--candidates", help="As of 'pinn plan'.")
    asked = parser.parse_args()
    more = ["--workers", asked.workers]
    if asked.candidates is not None:
        more += ["--candidates", asked.candidates]
    with tempfile.TemporaryDirectory() as folder:
        load, out = Path(folder) / "load.yaml", Path(folder) / "plan"
        load.write_text(f"{LOAD}- {{rate: 12, duration: {asked.load_s}}}")
        begin = time.monotonic()
        command = [
            sys.executable, "-m", "pinn.interface.commands.main", "plan", "--workload", str(load)
        ]  # fmt: skip
        process = subprocess.Popen([*command, *ASKED, *more, "--out", str(out)])
        most: list[int] = [0]
        watcher = threading.Thread(target=watch, args=(process, most))
        watcher.start()
        process.wait()
        watcher.join()
        wall_s = time.monotonic() - begin
        plan = json.loads((out / "plan.json").read_text())
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        json.dumps(
            {
                "candidates": plan["candidates"],
                "requests": plan["ask"]["requests"],
                "simulations": plan["simulations"],
                "wall_s": round(wall_s, 1),
                "processor_s": round(used.ru_utime + used.ru_stime, 1),
                "most_memory_mib": round(most[0] / 2**20),
            }
        )
    )


def watch(process: subprocess.Popen, most: list[int]) -> None:
    """The most resident memory of a process and its children, seen ten times a second."""
    while process.poll() is None:
        most[0] = max(most[0], sum(map(resident_bytes, [process.pid, *children(process.pid)])))
        time.sleep(0.1)


def children(pid: int) -> list[int]:
    try:
        direct = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(each) for each in direct]


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


if __name__ == "__main__":
    main()
