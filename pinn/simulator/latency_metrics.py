"""What clients would report of a simulated stage: figures, and the requests that make them."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

from pinn.errors import PinnError
from pinn.simulator.run import Run

#: Stage name of the whole run.
WHOLE_RUN = "all"

#: A percentile is linearized over the requests within this many percent of it.
_BAND_PERCENT = 0.5


def of_stage(run: Run, stage: str) -> Bool[np.ndarray, " requests"]:
    """Mask of a stage's requests, or of all of them."""
    r = run.requests
    return np.ones(len(r), bool) if stage == WHOLE_RUN else r.stage == int(stage)


def figure_seconds(run: Run, stage: str, figure: str) -> float:
    """A figure over the requests that were served to the end.

    Args:
        run: The run.
        stage: ``0``, ``1``, ... or ``all``.
        figure: ``e2e`` or ``ttft`` with ``_mean_s`` or ``_pNN_s``; or ``itl_mean_s``, which is
            (E2E - TTFT) / (output tokens - 1), as load generators work it out.

    Returns:
        Seconds; NaN where nothing was served.

    Raises:
        PinnError: If the figure is unknown.
    """
    mine = of_stage(run, stage) & run.requests.finished
    if not mine.any():
        return float("nan")
    seconds = _latencies(run, figure)[mine]
    percent = _percent(figure)
    return float(seconds.mean() if percent is None else np.percentile(seconds, percent))


def figure_requests(run: Run, stage: str, figure: str) -> Bool[np.ndarray, " requests"]:
    """Mask of the requests whose mean latency stands for the figure.

    All that were served for a mean; those around it for a percentile.
    """
    mine = of_stage(run, stage) & run.requests.finished
    percent = _percent(figure)
    if percent is None or not mine.any():
        return mine
    seconds = _latencies(run, figure)
    band = [max(percent - _BAND_PERCENT, 0), min(percent + _BAND_PERCENT, 100)]
    low, high = np.percentile(seconds[mine], band)
    return mine & (seconds >= low) & (seconds <= high)


def failed_share(run: Run, stage: str) -> float:
    """Share of a stage's requests that timed out or were rejected."""
    mine = of_stage(run, stage)
    return float(1 - run.requests.finished[mine].mean())


def _latencies(run: Run, figure: str) -> np.ndarray:
    r = run.requests
    kind = figure.partition("_")[0]
    if kind == "e2e":
        return r.e2e_s
    if kind == "ttft":
        return r.ttft_s
    if figure == "itl_mean_s":
        return (r.e2e_s - r.ttft_s) / np.where(r.output_tokens > 1, r.output_tokens - 1.0, np.nan)
    raise PinnError(f"unknown figure {figure!r}: use e2e_, ttft_ (mean_s, p90_s, ...), itl_mean_s")


def _percent(figure: str) -> int | None:
    statistic = figure.split("_")[1]
    if statistic == "mean":
        return None
    if statistic.startswith("p") and statistic[1:].isdigit():
        return int(statistic[1:])
    raise PinnError(f"unknown figure {figure!r}: a statistic is mean or p90, p99, ...")
