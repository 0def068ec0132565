"""Compare the outputs of two checkouts: ``python scripts/compare_checkouts.py BEFORE AFTER``.

Runs the same commands in both checkouts with the same checkpoint. Compares every number in the
output, with a relative tolerance of 1e-9, and every string. ``renames.csv`` in this script's folder
lists keys of files and modules that were renamed since the last release.
"""

import csv
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

RENAMES = Path(__file__).with_name("renames.csv")
#: Names of the module with the command line of a checkout, newest first.
COMMAND_LINES = ("pinn.cli.main", "pinn.interface.commands.main")
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
    f"simulate {QWEN} --input-len 2048 --output-len 128 --rate 6 --num-prompts 600 "
    "--json OUT/rate.json",
    "simulate --model openai/gpt-oss-120b --gpu B200 --tensor-parallel-size 4 --workload "
    "OUT/closed.yaml --json OUT/experts.json",
    "simulate --model deepseek-ai/DeepSeek-V3 --gpu H200 --tensor-parallel-size 8 "
    "--enable-expert-parallel --workload OUT/closed.yaml --json OUT/latent.json",
    "simulate --model Llama-3.1-8B --gpu L40S --engine sglang --workload OUT/load.yaml "
    "--json OUT/sglang.json",
    "plan --model Llama-3.1-8B --gpu L40S --tensor-parallel-size 2 --input-len 512 "
    "--output-len 64 --rate 4 --slo 'p99 ttft<=2s' --out OUT/plan",
    "results --json OUT/results.json",
    "kernels errors",
)
TOLERANCE = 1e-9
#: Keys whose values are not compared: pinn's release, and timings.
ABOUT = ("simulated_by", "exporter", "seconds")


def outputs(checkout: Path, checkpoint: Path, out: Path) -> dict[str, Any]:
    """Run the commands in a checkout, and return the content of each file and output by name."""
    out.mkdir(parents=True)
    (out / "load.yaml").write_text(LOAD)
    (out / "closed.yaml").write_text(CLOSED)
    found: dict[str, Any] = {}
    env = {**os.environ, "PYTHONPATH": str(checkout), "PINN_CHECKPOINT": str(checkpoint)}
    program = next(name for name in COMMAND_LINES if _is_module(checkout, name))
    for command in COMMANDS:
        line = f"{sys.executable} -m {program} {command.replace('OUT/', '')}"
        done = subprocess.run(line, shell=True, cwd=out, env=env, text=True, capture_output=True)
        if done.returncode:
            raise SystemExit(f"'pinn {command}' failed in the checkout {checkout}: {done.stderr}")
        found[f"printed by {command.split()[0]} {command.split()[-1]}"] = done.stdout.split()
    found |= {path.name: json.loads(path.read_text()) for path in sorted(out.rglob("*.json"))}
    # Sort the rejected candidates, whose order is arbitrary before release 0.2.
    found["plan.json"]["left_out"].sort(key=json.dumps)
    for path in out.glob("*.csv"):
        found[path.name] = list(csv.reader(path.read_text().splitlines()))
    return found


def _is_module(checkout: Path, name: str) -> bool:
    return checkout.joinpath(*name.split(".")).with_suffix(".py").is_file()


def renamed(value: Any, names: dict[str, str]) -> Any:
    """Rename keys in nested values to their current names, and drop keys that are not compared."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in ABOUT}
        return {names.get(key, key): renamed(each, names) for key, each in kept.items()}
    return [renamed(each, names) for each in value] if isinstance(value, list) else value


def leaves(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every number, string and container in nested values, each with its key path."""
    if not isinstance(value, dict | list):
        yield where, value
        return
    yield where, type(value)()
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(each, (*where, key))


def differences(before: Any, after: Any) -> list[str]:
    """Return a line for every difference between two nested values, with its key path."""
    known, now = dict(leaves(before)), dict(leaves(after))
    found = dict.fromkeys(known.keys() ^ now.keys(), " on one side only")
    for where, value in known.items():
        if where in now and not _same(value, now[where]):
            found[where] = f": {value!r} and {now[where]!r}"
    return [f"{'.'.join(map(str, where))}{what}" for where, what in found.items()]


def _same(before: Any, after: Any) -> bool:
    try:
        return math.isclose(float(before), float(after), rel_tol=TOLERANCE)
    except (TypeError, ValueError):  # at least one of them is not a number
        return bool(before == after)


def main(before: Path, after: Path) -> None:
    checkpoint = before.resolve() / "checkpoints/pinn.safetensors"
    with tempfile.TemporaryDirectory() as folder:
        found = [
            outputs(checkout.resolve(), checkpoint, Path(folder) / name)
            for name, checkout in (("before", before), ("after", after))
        ]
    with RENAMES.open() as table:
        names = {row["before"]: row["after"] for row in csv.DictReader(table)}
    different, numbers = (
        differences(renamed(found[0], names), renamed(found[1], {})),
        len([*leaves(found[0])]),
    )
    print("\n".join(different[:50]))
    print(f"{len(different)} differences among about {numbers:,} values of {len(found[0])} outputs")
    sys.exit(bool(different))


if __name__ == "__main__":
    typer.run(main)
