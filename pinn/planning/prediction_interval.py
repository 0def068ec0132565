"""The interval of a prediction: how wrong its step times may be, as error scenarios."""

from dataclasses import dataclass
from pathlib import Path

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.planning.trials import ErrorScenario
from pinn.surrogate.uncertainty.intervals import ErrorLaw, gpu_is_known, read_calibration


@dataclass(frozen=True)
class PredictionInterval:
    """Interval of a prediction, and the law of its errors.

    Attributes:
        bad: All times at the long end of their interval.
        level: What the interval is to cover.
        law: How errors are spread, in half-widths of the interval.
    """

    bad: ErrorScenario
    level: float
    law: ErrorLaw

    def at(self, half_widths: float) -> ErrorScenario:
        """Return all times off by so many half-widths; 1 is the bad end, -1 the good one."""
        return ErrorScenario(half_widths * self.bad.step, half_widths * self.bad.request)


def prediction_interval(checkpoint: Path, *deployments: Deployment) -> PredictionInterval | None:
    """Return the interval of a prediction; None where the checkpoint has none.

    Args:
        checkpoint: Of the prediction.
        deployments: Predicted; several are all off by the most that any of them may be.
    """
    try:
        calibration = read_calibration(checkpoint)
        known = [gpu_is_known(checkpoint, deployment) for deployment in deployments]
    except PinnError:
        return None
    step, request = (
        max(calibration.half_width(metric, each) for each in known) for metric in ("tpot", "ttft")
    )
    return PredictionInterval(
        ErrorScenario(step, request), calibration.level, calibration.error_law("tpot")
    )
