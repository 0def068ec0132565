"""Tables of benchmark runs: latencies, loads, tools and assumptions."""

from collections import Counter
from collections.abc import Sequence

from pinn.common.numbers import number
from pinn.measurements.benchmarks.benchmark_run import LATENCIES, BenchmarkRun
from pinn.units import MILLISECOND

#: Minimum share of the requested rate; a server that serves less is reported as overloaded.
_KEPT_UP = 0.9
#: Suffix of a median that is shown because a file has no mean.
_MEDIAN = " p50"


def run_lines(runs: Sequence[BenchmarkRun]) -> list[str]:
    """Return a table of runs as lines of text, followed by the tools and assumptions."""
    rows = [line for run in runs for line in _run_lines(run)]
    heads = " ".join(f"{name.upper():>9s}" for name in LATENCIES)
    unit = "mean, ms (or p50)" if any(map(_has_median, runs)) else "mean, ms"
    told = Counter((run.tool, run.recognized_by) for run in runs)
    wrote = [f"{n} of {tool}, recognized by {mark}" for (tool, mark), n in told.items()]
    assumed = dict.fromkeys(text for run in runs for text in run.assumed)
    return [f"{unit:40s} {heads}  load", *rows, "", *wrote, *(f"assumed: {a}" for a in assumed)]


def _run_lines(run: BenchmarkRun) -> list[str]:
    cells = " ".join(_milliseconds(run, name) for name in LATENCIES)
    end = run.name if len(run.name) <= 40 else "..." + run.name[-37:]
    lines = [f"{end:40s} {cells}  {run.load.text}"]
    if run.failed:
        lines.append(f"{'':40s} {run.failed} of {run.served + run.failed} requests failed")
    served, rate = run.figures.get("requests_per_s"), run.load.rate_per_s
    if served is not None and rate is not None and served < _KEPT_UP * rate:
        lines.append(f"{'':40s} overloaded: served {number(served)} of {number(rate)} requests/s")
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
