"""Checks candidate targets of beta against the physical floor.

No step is faster than max(FLOPs / peak, bytes to read / bandwidth) of its batch. A column whose
median lies below the floor does not hold step times, whatever it is called; coefficients fitted to
it would promise hardware that does not exist.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import step_costs
from pinn.physics.floor import floor_seconds
from pinn.specs.deployment import Deployment

#: What columns that are known to be something else really hold.
MEANINGS = {
    "reported_duration_s": (
        "step.duration_us is the time of the scheduler's schedule() call, not of the step: it ends "
        "before the model runs. The step time is the cycle from one step's start to the next's."
    )
}


@dataclass(frozen=True)
class TargetCheck:
    """The verdict on one column.

    Attributes:
        column: Its name.
        rows: Values checked.
        median_s: Their median.
        floor_median_s: Median of their floors.
        below_floor: Values below their own floor.
        is_target: Whether beta may be fitted to it.
        explanation: Why not, and what the column is; empty for a target.
    """

    column: str
    rows: int
    median_s: float
    floor_median_s: float
    below_floor: int
    is_target: bool
    explanation: str

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON-ready values."""
        return asdict(self)


def batch_floor(deployment: Deployment, sums: BatchSums) -> Float[np.ndarray, " steps"]:
    """Floor of each batch on a deployment, in seconds."""
    return floor_seconds(step_costs([deployment]), sums)


def check_target(
    column: str,
    values: Float[np.ndarray, " steps"],
    floor: Float[np.ndarray, " steps"],
    busy: Bool[np.ndarray, " steps"] | None = None,
) -> TargetCheck:
    """Check one column.

    It is refused where the median of value / floor is below 1: then most rows are impossible.

    Args:
        column: Its name.
        values: Its values in seconds; those that are no numbers are left out.
        floor: The floor of each row's batch in seconds.
        busy: Rows to check; default: those whose floor is positive.
    """
    use = np.isfinite(values) & (floor > 0) & (True if busy is None else busy)
    values, floor = values[use], floor[use]
    if not len(values):
        return TargetCheck(column, 0, float("nan"), float("nan"), 0, False, "it has no values")
    below = int((values < floor).sum())
    median, floor_median = float(np.median(values)), float(np.median(floor))
    is_target = bool(np.median(values / floor) >= 1)
    explanation = (
        "" if is_target else _explanation(column, median, floor_median, below, len(values))
    )
    return TargetCheck(column, len(values), median, floor_median, below, is_target, explanation)


def _explanation(column: str, median: float, floor: float, below: int, rows: int) -> str:
    text = (
        f"its median of {median * 1e3:.3g} ms lies below the physical floor of {floor * 1e3:.3g} "
        f"ms ({below} of {rows} rows are below their own): reading the weights alone takes longer"
    )
    return f"{text}. {MEANINGS[column]}" if column in MEANINGS else text
