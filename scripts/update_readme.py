"""Write the printed parts of README.md anew: ``python scripts/update_readme.py``.

Each part lies between ``<!-- begin NAME -->`` and ``<!-- end -->`` and is what a command prints
with the checkpoint in the repository, or a table of a registry.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from pinn.cli.main import app
from pinn.features.request import REQUEST_FEATURES
from pinn.features.step import STEP_FEATURES
from pinn.uncertainty.calibration import read_calibration

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
REPORT = "pinn coefficients --model Qwen/Qwen3-30B-A3B --gpu H100 --tensor-parallel-size 2"
ACCOUNT = (
    "pinn account --model meta-llama/Llama-3.1-70B --gpu H200 --tensor-parallel-size 4 "
    "--batch '1 prefill 1024 @ 0 + 64 decode @ 2000'"
)


def run(command: str) -> str:
    """What a ``pinn`` command prints."""
    os.environ["PINN_CHECKPOINT"] = str(ROOT / "checkpoints" / "pinn.safetensors")
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    if result.exit_code:
        raise SystemExit(f"{command} failed: {result.output}")
    return "\n".join(line.rstrip() for line in result.stdout.strip().splitlines())


def report() -> str:
    return f"```\n$ {REPORT}\n{run(REPORT)}\n```"


def account() -> str:
    return f"```\n$ {ACCOUNT}\n{run(ACCOUNT)}\n```"


def intervals() -> str:
    """Nested coverage of the checkpoint's intervals, every left-out part shown."""
    found = read_calibration(ROOT / "checkpoints" / "pinn.safetensors")
    lines = ["| left out | | rows | TPOT | TTFT | E2E |", "|---|---|---:|---:|---:|---:|"]
    cells: dict[tuple[str, str, int], list[str]] = {}
    for row in found.coverage:
        key = (row["split"], row["left_out"], row["n"])
        cells.setdefault(key, []).append(f"{100 * row['coverage']:.0f} / {100 * row['width']:.0f}")
    for (split, left_out, n), values in cells.items():
        lines.append(
            f"| {split.removeprefix('leave-')} | {left_out} | {n} | {' | '.join(values)} |"
        )
    of_splits = ", ".join(f"{value:.2f} ({split})" for split, value in found.auroc.items())
    return "\n".join(lines) + (
        "\n\nThe distance tells step times that are more than 20 % off from the others with an "
        f"AUROC of {of_splits}."
    )


def beta() -> str:
    lines = ["| feature | unit of beta | what it measures |", "|---|---|---|"]
    for feature in STEP_FEATURES.values():
        unit = "x datasheet time" if feature.unit == "1" else feature.unit
        lines.append(f"| `{feature.name}` | {unit} | {feature.meaning} |")
    return "\n".join(lines)


def alpha() -> str:
    lines = ["| feature | unit of alpha | prior | in the Go simulator |", "|---|---|---|---|"]
    for feature in REQUEST_FEATURES.values():
        unit = "x step time" if feature.unit == "1" else feature.unit
        seen = "yes" if feature.in_simulator else "no"
        lines.append(f"| `{feature.name}` | {unit} | {feature.prior:g} | {seen} |")
    return "\n".join(lines)


PARTS: dict[str, Callable[[], str]] = {
    "tpot": lambda: run("pinn results"),
    "ttft": lambda: run("pinn results --metric ttft --models-only"),
    "report": report,
    "intervals": intervals,
    "account": account,
    "kernels": lambda: run("pinn kernels errors"),
    "beta": beta,
    "alpha": alpha,
}


def updated(text: str) -> str:
    """The text with every part written anew."""
    for name, make in PARTS.items():
        pattern = rf"(<!-- begin {name} -->\n).*?(<!-- end -->)"
        if not re.search(pattern, text, re.DOTALL):
            raise SystemExit(f"{README} has no part {name}")
        content = make()
        text = re.sub(
            pattern, lambda m, content=content: f"{m[1]}{content}\n{m[2]}", text, flags=re.DOTALL
        )
    return text


if __name__ == "__main__":
    README.write_text(updated(README.read_text()))
