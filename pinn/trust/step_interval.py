"""How wide the interval of one step's time is."""

from __future__ import annotations

from pathlib import Path

from pinn.specs.batch import parse_batch
from pinn.specs.deployment import Deployment
from pinn.trust.calibration import Calibration
from pinn.trust.known import gpu_is_known
from pinn.trust.spread_parts import Situation, spread_parts
from pinn.trust.step_distance import locate


def situation_of(checkpoint: Path, deployment: Deployment, batch: str) -> Situation:
    """What decides the interval of a step: where it lies from what was measured, and its load."""
    distance = locate(checkpoint, deployment, batch)
    known = gpu_is_known(checkpoint, deployment)
    return Situation(deployment, distance, len(parse_batch(batch)), known)


def step_half_width(
    calibration: Calibration, checkpoint: Path, deployment: Deployment, batch: str
) -> float:
    """Half-width of a step's interval in log units; with prefill work the wider of two.

    TTFT teaches the spread of steps with prompts, TPOT that of all.

    Raises:
        PinnError: If the batch cannot be read.
    """
    parts = spread_parts(situation_of(checkpoint, deployment, batch))
    metrics = ["tpot", "ttft"] if any(parse_batch(batch).is_prefill) else ["tpot"]
    return max(calibration.half_width(metric, parts) for metric in metrics)
