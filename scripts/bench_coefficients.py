"""Time 10,000 configurations from a list on disk to a written table.

    python scripts/bench_coefficients.py [--checkpoint PATH] [--count N]

Prints one line per table format (the best of three runs) and, last, one JSON document. The ratio
compares with a loop that asks for one configuration at a time, timed on a part of the list.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

from pinn.coefficients.configurations import (
    KEYS,
    make_deployment,
    make_deployments,
    read_configurations,
)
from pinn.coefficients.surrogate import Surrogate
from pinn.common.files import find_checkpoint
from pinn.errors import PinnError
from pinn.interface.commands.coefficient_table import coefficient_table, write_table
from pinn.specs.gpu import list_gpus

LIMIT_S = 2.0
_ONE_BY_ONE = 100
_REPEATS = 3
MODELS = (
    "Llama-2-7b", "Llama-3.1-8B", "Llama-3.1-70B", "CodeLlama-34b", "Mistral-Nemo-Base-2407",
    "Yi-34B", "gemma-2-27b", "phi-4", "Qwen2.5-7B", "Qwen3-32B", "Qwen3-30B-A3B",
    "Qwen3-235B-A22B", "Mixtral-8x7B", "gpt-oss-120b", "MiniMax-M2.5", "DeepSeek-V3",
)  # fmt: skip
BATCHES = ("32 decode @ 700", "1 prefill 512 @ 0 + 16 decode @ 600")


def write_list(path: Path, count: int) -> None:
    """Distinct valid configurations over models of every kind and all GPUs, as CSV."""
    flags = itertools.product(
        MODELS, list_gpus(), ("", "fp8"), (1, 2, 4, 8), (False, True), ("auto", "fp8"),
        (2048, 8192),
    )  # fmt: skip
    rows = []
    for model, gpu, precision, tp, eager, cache, budget in flags:
        row = {
            "model": model,
            "gpu": gpu,
            "precision": precision,
            "tensor_parallel_size": tp,
            "enforce_eager": eager,
            "kv_cache_dtype": cache,
            "max_num_batched_tokens": budget,
        }
        try:
            make_deployment({k: v for k, v in row.items() if v != ""})
        except PinnError:
            continue
        rows.append(row)
    step = len(rows) / count
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [key for key in KEYS if key in rows[0]])
        writer.writeheader()
        writer.writerows(rows[int(i * step)] for i in range(count))


def time_table(surrogate: Surrogate, source: Path, target: Path) -> float:
    """Seconds from the list to the written table, with every cache of configurations cold."""
    _forget()
    start = time.perf_counter()
    kept, deployments, _ = make_deployments(read_configurations(source))
    write_table(coefficient_table(surrogate, kept, deployments, BATCHES), target)
    return time.perf_counter() - start


def time_one_by_one(surrogate: Surrogate, source: Path) -> float:
    """Seconds per configuration of a loop over the list."""
    configurations = read_configurations(source)
    configurations = configurations[:: max(len(configurations) // _ONE_BY_ONE, 1)]
    _forget()
    start = time.perf_counter()
    for configuration in configurations:
        kept, deployments, _ = make_deployments([configuration])
        coefficient_table(surrogate, kept, deployments, BATCHES)
    return (time.perf_counter() - start) / len(configurations)


def _forget() -> None:
    """Empty every cache of the package, as a fresh process finds them."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "pinn"]
    for module in modules:
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    surrogate = Surrogate.load(find_checkpoint(options.checkpoint))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "configurations.csv"
        write_list(source, options.count)
        seconds = {}
        for suffix in ("csv", "parquet", "json"):
            target = Path(folder) / f"table.{suffix}"
            seconds[suffix] = min(time_table(surrogate, source, target) for _ in range(_REPEATS))
            print(f"{options.count} configurations to {suffix:8}{seconds[suffix]:6.2f} s")
        each = time_one_by_one(surrogate, source)
    ratio = each * options.count / seconds["csv"]
    print(f"one by one: {1e3 * each:.2f} ms each, {ratio:.0f} x as long as the table")
    rounded = {name: round(value, 3) for name, value in seconds.items()}
    print(
        json.dumps(
            {
                "configurations": options.count,
                "seconds": rounded,
                "limit_s": LIMIT_S,
                "within_limit": max(seconds.values()) < LIMIT_S,
                "one_by_one_ratio": round(ratio, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
