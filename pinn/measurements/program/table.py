"""Table of measured steps, in the format of Dynamo's forward-pass metrics with extra columns.

=====================  ====  =============================================================
column                 unit  meaning
=====================  ====  =============================================================
batch                        number of the wanted batch, whose steps have one median
counter_id                   the step's number
phase                        context, decode or mixed
sum_prefill_tokens           new prompt tokens of the step
num_prefill_requests         requests in prefill
sum_prefill_kv_tokens        cached tokens of the requests in prefill
var_prefill_length           variance of new tokens over requests in prefill
num_decode_requests          requests in decode
sum_decode_kv_tokens         cached tokens of the requests in decode, before the step
var_decode_kv_tokens         variance of cached tokens over requests in decode
latency_ms             ms    time from start, or the previous step's end, to the step's end
engine_ms              ms    part of latency_ms that the engine logs as elapsed time
start_s                s     start since the first step
is_cold                      1 for the first steps of a batch, which are ignored (warm-up)
=====================  ====  =============================================================
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

STEPS_FILE, FACTS_FILE = "steps.csv", "machine.json"

COLUMNS = (
    "batch", "counter_id", "phase", "sum_prefill_tokens", "num_prefill_requests",
    "sum_prefill_kv_tokens", "var_prefill_length", "num_decode_requests", "sum_decode_kv_tokens",
    "var_decode_kv_tokens", "latency_ms", "engine_ms", "start_s", "is_cold",
)  # fmt: skip


class MeasuringError(Exception):
    """Error of the measuring program that the user can correct: one line with a remedy."""


class Step(NamedTuple):
    """Measured step of the engine.

    Attributes:
        start: Start in seconds on the engine's clock.
        latency: Duration of the step in seconds (``latency_ms`` in the table).
        engine: Part of ``latency``, in seconds, that the engine logs as elapsed time.
        prompts: Number of requests in prefill.
        tokens: New prompt tokens of all requests in prefill.
        cached: Cached prompt tokens of all requests in prefill.
        tokens_variance: Variance of the new prompt tokens over requests in prefill.
        decodes: Number of decodes.
        context: Cached tokens of all decodes.
        context_variance: Variance of the cached tokens over decodes.
        preempted: Whether the engine preempted a request.
    """

    start: float
    latency: float
    engine: float
    prompts: int
    tokens: int
    cached: int
    tokens_variance: float
    decodes: int
    context: int
    context_variance: float
    preempted: bool = False


class Table:
    """Output folder with a table of steps, written per batch so that errors lose few steps."""

    def __init__(self, folder: str, facts: dict[str, object]) -> None:
        """Create the folder with the table's header and the facts about the measurement.

        Raises:
            FileExistsError: If the folder already has steps.
        """
        os.makedirs(folder, exist_ok=True)
        self.folder, self.facts, self.rows = folder, facts, 0
        self._origin: float | None = None
        self._file = open(os.path.join(folder, STEPS_FILE), "x", encoding="ascii")  # noqa: SIM115
        self._file.write(",".join(COLUMNS) + "\n")
        self._file.flush()
        self.describe({})

    def write(self, batch: int, steps: Iterable[tuple[Step, bool]]) -> None:
        """Append a batch's steps, each marked as warm-up or not, and flush them to disk.

        Raises:
            OSError: If the disk is full; earlier rows are kept.
        """
        for step, cold in steps:
            if self._origin is None:
                self._origin = step.start
            self._file.write(self._row(batch, step, cold))
            self.rows += 1
        self._file.flush()
        os.fsync(self._file.fileno())

    def _row(self, batch: int, step: Step, cold: bool) -> str:
        alone = "context" if step.prompts else "decode"
        phase = "mixed" if step.prompts and step.decodes else alone
        start = step.start - (self._origin or 0.0)
        values = (
            batch, self.rows, phase, step.tokens, step.prompts, step.cached,
            f"{step.tokens_variance:.6g}", step.decodes, step.context,
            f"{step.context_variance:.6g}", f"{1e3 * step.latency:.5f}",
            f"{1e3 * step.engine:.5f}", f"{start:.6f}", int(cold),
        )  # fmt: skip
        return ",".join(map(str, values)) + "\n"

    def describe(self, more: dict[str, object]) -> None:
        """Add facts to the metadata file next to the table, which is rewritten atomically."""
        self.facts.update(more)
        path = os.path.join(self.folder, FACTS_FILE)
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(self.facts, file, indent=2)
            file.write("\n")
        os.replace(path + ".tmp", path)

    def close(self) -> None:
        """Close the table's file; remove it if it is empty, so that the folder can be reused."""
        with suppress(OSError):
            self._file.close()
            if not self.rows:
                os.remove(self._file.name)


# Facts about the measuring machine: GPUs, driver, host.

#: A GPU counts as in use above this share of used memory; a display uses less.
_IDLE_SHARE = 0.05

_QUERY = "name,driver_version,memory.used,memory.total,clocks.max.sm,power.limit"


def machine_facts() -> dict[str, object]:
    """Return facts about GPUs, driver and host reported by the machine, by name."""
    return {
        "cards": cards(),
        "host_cpu": _cpu_name(),
        "host_cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def cards() -> list[dict[str, float | str]]:
    """Return the name, memory, clock and power of each NVIDIA GPU; empty if there is no driver."""
    found = []
    for line in _nvidia_smi(f"--query-gpu={_QUERY}").splitlines():
        values = [part.strip() for part in line.split(",")]
        if len(values) == len(_QUERY.split(",")):
            names = ("name", "driver", "used_mib", "total_mib", "clock_mhz", "power_w")
            found.append({n: _number(v) for n, v in zip(names, values, strict=True)})
    return found


def busy_card(found: list[dict[str, float | str]]) -> str:
    """Return a description of a GPU in use; empty if all GPUs are free.

    If ``CUDA_VISIBLE_DEVICES`` contains indices, only these GPUs are checked.
    """
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    numbers = {int(part) for part in shown if part.strip().isdigit()}
    for number, card in enumerate(found):
        if numbers and number not in numbers:
            continue
        used, total = card.get("used_mib"), card.get("total_mib")
        if isinstance(used, float) and isinstance(total, float) and used > _IDLE_SHARE * total:
            return f"GPU {number} ({card['name']}) has {used:.0f} of {total:.0f} MiB in use"
    return ""


def _nvidia_smi(query: str) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _cpu_name() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
