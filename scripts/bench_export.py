"""Time what a simulator step may cost: the ONNX graphs with onnxruntime, and the Go package.

    python scripts/bench_export.py

Prints onnxruntime's time on one thread for both graphs (one configuration, 128 batches), then the
last of several rounds of 'go test -bench' of the Go package, which time BLIS's eleven-term formula
too, and the best of all rounds. The last line is one JSON document.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime

from pinn.coefficients.checkpoint import load_checkpoint
from pinn.coefficients.checkpoint_search import find_checkpoint
from pinn.export.onnx_graphs import export_onnx
from pinn.physics.descriptors import DESCRIPTORS, RATES
from pinn.physics.step import STEP_FEATURES

GO = Path(__file__).resolve().parents[1] / "export" / "go" / "pinn"
BATCHES = 128
RUNS = 3000
ROUNDS = 20


def time_onnx() -> float:
    """Median microseconds of both graphs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        paths = export_onnx(load_checkpoint(find_checkpoint()), {}, Path(folder))
        coefficients, step_time = (
            onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            for path in paths
        )
    embedding = {
        "descriptors": np.ones((1, len(DESCRIPTORS))),
        "rates": np.zeros((1, len(RATES))),
    }
    features = np.random.default_rng(0).exponential(1e-3, (BATCHES, len(STEP_FEATURES)))
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        _, beta = coefficients.run(None, embedding)
        step_time.run(None, {"features": features, "beta": beta})
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e6


def time_go() -> dict[str, float]:
    """Nanoseconds by benchmark, a step having 128 requests; empty without a Go toolchain.

    Every round runs all benchmarks, and the best of the rounds counts, so that what else the
    machine does falls on none of them alone.
    """
    go = shutil.which("go", path=str(Path(sys.executable).parent)) or shutil.which("go")
    if go is None:
        return {}
    environment = os.environ | {"GOPROXY": "off", "GOTOOLCHAIN": "local", "GOMAXPROCS": "1"}
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/pinn.test"
        subprocess.run([go, "test", "-c", "-o", program, "."], cwd=GO, env=environment, check=True)
        command = [program, "-test.run", "none", "-test.bench", ".", "-test.benchtime", "50ms"]
        for _ in range(ROUNDS):
            done = subprocess.run(command, cwd=GO, env=environment, capture_output=True, text=True)
            text = done.stdout
            if done.returncode:
                sys.exit(text + done.stderr)
            for name, value in re.findall(r"^Benchmark(\S+)\s+\d+\s+([\d.]+) ns/op", text, re.M):
                best[name] = min(best.get(name, float("inf")), float(value))
    print(text)
    return best


def main() -> None:
    onnx_us = time_onnx()
    print(f"onnxruntime, both graphs, {BATCHES} batches: {onnx_us:.0f} us")
    go_ns = time_go()
    blis = go_ns.get("BLISFormula128", float("nan"))
    for name, value in go_ns.items():
        print(f"{name:24} {value:10.1f} ns  {value / blis:6.2f} x BLIS's formula")
    print(json.dumps({"onnx_us": round(onnx_us, 1), "go_ns": go_ns}))


if __name__ == "__main__":
    main()
