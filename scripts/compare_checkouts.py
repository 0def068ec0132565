"""Whether two checkouts say the same: ``python scripts/compare_checkouts.py BEFORE AFTER``.

Runs the same commands in both with the same checkpoint and compares every number of what they
write, to 1e-12, and every text, after the renames below.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

#: Part of a step in the checkout before -> after.
RENAMES = {"gemm_compute": "matmul_arithmetic"}
_PART = "weights and "
LOAD = "prompt_tokens: 512\noutput_tokens: 64\nstages: [{rate: 8, duration: 60}]\n"
CLOSED = "prompt_tokens: 1024\noutput_tokens: 128\nconcurrency: 64\nrequests: 640\n"
QWEN = "--model Qwen/Qwen3-30B-A3B --gpu H200 --tensor-parallel-size 2"
GRID = (
    "'model=Llama-3.1-8B,openai/gpt-oss-120b,deepseek-ai/DeepSeek-V3 gpu=H100,B200,L40S "
    "tensor_parallel_size=1,8'"
)
COMMANDS = (
    f"coefficients {QWEN} --json OUT/coefficients.json",
    f"coefficients --grid {GRID} --out OUT/grid.csv",
    f"breakdown {QWEN} --json OUT/breakdown.json",
    f"simulate {QWEN} --workload OUT/load.yaml --json OUT/open.json",
    f"simulate {QWEN} --workload OUT/closed.yaml --json OUT/closed.json",
    f"export table --configs {GRID} --out OUT/table.json --no-intervals",
    "export table --configs 'model=Llama-3.1-8B gpu=H100' --out OUT/intervals.json",
    "export specs --out OUT/specs.json",
    "kernels errors",
)
TOLERANCE = 1e-12


def outputs(checkout: Path, checkpoint: Path, out: Path) -> dict[str, Any]:
    """File -> contents of all that the commands write and print."""
    out.mkdir(parents=True)
    (out / "load.yaml").write_text(LOAD)
    (out / "closed.yaml").write_text(CLOSED)
    found: dict[str, Any] = {}
    env = {**os.environ, "PYTHONPATH": str(checkout), "PINN_CHECKPOINT": str(checkpoint)}
    main = _main_module(checkout)
    for command in COMMANDS:
        line = f"{sys.executable} -m {main} {command.replace('OUT/', '')}"
        done = subprocess.run(line, shell=True, cwd=out, env=env, text=True, capture_output=True)
        if done.returncode:
            raise SystemExit(f"{checkout}: pinn {command} failed: {done.stderr}")
        found[f"printed by {command.split()[0]} {command.split()[-1]}"] = done.stdout.split()
    for path in sorted(out.iterdir()):
        if path.suffix == ".json":
            found[path.name] = json.loads(path.read_text())
        elif path.suffix == ".csv":
            found[path.name] = list(csv.reader(path.read_text().splitlines()))
    goldens = checkout / "export/go/pinn/testdata"
    for path in sorted(goldens.glob("*.json*")):
        raw = path.read_bytes()
        text = gzip.decompress(raw) if path.suffix == ".gz" else raw
        found[f"golden {path.name}"] = _documents(text if isinstance(text, str) else text.decode())
    return found


def _main_module(checkout: Path) -> str:
    """The module behind the command, wherever that checkout has it."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text())
    return str(project["project"]["scripts"]["pinn"]).partition(":")[0]


def _documents(text: str) -> list[Any]:
    """One JSON document, or one per line."""
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def differences(before: Any, after: Any, where: str) -> list[str]:
    """Every place where two values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        missing = [f"{where}: {key} on one side only" for key in before.keys() ^ after.keys()]
        both = before.keys() & after.keys()
        return missing + [d for k in both for d in differences(before[k], after[k], f"{where}.{k}")]
    if isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            return [f"{where}: {len(before)} and {len(after)} entries"]
        pairs = enumerate(zip(before, after, strict=True))
        return [d for i, (b, a) in pairs for d in differences(b, a, f"{where}[{i}]")]
    numbers = [_number(value) for value in (before, after)]
    if None not in numbers:
        same = math.isclose(numbers[0], numbers[1], rel_tol=TOLERANCE)  # type: ignore[arg-type]
        return [] if same else [f"{where}: {before} and {after}"]
    if isinstance(before, str) and where.startswith(".breakdown") and where.endswith(".part"):
        lead = _PART if before.startswith(_PART) else ""
        name = before.removeprefix(lead)
        before = lead + RENAMES.get(name, name)
    return [] if before == after else [f"{where}: {before!r} and {after!r}"]


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError):
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    checkpoint = options.before.resolve() / "checkpoints/pinn.safetensors"
    with tempfile.TemporaryDirectory() as folder:
        found = [
            outputs(checkout.resolve(), checkpoint, Path(folder) / name)
            for name, checkout in (("before", options.before), ("after", options.after))
        ]
    different = differences(*found, "")
    print("\n".join(different[:50]))
    numbers = json.dumps(found[0]).count(",")
    print(f"{len(different)} differences among about {numbers:,} values of {len(found[0])} outputs")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
