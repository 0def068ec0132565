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

#: What figures are: a mean, or a percentile of the same requests.
_TAILS = ("mean", "p90", "p99")


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
    found: dict[object, Ends] = {}
    for (run, _), part in table.groupby(["run", "stage"], sort=False):
        found |= _ends_of_stage(part, half[str(run)])
    low, high = zip(*(found[i] for i in table.index), strict=True)
    return table.drop(columns=["fast_s", "slow_s"]).assign(low_s=low, high_s=high)


def _ends_of_stage(part: pd.DataFrame, ttft_half: float) -> dict[object, Ends]:
    """Place of each of a stage's rows -> its ends."""
    found: dict[object, Ends] = {}
    for tail in _TAILS:
        rows = {
            str(row["figure"]).partition("_")[0]: (place, row)
            for place, row in part.iterrows()
            if f"_{tail}_" in str(row["figure"])
        }
        if not rows:
            continue
        value, fast, slow = (
            {name: float(row[column]) for name, (_, row) in rows.items()}
            for column in ("predicted_s", "fast_s", "slow_s")
        )
        if any(math.isnan(seconds) for seconds in value.values()):  # nothing was served
            found |= {place: (math.nan, math.nan) for place, _ in rows.values()}
            continue
        ends = figure_ends(value, fast, slow, ttft_half)
        found |= {place: ends[name] for name, (place, _) in rows.items()}
    return found
