"""BLIS's flags of ``run``, and the command line of a run.sh."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

STRINGS = (
    "model", "hardware", "hardware-config", "model-config-folder", "defaults-filepath",
    "workload-spec", "workload", "metrics-path", "trace-output", "alpha-coeffs", "beta-coeffs",
)  # fmt: skip
#: Name -> default; None where BLIS computes it.
INTEGERS = {
    "tp": None, "dp": 1, "block-size-in-tokens": 16, "max-num-seqs": 256,
    "max-num-batched-tokens": 2048, "long-prefill-token-threshold": 0, "admission-latency": 0,
    "routing-latency": 0, "seed": 42, "num-requests": 100, "horizon": None, "timeout": 300,
    "total-kv-blocks": None, "max-model-len": None, "num-instances": 1, "concurrency": 0,
    "prompt-tokens": 512, "output-tokens": 512, "cache-signal-delay": 50_000,
}  # fmt: skip


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the flags of ``blis run``; unknown ones end the program, as in BLIS."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in STRINGS:
        parser.add_argument(f"--{name}")
    for name, default in INTEGERS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--latency-model", choices=("trained-physics", "roofline"))
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    parser.add_argument("--enable-expert-parallel", action="store_true")
    assert arguments[0] == "run"
    return parser.parse_args(arguments[1:])


def flags_of(script: Path, *appended: str, load: str = "") -> argparse.Namespace:
    """Return BLIS's flags from a run.sh, which runs with a program that prints its arguments."""
    show = script.parent.parent / "show"
    show.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    show.chmod(0o755)
    done = subprocess.run(
        [str(script), *appended],
        env={"BLIS": str(show), "LOAD": load, "PATH": "/usr/bin:/bin"},
        cwd="/", capture_output=True, text=True, check=True,
    )  # fmt: skip
    return parse(done.stdout.splitlines())
