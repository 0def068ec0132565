"""How sure an answer is, given the interval of the prediction under it."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist

from pinn.errors import PinnError
from pinn.planning.trial import Misjudged
from pinn.simulator.run import Run
from pinn.specs.deployment import Deployment
from pinn.trust.calibration import read_calibration
from pinn.trust.simulated import standing_step
from pinn.trust.spread_parts import spread_parts
from pinn.trust.step_interval import situation_of

#: A chance is never said to be surer than this.
_SUREST = 0.999


def interval_ends(
    checkpoint: Path, deployment: Deployment, run: Run
) -> tuple[Misjudged, Misjudged, float] | None:
    """All times at the bad and the good end of their interval, and what that covers.

    Args:
        checkpoint: Of the prediction.
        deployment: Predicted.
        run: Its mean step says which situation it is.

    Returns:
        None where the checkpoint has no intervals.
    """
    try:
        calibration = read_calibration(checkpoint)
        situation = situation_of(checkpoint, deployment, standing_step(run))
    except PinnError:
        return None
    parts = spread_parts(situation)
    step, request = (calibration.half_width(metric, parts) for metric in ("tpot", "ttft"))
    return Misjudged(step, request), Misjudged(-step, -request), calibration.level


def chance_of(rate_per_s: float, bad: float, expected: float, good: float, level: float) -> float:
    """Chance that a replica holds a rate.

    The log error of a prediction is taken for normal, with the interval's ends at its ``level``;
    the highest rates at both ends and in the middle are joined by lines, in log units where all
    are positive.

    Args:
        rate_per_s: To be held.
        bad: Highest rate at the bad end.
        expected: As predicted.
        good: At the good end.
        level: Share that the interval is to cover.

    >>> [round(chance_of(rate, 8.0, 10.0, 12.0, 0.9), 2) for rate in (8.0, 10.0, 12.0)]
    [0.95, 0.5, 0.05]
    """
    normal = NormalDist()
    end = normal.inv_cdf((1 + level) / 2)
    at = math.log if bad > 0 else float
    low = max(at(expected) - at(bad), 1e-9) if expected > 0 else 1e-9
    high = max(at(good) - at(expected), 1e-9) if expected > 0 else 1e-9
    above = at(expected) - at(rate_per_s)
    z = above / low if above >= 0 else above / high
    return min(max(normal.cdf(z * end), 1 - _SUREST), _SUREST)
