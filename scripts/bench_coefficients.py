"""Time the prediction of 10,000 configurations, from a list on disk to a written table.

    python scripts/bench_coefficients.py [--checkpoint PATH] [--count N]

Prints the best of three run times for each table format, and its ratio to the time of a loop that
predicts one configuration at a time. The loop is timed on part of the list. The last line is a JSON
document.
"""

import json
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import typer
from timing import timed

from pinn.common.files import find_checkpoint
from pinn.engines.configurations import make_deployments, read_configurations
from pinn.export.coefficient_table import coefficient_table, write_table
from pinn.specs.gpu import list_gpus
from pinn.surrogate.surrogate import Surrogate

LIMIT_S = 2.0
ONE_BY_ONE, REPEATS = 100, 3
MODELS = (
    "Llama-2-7b", "Llama-3.1-8B", "Llama-3.1-70B", "CodeLlama-34b", "Mistral-Nemo-Base-2407",
    "Yi-34B", "gemma-2-27b", "phi-4", "Qwen2.5-7B", "Qwen3-32B", "Qwen3-30B-A3B",
    "Qwen3-235B-A22B", "Mixtral-8x7B", "gpt-oss-120b", "MiniMax-M2.5", "DeepSeek-V3",
)  # fmt: skip
FLAGS = {
    "model": MODELS,
    "gpu": list_gpus(),
    "precision": ("", "fp8"),
    "tensor_parallel_size": (1, 2, 4, 8),
    "enforce_eager": (False, True),
    "kv_cache_dtype": ("auto", "fp8"),
    "max_num_batched_tokens": (2048, 8192),
}
BATCHES = ("32 decode @ 700", "1 prefill 512 @ 0 + 16 decode @ 600")


def write_list(path: Path, count: int) -> None:
    """Write ``count`` distinct valid configurations over all model types and GPUs to a CSV file."""
    given = (
        {name: value for name, value in zip(FLAGS, values, strict=True) if value != ""}
        for values in product(*FLAGS.values())
    )
    rows, _, _ = make_deployments(given, skip_invalid=True)
    kept = np.arange(count) * len(rows) // count
    pd.DataFrame(rows, columns=[*FLAGS]).iloc[kept].to_csv(path, index=False)


def forget() -> None:
    """Clear every in-memory cache of the package, as in a fresh process."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "pinn"]
    for value in (value for module in modules for value in vars(module).values()):
        if hasattr(value, "cache_clear"):
            value.cache_clear()


def main(checkpoint: Path | None = None, count: int = 10_000) -> None:
    surrogate = Surrogate.load(find_checkpoint(checkpoint))

    def table(configurations: list[dict], target: Path | None = None) -> None:
        kept, deployments, _ = make_deployments(configurations)
        made = coefficient_table(surrogate, kept, deployments, BATCHES)
        if target:
            write_table(made, target)

    def seconds(target: Path) -> float:
        """Return the time in seconds from reading the list to writing the table, uncached."""
        forget()
        return timed(lambda: table(read_configurations(source), target))[1]

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "configurations.csv"
        write_list(source, count)
        best = {}
        for suffix in ("csv", "parquet", "json"):
            target = Path(folder) / f"table.{suffix}"
            best[suffix] = round(min(seconds(target) for _ in range(REPEATS)), 3)
            print(f"{count} configurations to {suffix:8}{best[suffix]:6.2f} s")
        every = read_configurations(source)
    some = every[:: max(count // ONE_BY_ONE, 1)]
    forget()
    each = timed(lambda: [table([one]) for one in some])[1] / len(some)
    ratio = each * count / best["csv"]
    print(f"one by one: {1e3 * each:.2f} ms each, {ratio:.0f} x as long as the table")
    found = {"configurations": count, "seconds": best, "limit_s": LIMIT_S}
    found |= {"within_limit": max(best.values()) < LIMIT_S, "one_by_one_ratio": round(ratio, 1)}
    print(json.dumps(found))


if __name__ == "__main__":
    typer.run(main)
