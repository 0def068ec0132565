"""How sure an answer is, given the interval of the prediction under it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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

#: Half-widths of the interval up to which a slowdown is looked for, and how closely.
_MOST, _HALVINGS = 2.5, 3


@dataclass(frozen=True)
class Interval:
    """How wrong a prediction may be.

    Attributes:
        bad: All times at the long end of their interval.
        level: What the interval is to cover.
    """

    bad: Misjudged
    level: float

    def at(self, half_widths: float) -> Misjudged:
        """All times off by so many half-widths; 1 is the bad end, -1 the good one."""
        return Misjudged(half_widths * self.bad.step, half_widths * self.bad.request)


def prediction_interval(checkpoint: Path, deployment: Deployment, run: Run) -> Interval | None:
    """The interval of a prediction; None where the checkpoint has none.

    Args:
        checkpoint: Of the prediction.
        deployment: Predicted.
        run: Its mean step says which situation it is.
    """
    try:
        calibration = read_calibration(checkpoint)
        situation = situation_of(checkpoint, deployment, standing_step(run))
    except PinnError:
        return None
    parts = spread_parts(situation)
    step, request = (calibration.half_width(metric, parts) for metric in ("tpot", "ttft"))
    return Interval(Misjudged(step, request), calibration.level)


def chance_to_hold(holds: Callable[[float], bool], level: float) -> tuple[float, bool]:
    """Chance that limits that are held as predicted are held in truth, and whether that is safe.

    The log error of a prediction is taken for normal, with the interval's ends at its ``level``.
    The chance is that of an error no worse than the worst one that still holds, found by bisection
    to an eighth of its range.

    Args:
        holds: Whether limits are held with all times off by so many half-widths.
        level: Share that the interval is to cover.

    Returns:
        The chance, and whether limits are held at the bad end of the interval too.

    >>> chance, safe = chance_to_hold(lambda error: error <= 0.5, 0.9)
    >>> round(chance, 1), safe
    (0.8, False)
    """
    safe = holds(1.0)
    low, high = (1.0, _MOST) if safe else (0.0, 1.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    normal = NormalDist()
    return normal.cdf(low * normal.inv_cdf((1 + level) / 2)), safe
