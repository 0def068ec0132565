"""How sure an answer is, given the interval of the prediction under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pinn.errors import PinnError
from pinn.planning.trial import Misjudged
from pinn.specs.deployment import Deployment
from pinn.trust.calibration import read_calibration
from pinn.trust.chance import ErrorLaw
from pinn.trust.known import gpu_is_known


@dataclass(frozen=True)
class Interval:
    """How wrong a prediction may be.

    Attributes:
        bad: All times at the long end of their interval.
        level: What the interval is to cover.
        law: How errors are spread, in half-widths of the interval.
    """

    bad: Misjudged
    level: float
    law: ErrorLaw

    def at(self, half_widths: float) -> Misjudged:
        """All times off by so many half-widths; 1 is the bad end, -1 the good one."""
        return Misjudged(half_widths * self.bad.step, half_widths * self.bad.request)


def widest(intervals: Sequence[Interval | None]) -> Interval | None:
    """All servers off by the most that any may be, together; None where one has no interval."""
    known = [each for each in intervals if each is not None]
    if len(known) < len(intervals):
        return None
    step = max(each.bad.step for each in known)
    request = max(each.bad.request for each in known)
    return replace(known[0], bad=Misjudged(step, request))


def prediction_interval(checkpoint: Path, deployment: Deployment) -> Interval | None:
    """The interval of a prediction; None where the checkpoint has none.

    Args:
        checkpoint: Of the prediction.
        deployment: Predicted.
    """
    try:
        calibration = read_calibration(checkpoint)
        known = gpu_is_known(checkpoint, deployment)
    except PinnError:
        return None
    step, request = (calibration.half_width(metric, known) for metric in ("tpot", "ttft"))
    law = calibration.error_law("tpot")
    return Interval(Misjudged(step, request), calibration.level, law)
