"""How wide the interval of one step's time is."""

from __future__ import annotations

from pathlib import Path

from pinn.specs.batch import parse_batch
from pinn.specs.deployment import Deployment
from pinn.trust.calibration import Calibration
from pinn.trust.kinds import Situation
from pinn.trust.known import gpu_is_known
from pinn.trust.step_distance import locate


def situation_of(checkpoint: Path, deployment: Deployment, batch: str) -> Situation:
    """Where a step lies from what was measured."""
    distance = locate(checkpoint, deployment, batch)
    return Situation(deployment, distance, gpu_is_known(checkpoint, deployment))


def step_half_width(
    calibration: Calibration, checkpoint: Path, deployment: Deployment, batch: str
) -> float:
    """Half-width of a step's interval in log units; with prefill work the wider of two.

    TTFT teaches the half-width of steps with prompts, TPOT that of all.

    Raises:
        PinnError: If the batch cannot be read.
    """
    known = gpu_is_known(checkpoint, deployment)
    metrics = ["tpot", "ttft"] if any(parse_batch(batch).is_prefill) else ["tpot"]
    return max(calibration.half_width(metric, known) for metric in metrics)
