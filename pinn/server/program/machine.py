"""What the measurements were made on: card, driver, host."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import Any

#: Share of a card's memory that another program may hold before the card counts as busy: what a
#: display or a monitor takes.
_IDLE_SHARE = 0.05

_QUERY = "name,driver_version,memory.used,memory.total,clocks.max.sm,power.limit"


def machine_facts() -> dict[str, Any]:
    """Card, driver and host, as far as the machine tells them."""
    return {
        "cards": cards(),
        "host_cpu": _cpu_name(),
        "host_cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def cards() -> list[dict[str, Any]]:
    """The NVIDIA cards of the machine; none where there is no driver."""
    found = []
    for line in _nvidia_smi(f"--query-gpu={_QUERY}").splitlines():
        values = [part.strip() for part in line.split(",")]
        if len(values) == len(_QUERY.split(",")):
            names = ("name", "driver", "used_mib", "total_mib", "clock_mhz", "power_w")
            found.append({n: _number(v) for n, v in zip(names, values, strict=True)})
    return found


def busy_card(found: list[dict[str, Any]]) -> str:
    """A card that somebody else uses, in words; empty where all are free.

    Only those that ``CUDA_VISIBLE_DEVICES`` leaves, where it has numbers.
    """
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    numbers = {int(part) for part in shown if part.strip().isdigit()}
    for number, card in enumerate(found):
        if numbers and number not in numbers:
            continue
        used, total = card.get("used_mib"), card.get("total_mib")
        if not (isinstance(used, float) and isinstance(total, float)):
            continue
        if used > _IDLE_SHARE * total:
            return f"card {number} ({card['name']}) has {used:.0f} of {total:.0f} MiB in use"
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


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
