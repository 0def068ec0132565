"""A small calibration whose numbers are easy to follow."""

from __future__ import annotations

from pathlib import Path

from pinn.specs.files.read_report import file_sha256
from pinn.trust.calibration import NAMES, Calibration
from pinn.trust.kinds import ANY, MEASURED, KindErrors
from pinn.trust.spread import Spread
from pinn.trust.spread_parts import SPREAD_PARTS

KINDS = (
    KindErrors("16-bit dense weights", MEASURED, 120, 3, 0.03, 0.08, 0.5),
    KindErrors("4-bit experts", MEASURED, 277, 2, 0.08, 0.19, 1.8),
    KindErrors("16-bit dense weights", ANY, 150, 3, 0.04, 0.09, 0.5),
    KindErrors("4-bit experts", ANY, 500, 2, 0.09, 0.21, 2.0),
    KindErrors(ANY, ANY, 650, 5, 0.06, 0.16, 2.0),
)


def sizes(**of_part: float) -> dict[str, float]:
    """Sizes of parts, 0 where nothing is said."""
    return {name: of_part.get(name, 0.0) for name in SPREAD_PARTS}


def small_calibration(checkpoint: Path) -> Calibration:
    """Step time 10 % and 20 % more where all the time is in experts; TTFT 30 %."""
    return Calibration(
        file_sha256(checkpoint),
        {
            "tpot": Spread(sizes(base=0.1, experts=0.2, stretch=0.1), 0.01),
            "ttft": Spread(sizes(base=0.3), 0.1),
        },
        dict.fromkeys(NAMES, 0.2),
        KINDS,
        sizes(base=1.0, experts=0.25),
    )
