"""Half-widths of TPOT, TTFT and E2E: two are learned, the third and all gains follow from them.

A half-width is a constant: the 90 % quantile of absolute log errors of what was left out, every
model on a GPU counting once (split conformal prediction over groups). One is for GPUs whose serving
data were learned from, of errors on left-out models; one for others, of those on left-out GPUs too.
Each is the widest of its kinds of left-out data, so that a kind with small errors (serving runs at
low load) does not narrow the others. Sums of up to 15 properties of a deployment were no better
(LOG.md of 2026-11-24).

Step time moves everything one way. A run whose queues magnify it has gains above 1, log change of
a figure per log change of the step time; a closed loop below saturation has gains of 1. TTFT has a
half-width of its own, and the wider of both holds. E2E is a TTFT and the decodes after it, so that
its ends are the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from pinn.errors import PinnError
from pinn.trust.calibration import LEARNED, HalfWidth
from pinn.trust.conformal import LEVEL, Values, group_weights, weighted_quantile

#: Metrics with an interval; ITL is TPOT's mean by another name.
METRICS = ("tpot", "ttft", "e2e")

#: Columns of a table of errors that say how step time reaches a row's figures.
GAINS = tuple(f"{metric}_gain" for metric in METRICS)


def left_out_column(split: str) -> str | None:
    """What a kind of split leaves out, of training and of the calibration alike; None for neither.

    >>> left_out_column("leave-one-gpu-and-its-kernels-out")
    'gpu'
    """
    if split.endswith("leave-one-model-out"):
        return "shape"
    return "gpu" if split.startswith("leave-one-gpu-") else None


def fit_half_widths(errors: pd.DataFrame, level: float = LEVEL) -> dict[str, HalfWidth]:
    """The half-widths of step time and of TTFT.

    Args:
        errors: Columns ``split``, ``shape`` (models of equal shape share it), ``gpu``, ``tpot`` and
            ``ttft`` (log errors), and ``GAINS``.
        level: Share to cover.

    Raises:
        PinnError: If there are fewer than two models, so that none can be left out.
    """
    models = errors["shape"].nunique()
    if models < 2:
        raise PinnError(
            f"intervals need errors of at least 2 left-out models, got {models}: run an experiment "
            "that leaves models out"
        )
    step = errors.assign(tpot=errors["tpot"] / errors["tpot_gain"])
    return {metric: _fit(step, metric, level) for metric in LEARNED}


def _fit(errors: pd.DataFrame, metric: str, level: float) -> HalfWidth:
    of_split = {
        str(split): weighted_quantile(part[metric].abs().to_numpy(), row_weights(part), level)
        for split, part in errors.groupby("split")
    }
    widest = max(of_split.values())
    of_models = [half for split, half in of_split.items() if left_out_column(split) != "gpu"]
    return HalfWidth(max(of_models, default=widest), widest)


def row_weights(errors: pd.DataFrame) -> Values:
    """A model's shape on a GPU is a group, and every group counts once."""
    groups = zip(errors["shape"], errors["gpu"], strict=True)
    return group_weights(groups, errors["split"])


def half_widths(found: Mapping[str, HalfWidth], rows: pd.DataFrame) -> dict[str, Values]:
    """Log half-widths of every metric.

    Args:
        found: Of ``LEARNED``.
        rows: Columns ``split``, ``GAINS``, and ``ttft_share`` of the predicted E2E. The GPU of a
            row is known unless its split left it out.
    """
    known = rows["split"].map(lambda split: left_out_column(split) != "gpu").to_numpy(bool)
    step, ttft = (np.where(known, found[m].known, found[m].unknown) for m in LEARNED)
    moved = {metric: step * rows[f"{metric}_gain"].to_numpy() for metric in METRICS}
    ttft = np.maximum(ttft, moved["ttft"])
    beyond = rows["ttft_share"].to_numpy() * (np.exp(ttft) - np.exp(moved["ttft"]))
    return {
        "tpot": moved["tpot"],
        "ttft": ttft,
        "e2e": np.log(np.exp(moved["e2e"]) + beyond),
    }
