"""A small calibration whose numbers are easy to follow."""

from __future__ import annotations

from pathlib import Path

from pinn.common.files import file_sha256
from pinn.surrogate.uncertainty.intervals import NAMES, HalfWidth, StatedIntervals
from pinn.surrogate.uncertainty.kinds import ANY, MEASURED, KindErrors

KINDS = (
    KindErrors("16-bit dense weights", MEASURED, 120, 3, 0.03, 0.08, 0.5),
    KindErrors("4-bit experts", MEASURED, 277, 2, 0.08, 0.19, 1.8),
    KindErrors("16-bit dense weights", ANY, 150, 3, 0.04, 0.09, 0.5),
    KindErrors("4-bit experts", ANY, 500, 2, 0.09, 0.21, 2.0),
    KindErrors(ANY, ANY, 650, 5, 0.06, 0.16, 2.0),
)


def small_calibration(checkpoint: Path) -> StatedIntervals:
    """Step time 10 % and TTFT 30 %; 20 % and 40 % on GPUs without serving data."""
    return StatedIntervals(
        file_sha256(checkpoint),
        {"tpot": HalfWidth(0.1, 0.2), "ttft": HalfWidth(0.3, 0.4)},
        dict.fromkeys(NAMES, 0.2),
        KINDS,
        {"tpot": [-1.0, -0.3, 0.3, 1.0]},
    )
