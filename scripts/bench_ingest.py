"""Prints how fast traces are parsed against Python's json module, and the memory it takes.

    python scripts/bench_ingest.py --mib 1024            throughput on one core and on two
    python scripts/bench_ingest.py --mib 2048 --memory   peak memory of a whole ingestion

The file is written by the project's own trace writer: steps sampled at 10 %, every journey. What
json does is the least that any reader has to: load each line, visit each attribute and convert its
value. Every job runs in a process of its own; imports are not timed, starting workers is. The last
line of the output is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

_SPAN_ID = re.compile(r'("(?:spanId|parentSpanId)":")[0-9a-f]{4}')
_MIB = 2**20
# The engine that makes the traces is that of the tests.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))


def make_file(path: Path, mib: int, steps: float = 0.1, journeys: float = 1.0) -> None:
    """Write about ``mib`` MiB of traces: copies of one run, each as a server of its own."""
    from synthetic_engine import Arrival, EngineLimits, run_engine
    from trace_writer import WriterOptions, trace_lines

    draw, now, arrivals = random.Random(0), 0.0, []
    for _ in range(4000):
        now += draw.expovariate(20)
        arrivals.append(Arrival(now, draw.randint(100, 900), draw.randint(50, 450)))
    run = run_engine(arrivals, lambda batch: 0.01 + 1e-4 * len(batch), EngineLimits())
    options = WriterOptions(
        step_sampling=steps,
        snapshot_sampling=0.05 * (steps < 1),
        journey_sampling=journeys,
        service=(("service.name", "SERVER"),),
    )
    text = "".join(line + "\n" for line in trace_lines(run, options))
    with path.open("w") as file:
        number = 0
        while file.tell() < mib * _MIB:
            copy = _SPAN_ID.sub(rf"\g<1>{number:04x}", text)
            file.write(copy.replace("SERVER", f"vllm-{number}"))
            number += 1


def walk_with_json(path: Path) -> int:
    """Load each line with Python's json module and visit it; the number of attributes."""
    count = 0
    with path.open("rb") as file:
        for line in file:
            for group in json.loads(line)["resourceSpans"]:
                for scope in group["scopeSpans"]:
                    for span in scope["spans"]:
                        count += len({a["key"]: _value(a["value"]) for a in span["attributes"]})
                        for event in span["events"]:
                            found = {a["key"]: _value(a["value"]) for a in event["attributes"]}
                            count += len(found)
    return count


def _value(value: dict) -> int | float | str | bool | None:
    if "intValue" in value:
        return int(value["intValue"])
    if "doubleValue" in value:
        return value["doubleValue"]
    if "stringValue" in value:
        return value["stringValue"]
    return value.get("boolValue")


def walk_with_pinn(path: Path, workers: int) -> int:
    """Parse into raw tables, which are dropped; the number of lines."""
    from pinn.server.readers.vllm import parse_file

    return sum(chunk.counts.read["lines"] for chunk in parse_file(path, workers))


#: Job -> cores it may use.
JOBS = {"json": 1, "pinn_1": 1, "pinn_2": 2}


def run_job(name: str, path: Path) -> None:
    """Run one job in this process; print its wall seconds and all CPU seconds, imports too."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-JOBS[name] :])
    if name != "json":
        import pinn.server.readers.vllm  # noqa: F401
    begin = time.perf_counter()
    if name == "json":
        walk_with_json(path)
    else:
        walk_with_pinn(path, JOBS[name])
    wall, times = time.perf_counter() - begin, os.times()
    print(wall, times.user + times.system + times.children_user + times.children_system)


def throughput(path: Path, repeats: int) -> dict[str, float]:
    """Time the jobs, each in a fresh process, in turns so that all meet the same machine."""
    best = {name: (float("inf"), float("inf")) for name in JOBS}
    for _ in range(repeats):
        for name in JOBS:
            command = [sys.executable, __file__, "--file", str(path), "--job", name]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            wall, cpu = map(float, output.split())
            best[name] = (min(best[name][0], wall), min(best[name][1], cpu))
    size = path.stat().st_size / 1e6
    print(f"parsing and walking {size:.0f} MB (writing Parquet not included)")
    for name, (wall, cpu) in best.items():
        ratios = best["json"][0] / wall, best["json"][1] / cpu
        print(
            f"  {name:7s} wall {wall:6.2f} s, {size / wall:4.0f} MB/s, {ratios[0]:5.2f} x json"
            f"   CPU {cpu:6.2f} s, {ratios[1]:5.2f} x json"
        )
    return {
        "mb": round(size),
        **{f"{name}_wall_s": round(wall, 2) for name, (wall, _) in best.items()},
        **{f"{name}_cpu_s": round(cpu, 2) for name, (_, cpu) in best.items()},
        "wall_ratio_1": round(best["json"][0] / best["pinn_1"][0], 2),
        "wall_ratio_2": round(best["json"][0] / best["pinn_2"][0], 2),
        "cpu_ratio_1": round(best["json"][1] / best["pinn_1"][1], 2),
        "load": os.getloadavg()[0],
    }


def memory(path: Path, workers: int) -> dict[str, float]:
    """Ingest in a fresh process and watch the resident memory of it and its children."""
    out = Path(tempfile.mkdtemp())
    command = [
        sys.executable, "-m", "pinn.interface.commands.main",
        "ingest", "vllm", str(path), "-o", str(out / "run"),
    ]  # fmt: skip
    begin = time.perf_counter()
    process = subprocess.Popen([*command, "--workers", str(workers)], stdout=subprocess.DEVNULL)
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, sum(_anonymous_and_mapped_mib(p) for p in _family(process.pid)))
        threading.Event().wait(0.05)
    seconds = time.perf_counter() - begin
    if process.returncode:
        raise SystemExit(f"ingestion failed with {process.returncode}")
    timing = json.loads((out / "run" / "manifest.json").read_text())["seconds"]
    shutil.rmtree(out)
    size = path.stat().st_size / _MIB
    print(f"whole ingestion of {size:.0f} MiB with {workers} worker(s): {seconds:.1f} s, "
          f"peak resident memory {peak:.0f} MiB")  # fmt: skip
    print("  " + ", ".join(f"{name} {value:.1f} s" for name, value in timing.items()))
    return {f"peak_mib_{workers}": round(peak), f"ingest_s_{workers}": round(seconds, 1), **timing}


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    pids = [pid]
    for parent in pids:
        try:
            tasks = Path(f"/proc/{parent}/task").iterdir()
            children = [(task / "children").read_text().split() for task in tasks]
        except OSError:
            continue
        pids += [int(child) for part in children for child in part]
    return pids


def _anonymous_and_mapped_mib(pid: int) -> float:
    """Resident memory, shared pages counted by their share."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="watch memory instead of speed")
    parser.add_argument("--workers", type=int, default=1, help="of the ingestion under --memory")
    parser.add_argument("--step-sampling", type=float, default=0.1)
    parser.add_argument("--journey-sampling", type=float, default=1.0)
    parser.add_argument("--file", type=Path, help="use this file instead of a new one")
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        run_job(arguments.job, arguments.file)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.file or Path(folder) / "traces.json"
        if not path.is_file():
            make_file(path, arguments.mib, arguments.step_sampling, arguments.journey_sampling)
        if arguments.memory:
            result = memory(path, arguments.workers)
        else:
            result = throughput(path, arguments.repeats)
    print(json.dumps({"cores": os.cpu_count(), **result}))


if __name__ == "__main__":
    main()
