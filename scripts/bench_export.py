"""Time a simulator step: the ONNX graphs in onnxruntime, and the Go package.

    python scripts/bench_export.py [--layouts 12] [--seconds 0.3] [--runs 3000]

Prints onnxruntime's time on one thread for both graphs (one configuration, 128 batches). Then it
prints the results of 'go test -bench' for the Go adapter: the CPU time of its step, and of BLIS's
eleven-term formula, for 128 requests one by one. The position of a loop in the binary affects its
time, so the benchmark is linked several times with its functions in random order. The last line is
one JSON document.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import typer
from timing import timed

from pinn.common.files import find_checkpoint
from pinn.export.onnx_graphs import export_onnx
from pinn.surrogate.checkpoint import load_checkpoint
from pinn.surrogate.featurizer import DESCRIPTORS, RATES
from pinn.surrogate.step_features import STEP_FEATURES

GO = Path(__file__).resolve().parents[1] / "export" / "go" / "blis"
BATCHES = 128


def time_onnx(runs: int) -> float:
    """Return the median time of evaluating both ONNX graphs once, in microseconds."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        paths = export_onnx(load_checkpoint(find_checkpoint()), {}, Path(folder))
        coefficients, step_time = (
            onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            for path in paths
        )
    ones, zeros = np.ones((1, len(DESCRIPTORS))), np.zeros((1, len(RATES)))
    embedding = {"descriptors": ones, "rates": zeros}
    features = np.random.default_rng(0).exponential(1e-3, (BATCHES, len(STEP_FEATURES)))

    def both() -> None:
        _, beta = coefficients.run(None, embedding)
        step_time.run(None, {"features": features, "beta": beta})

    return statistics.median(timed(both)[1] for _ in range(runs)) * 1e6


def time_go(layouts: int, seconds: float) -> dict[str, list[dict[str, float]]]:
    """Return the times per step in nanoseconds by model, for the Go adapter and BLIS's formula.

    Each list has one entry per layout of the binary. The result is empty without a Go toolchain.
    """
    go = shutil.which("go", path=str(Path(sys.executable).parent)) or shutil.which("go")
    if go is None:
        return {}
    environment = os.environ | {
        "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOMAXPROCS": "1",
    }  # fmt: skip
    found: dict[str, list[dict[str, float]]] = {}
    for layout in range(1, layouts + 1):
        command = [go, "test", f"-ldflags=-randlayout={layout}", "-run", "none"]
        command += ["-bench", "StepTime128", "-benchtime", f"{seconds}s", "."]
        done = subprocess.run(command, cwd=GO, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        for line in done.stdout.splitlines():
            if line.startswith("Benchmark"):
                figures = re.findall(r"([\d.]+) (adapter-ns|formula-ns|ratio)", line)
                name = line.split()[0].removeprefix("BenchmarkStepTime128/")
                found.setdefault(name, []).append({unit: float(value) for value, unit in figures})
    return found


def main(layouts: int = 12, seconds: float = 0.3, runs: int = 3000) -> None:
    onnx_us, go_ns = time_onnx(runs), time_go(layouts, seconds)
    print(f"onnxruntime, both graphs, {BATCHES} batches: {onnx_us:.0f} us")
    for name, linked in go_ns.items():
        adapter, formula, ratio = (
            [times[unit] for times in linked] for unit in ("adapter-ns", "formula-ns", "ratio")
        )
        print(
            f"{name:13} adapter {min(adapter):.0f} to {max(adapter):.0f} ns, BLIS's formula "
            f"{min(formula):.0f} to {max(formula):.0f} ns: {statistics.median(ratio):.2f} x in the "
            f"median of {layouts} layouts, {max(ratio):.2f} x at worst"
        )
    print(json.dumps({"onnx_us": round(onnx_us, 1), "go_ns": go_ns}))


if __name__ == "__main__":
    typer.run(main)
