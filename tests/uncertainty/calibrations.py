"""A small calibration whose numbers are easy to follow."""

from __future__ import annotations

from pathlib import Path

from pinn.sources.report import file_sha256
from pinn.uncertainty.calibration import NAMES, Band, Calibration
from pinn.uncertainty.conformal import HalfWidth

BANDS = (
    Band(0.0, 0.1, 100, 4, 0.05, 0.10),
    Band(0.1, 0.2, 100, 5, 0.07, 0.15),
    Band(0.2, 0.4, 100, 6, 0.09, 0.20),
    Band(0.4, 0.8, 100, 7, 0.12, 0.30),
)


def small_calibration(checkpoint: Path) -> Calibration:
    """Intervals of a checkpoint: TPOT 10 % at distance 0 and twice that at 1."""
    metrics = {
        "tpot": HalfWidth(0.1, 1.0),
        "ttft": HalfWidth(0.3, 0.0),
        "e2e": HalfWidth(0.2, 0.5),
    }
    return Calibration(
        file_sha256(checkpoint), metrics, dict.fromkeys(NAMES, HalfWidth(0.2, 0.5)), BANDS
    )
