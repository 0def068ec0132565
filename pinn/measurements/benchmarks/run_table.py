"""Tables of benchmark runs: latencies, loads, tools and assumptions."""

from collections import Counter
from collections.abc import Sequence

from pinn.common.numbers import number
from pinn.common.run_names import short_names
from pinn.measurements.benchmarks.benchmark_run import LATENCIES, BenchmarkRun
from pinn.units import MILLISECOND

#: Suffix that marks a median latency, shown if a file states no mean.
_MEDIAN = " p50"


def run_lines(runs: Sequence[BenchmarkRun]) -> list[str]:
    """Return a table of runs as lines of text, followed by the tools used and assumptions."""
    short = short_names([run.name for run in runs])
    rows = [line for run in runs for line in _run_lines(run, short[run.name])]
    heads = " ".join(f"{name.upper():>9s}" for name in LATENCIES)
    unit = "mean, ms (or p50)" if any(map(_has_median, runs)) else "mean, ms"
    told = Counter((run.tool, run.recognized_by) for run in runs)
    wrote = [f"{n} of {tool}, recognized by {mark}" for (tool, mark), n in told.items()]
    assumed = dict.fromkeys(text for run in runs for text in run.assumed)
    return [f"{unit:40s} {heads}  load", *rows, "", *wrote, *(f"assumed: {a}" for a in assumed)]


def metric_name(figure: str) -> str:
    """Return the display name of a metric, without its unit.

    >>> metric_name("ttft_mean_s"), metric_name("output_tokens_per_s")
    ('TTFT mean', 'output tokens/s')
    """
    if figure.endswith("_per_s"):
        return f"{figure.removesuffix('_per_s').replace('_', ' ')}/s"
    latency, statistic, _ = figure.split("_")
    return f"{latency.upper()} {statistic}"


def _run_lines(run: BenchmarkRun, name: str) -> list[str]:
    cells = " ".join(_milliseconds(run, name) for name in LATENCIES)
    lines = [f"{name:40s} {cells}  {run.load.text}"]
    if run.overload:
        lines.append(f"{'':40s} overloaded: {run.overload}")
    elif run.failed:
        lines.append(f"{'':40s} {run.failed:,} of {run.served + run.failed:,} requests failed")
    if run.chunk_warning:
        lines.append(f"{'':40s} WARNING: {run.chunk_warning}")
    return lines


def _is_median(run: BenchmarkRun, latency: str) -> bool:
    return f"{latency}_mean_s" not in run.figures and f"{latency}_p50_s" in run.figures


def _has_median(run: BenchmarkRun) -> bool:
    return any(_is_median(run, latency) for latency in LATENCIES)


def _milliseconds(run: BenchmarkRun, latency: str) -> str:
    seconds = run.typical_s(latency)
    if seconds is None:
        return f"{'-':>9s}"
    mark = _MEDIAN if _is_median(run, latency) else ""
    return f"{number(seconds / MILLISECOND, 4) + mark:>9s}"
