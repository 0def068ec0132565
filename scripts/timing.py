"""Measurement of wall time, CPU time and memory of benchmarked code."""

import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

Answer = TypeVar("Answer")
#: Command line that runs ``pinn`` as a separate process.
PINN = (sys.executable, "-m", "pinn.cli.main")


#: Processes whose CPU time counts: only finished child processes, or also this process.
CHILDREN = (resource.RUSAGE_CHILDREN,)
ALL = (resource.RUSAGE_SELF, *CHILDREN)


def timed(run: Callable[[], Answer], whose: Sequence[int] = ALL) -> tuple[Answer, float, float]:
    """Call a function, and return its result, wall time and CPU time in seconds."""
    before, start = _processor_s(whose), time.perf_counter()
    answer = run()
    return answer, time.perf_counter() - start, _processor_s(whose) - before


def _processor_s(whose: Sequence[int]) -> float:
    return sum(each.ru_utime + each.ru_stime for each in map(resource.getrusage, whose))


def most_memory_bytes(command: Sequence[str]) -> int:
    """Run a command, and return its peak memory in bytes (proportional set size, with children)."""
    process = subprocess.Popen(command)
    most = 0
    while process.poll() is None:
        most = max(most, resident_bytes(process.pid))
        threading.Event().wait(0.1)
    if process.returncode:
        raise SystemExit(f"'{' '.join(command)}' ended with exit status {process.returncode}")
    return most


def resident_bytes(pid: int) -> int:
    """Return the memory use of a process and its descendants in bytes (proportional set size)."""
    return sum(map(_resident_bytes, _family(pid)))


def _family(pid: int) -> list[int]:
    """Return the ids of a process and of its descendants."""
    pids = [pid]
    for parent in pids:
        try:
            tasks = Path(f"/proc/{parent}/task").iterdir()
            pids += [int(child) for t in tasks for child in (t / "children").read_text().split()]
        except OSError:
            continue
    return pids


def _resident_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
