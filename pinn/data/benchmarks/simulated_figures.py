"""Figures of a simulated run, counted as the clients of benchmarks count theirs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pinn.data.benchmarks.benchmark_run import FIGURES
from pinn.errors import PinnError
from pinn.simulator.run import Run
from pinn.simulator.statistics import weighted_percentiles


def benchmark_figures(run: Run, names: Iterable[str] = FIGURES) -> dict[str, float]:
    """Figures over the requests that were served to the end.

    Args:
        run: Of ``benchmark_workload``.
        names: Names of ``pinn.data.benchmarks.benchmark_run.FIGURES``.

    Returns:
        Seconds or per second; NaN where nothing was served (or no second token, for gaps).

    Raises:
        PinnError: If a name is unknown.
    """
    return {name: _figure(run, name) for name in names}


def _figure(run: Run, name: str) -> float:
    if name not in FIGURES:
        raise PinnError(f"unknown figure {name!r}: known ones are {', '.join(FIGURES)}")
    r = run.requests
    done = r.finished
    if not done.any():
        return float("nan")
    if name.endswith("_per_s"):
        seconds = float(r.finish_s[done].max() - r.arrival_s.min())
        counted = done.sum() if name.startswith("requests") else r.output_tokens[done].sum()
        return float(counted) / seconds
    latency, statistic, _ = name.split("_")
    if latency == "itl":
        values, counts = run.gaps.seconds, run.gaps.count
    else:
        values = {"ttft": r.ttft_s, "e2e": r.e2e_s, "tpot": _tpot(run)}[latency][done]
        values = values[~np.isnan(values)]
        counts = np.ones(len(values), np.int64)
    if not counts.sum():
        return float("nan")
    if statistic == "mean":
        return float(values @ counts / counts.sum())
    return weighted_percentiles(values, counts, (int(statistic[1:]),))[0]


def _tpot(run: Run) -> np.ndarray:
    """(E2E - TTFT) / (output tokens - 1) of each request; NaN with a single token."""
    r = run.requests
    return (r.e2e_s - r.ttft_s) / np.where(r.output_tokens > 1, r.output_tokens - 1.0, np.nan)
