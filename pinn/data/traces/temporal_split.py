"""Splits inside a run: in time, since later steps of a run must not teach about earlier ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Int

from pinn.errors import PinnError


@dataclass(frozen=True)
class TemporalSplit:
    """Rows of the cycle table: the first 60 % of a run's time, the next 20 %, the last 20 %."""

    train: Int[np.ndarray, " train"]
    validation: Int[np.ndarray, " validation"]
    test: Int[np.ndarray, " test"]


def temporal_split(
    cycles: pd.DataFrame, fractions: tuple[float, float] = (0.6, 0.8), *, good_only: bool = True
) -> TemporalSplit:
    """Split the intervals of each run by the time at which they begin.

    Times are shares of each segment's own span, so that every run is in all three parts. An
    interval that reaches past its part's end is dropped: it would tell of the next part.

    Args:
        cycles: The cycle table.
        fractions: Where the first and the second part end, as shares of a segment's time.
        good_only: Leave out what was set aside.

    Raises:
        PinnError: If the fractions are not in order inside (0, 1).
    """
    first, second = fractions
    if not 0 < first < second < 1:
        raise PinnError(f"split fractions must grow inside (0, 1), got {fractions}")
    groups = cycles.groupby("segment")["start_s"]
    begin, span = groups.transform("min"), groups.transform("max") - groups.transform("min")
    share = ((cycles["start_s"] - begin) / span.where(span > 0, 1)).to_numpy()
    length = cycles["step_s"] * cycles["steps"].astype("float64")
    end = ((cycles["start_s"] + length - begin) / span.where(span > 0, 1)).to_numpy()
    use = cycles["set_aside"].isna().to_numpy() if good_only else np.ones(len(cycles), dtype=bool)
    edges = ((0.0, first), (first, second), (second, np.inf))
    parts = [np.flatnonzero(use & (share >= a) & (share < b) & ~(end > b + 1e-9)) for a, b in edges]
    return TemporalSplit(*parts)
