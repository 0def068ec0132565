"""Benchmark runs in print."""

from __future__ import annotations

from collections.abc import Sequence

from pinn.data.benchmarks.benchmark_run import BenchmarkRun
from pinn.units import MILLISECOND

_SHOWN = ("ttft_mean_s", "tpot_mean_s", "itl_mean_s", "e2e_mean_s")


def run_lines(runs: Sequence[BenchmarkRun]) -> list[str]:
    """A table of runs and, below it, what was assumed of them."""
    heads = " ".join(f"{name.removesuffix('_mean_s').upper():>9s}" for name in _SHOWN)
    lines = [f"{'mean, ms':40s} {heads}  load"]
    for run in runs:
        cells = " ".join(_milliseconds(run.figures.get(name)) for name in _SHOWN)
        lines.append(f"{_short(run.name):40s} {cells}  {run.load.text}")
        if run.failed:
            lines.append(f"{'':40s} {run.failed} of {run.served + run.failed} requests failed")
    tools = {tool: sum(run.tool == tool for run in runs) for tool in {run.tool for run in runs}}
    lines.append("\n" + ", ".join(f"{n} of {tool}" for tool, n in sorted(tools.items())))
    assumed = dict.fromkeys(text for run in runs for text in run.assumed)
    return lines + [f"assumed: {text}" for text in assumed]


def _short(name: str) -> str:
    """The end of a path."""
    return name if len(name) <= 40 else "..." + name[-37:]


def _milliseconds(seconds: float | None) -> str:
    return f"{'-':>9s}" if seconds is None else f"{seconds / MILLISECOND:9.4g}"
