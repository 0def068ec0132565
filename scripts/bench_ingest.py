"""Compare pinn's trace parser, on one core and on two, with Python's json module.

    python scripts/bench_ingest.py --mib 1024

The file is written by the project's own trace writer: 10 % of the steps, and the spans of every
request. The json job does the minimum of any reader: load each line, visit each attribute and
convert its value. Every job runs in its own process. The time includes the start of workers, but
not imports. The last line of the output is one JSON document.
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import typer
from timing import timed

_SPAN_ID = re.compile(r'("(?:spanId|parentSpanId)":")[0-9a-f]{4}')
_MIB = 2**20
# The synthetic engine of the tests writes the traces.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
#: Number of CPU cores of each parsing job, by name of the job.
JOBS = {"json": 1, "pinn_1": 1, "pinn_2": 2}
_CONVERTED = {"intValue": int, "doubleValue": float, "stringValue": str, "boolValue": bool}


def make_file(path: Path, mib: int) -> None:
    """Write about ``mib`` MiB of traces: copies of one run, each treated as a separate server."""
    from synthetic_engine import Arrival, EngineLimits, run_engine
    from trace_writer import WriterOptions, trace_lines

    draw, now, arrivals = random.Random(0), 0.0, []
    for _ in range(4000):
        now += draw.expovariate(20)
        arrivals.append(Arrival(now, draw.randint(100, 900), draw.randint(50, 450)))
    run = run_engine(arrivals, lambda batch: 0.01 + 1e-4 * len(batch), EngineLimits())
    options = WriterOptions(
        step_sampling=0.1, snapshot_sampling=0.05, service=(("service.name", "SERVER"),)
    )
    text = "".join(line + "\n" for line in trace_lines(run, options))
    with path.open("w") as file:
        number = 0
        while file.tell() < mib * _MIB:
            copy = _SPAN_ID.sub(rf"\g<1>{number:04x}", text)
            file.write(copy.replace("SERVER", f"vllm-{number}"))
            number += 1


def walk_with_json(path: Path) -> None:
    """Load each line of a trace file with Python's json module, and convert attribute values."""
    with path.open("rb") as file:
        for line in file:
            for group in json.loads(line)["resourceSpans"]:
                for span in (span for scope in group["scopeSpans"] for span in scope["spans"]):
                    for holder in (span, *span["events"]):
                        for attribute in holder["attributes"]:
                            ((kind, value),) = attribute["value"].items()
                            _CONVERTED[kind](value)


def run_job(name: str, path: Path) -> None:
    """Run one parsing job in this process, and print its wall time and CPU time in seconds."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-JOBS[name] :])
    if name == "json":
        _, wall, cpu = timed(lambda: walk_with_json(path))
    else:
        from pinn.measurements.readers.vllm import parse_file

        # The job parses the file into raw tables, which are then discarded.
        _, wall, cpu = timed(lambda: [None for _ in parse_file(path, JOBS[name])])
    print(wall, cpu)


def throughput(path: Path, repeats: int) -> dict[str, float]:
    """Return each job's throughput in MiB/s; jobs take turns, each in a fresh process."""
    times: dict[str, list[list[float]]] = {name: [] for name in JOBS}
    for _ in range(repeats):
        for name, found in times.items():
            command = [sys.executable, __file__, "--file", str(path), "--job", name]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found.append([*map(float, output.split())])
    best = {name: [min(each) for each in zip(*found, strict=True)] for name, found in times.items()}
    size = path.stat().st_size / 1e6
    print(f"parsing and walking {size:.0f} MB (writing Parquet not included)")
    rows: dict[str, float] = {"mb": round(size), "load": os.getloadavg()[0]}
    for name, (wall, cpu) in best.items():
        ratios = best["json"][0] / wall, best["json"][1] / cpu
        print(
            f"  {name:7s} wall {wall:6.2f} s, {size / wall:4.0f} MB/s, {ratios[0]:5.2f} x json"
            f"   CPU {cpu:6.2f} s, {ratios[1]:5.2f} x json"
        )
        rows |= {f"{name}_wall_s": wall, f"{name}_cpu_s": cpu}
        rows |= {f"{name}_wall_ratio": ratios[0], f"{name}_cpu_ratio": ratios[1]}
    return {name: round(value, 2) for name, value in rows.items()}


def main(
    mib: int = 1024,
    repeats: int = 3,
    file: Path | None = None,
    job: str = typer.Option("", hidden=True),
) -> None:
    if job:
        run_job(job, file)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = file or Path(folder) / "traces.json"
        if not path.is_file():
            make_file(path, mib)
        print(json.dumps({"cores": os.cpu_count(), **throughput(path, repeats)}))


if __name__ == "__main__":
    typer.run(main)
