"""Intervals of scored serving runs: every run again with all times at either end of theirs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pinn.coefficients.intervals import Ends, read_calibration
from pinn.coefficients.step_interval import gpu_is_known
from pinn.laboratory.serving_runs import score_runs
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.many import figure_ends, scaled
from pinn.training.data.measured_runs import MeasuredRun


def with_intervals(
    scores: pd.DataFrame,
    runs: Sequence[MeasuredRun],
    latencies: Sequence[LinearLatency],
    checkpoint: Path,
) -> pd.DataFrame:
    """Scores with the ends of each figure's interval; two more simulations a run.

    Args:
        scores: What ``score_runs`` made of these runs and coefficients.
        runs: What was measured.
        latencies: The checkpoint's coefficients of each.
        checkpoint: The network, with its intervals beside it.

    Returns:
        ``scores`` with ``low_s`` and ``high_s``, infinite where the slow end serves nothing.

    Raises:
        PinnError: If the checkpoint has no intervals.
    """
    calibration = read_calibration(checkpoint)
    known = [gpu_is_known(checkpoint, latency.deployment) for latency in latencies]
    step, ttft = ([calibration.half_width(m, k) for k in known] for m in ("tpot", "ttft"))
    fast, slow = (
        score_runs(
            runs,
            [scaled(of, way * s, way * t) for of, s, t in zip(latencies, step, ttft, strict=True)],
            "",
        )["predicted_s"]
        for way in (-1, 1)
    )
    half = dict(zip((run.name for run in runs), ttft, strict=True))
    table = scores.reset_index(drop=True).assign(fast_s=fast, slow_s=slow)
    # A figure is e2e, ttft or itl, and a mean or a percentile of the same requests.
    tail = table["figure"].str.split("_").str[1]
    found: dict[object, Ends] = {}
    for (run, _, _), part in table.groupby(["run", "stage", tail], sort=False):
        names = part["figure"].str.partition("_")[0].tolist()
        columns = (part[column].tolist() for column in ("predicted_s", "fast_s", "slow_s"))
        value, least, most = (dict(zip(names, column, strict=True)) for column in columns)
        if any(map(math.isnan, value.values())):  # nothing was served
            ends = dict.fromkeys(names, (math.nan, math.nan))
        else:
            ends = figure_ends(value, least, most, half[str(run)])
        found |= dict(zip(part.index, (ends[name] for name in names), strict=True))
    low, high = zip(*(found[i] for i in table.index), strict=True)
    return table.drop(columns=["fast_s", "slow_s"]).assign(low_s=low, high_s=high)
