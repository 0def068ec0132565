"""Small calibrations whose numbers are easy to follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pinn.common.files import file_sha256
from pinn.engines.deployment import Deployment
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.uncertainty.intervals import NAMES, HalfWidth, StatedIntervals
from pinn.surrogate.uncertainty.kinds import ANY, MEASURED, KindErrors
from pinn.surrogate.uncertainty.widths import Widths

KINDS = (
    KindErrors("16-bit dense weights", MEASURED, 120, 3, 0.03, 0.08, 0.5),
    KindErrors("4-bit experts", MEASURED, 277, 2, 0.08, 0.19, 1.8),
    KindErrors("16-bit dense weights", ANY, 150, 3, 0.04, 0.09, 0.5),
    KindErrors("4-bit experts", ANY, 500, 2, 0.09, 0.21, 2.0),
    KindErrors(ANY, ANY, 650, 5, 0.06, 0.16, 2.0),
)


#: Deployment without traits: vLLM on a GPU with serving data, with layers of full width.
PLAIN = Deployment(load_model("meta-llama/Llama-3.1-8B"), load_gpu("H100"), ServingSpec())
#: Trait -> log width of ``widened``: factor 2 for an engine, 1.35 for a GPU, 1.05 for narrow
#: layers.
WIDENED = {
    "a GPU without serving data": 0.3,
    "an engine other than vLLM": 0.7,
    "narrow layers": 0.05,
}


def small_calibration(checkpoint: Path) -> StatedIntervals:
    """Return half-widths of 10 % (step time) and 30 % (TTFT); 20 % and 40 % on unserved GPUs."""
    return StatedIntervals(
        file_sha256(checkpoint),
        {"tpot": HalfWidth(0.1, 0.2), "ttft": HalfWidth(0.3, 0.4)},
        dict.fromkeys(NAMES, 0.2),
        KINDS,
        {"tpot": [-1.0, -0.3, 0.3, 1.0]},
    )


def widened(checkpoint: Path) -> StatedIntervals:
    """Return the small calibration with intervals widened by the traits in ``WIDENED``."""
    return replace(small_calibration(checkpoint), widths=Widths(WIDENED))
