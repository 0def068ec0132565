"""Half-widths of TPOT, TTFT and E2E: two are learned, the third and all gains follow from them.

Step time moves everything one way. A run whose queues magnify it has gains above 1, log change of
a figure per log change of the step time; a closed loop below saturation has gains of 1. TTFT has a
spread of its own, and the wider of both holds. E2E is a TTFT and the decodes after it, so that its
ends are the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from pinn.trust import spread_fit
from pinn.trust.conformal import LEVEL, Values
from pinn.trust.spread import Spread

#: Metrics with an interval; ITL is TPOT's mean by another name.
METRICS = ("tpot", "ttft", "e2e")

#: Those that are learned.
LEARNED = ("tpot", "ttft")

#: Columns of a table of errors that say how step time reaches a row's figures.
GAINS = tuple(f"{metric}_gain" for metric in METRICS)


def fit_spreads(errors: pd.DataFrame, level: float = LEVEL) -> dict[str, Spread]:
    """The spread of step time and of TTFT.

    Args:
        errors: As ``pinn.trust.spread_fit.fit_spread`` takes them, and ``GAINS``.
        level: Share to cover.
    """
    step = errors.assign(tpot=errors["tpot"] / errors["tpot_gain"])
    return {metric: spread_fit.fit_spread(step, metric, level) for metric in LEARNED}


def half_widths(spreads: Mapping[str, Spread], rows: pd.DataFrame) -> dict[str, Values]:
    """Log half-widths of every metric.

    Args:
        spreads: Of ``LEARNED``.
        rows: A column per part of the spread, ``GAINS``, and ``ttft_share`` of the predicted E2E.
    """
    step = spread_fit.half_widths(spreads["tpot"], rows)
    moved = {metric: step * rows[f"{metric}_gain"].to_numpy() for metric in METRICS}
    ttft = np.maximum(spread_fit.half_widths(spreads["ttft"], rows), moved["ttft"])
    beyond = rows["ttft_share"].to_numpy() * (np.exp(ttft) - np.exp(moved["ttft"]))
    return {
        "tpot": moved["tpot"],
        "ttft": ttft,
        "e2e": np.log(np.exp(moved["e2e"]) + beyond),
    }
