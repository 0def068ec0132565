"""Draw the plots in ``docs/measure_notes.md``: a calibration, and the effect of batch order.

    python scripts/draw_measuring.py STEPS docs/images

``STEPS`` is a folder that ``pinn measure`` wrote. The effect of the order on intervals is simulated
on the first deployments of ``scripts/score_measuring.py``, with noise of 1 % per step.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from score_measuring import ARMS, deployments, score

from pinn.api.calibration import calibrate
from pinn.calibration.calibrated import StepCalibration
from pinn.common.plots import MARKERS, new_figure, png

#: ``_MINUTES``: minutes of measuring after which interval widths are evaluated. ``_DEPLOYMENTS``:
#: number of deployments for the median width.
_MINUTES, _DEPLOYMENTS = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0), 6


def before_and_after(found: StepCalibration) -> Figure:
    """Plot the errors of predicted step times, before and after calibration."""
    figure, axes = new_figure(3.4)
    axis, measured = axes[0, 0], found.steps.seconds
    axis.axhspan(-5, 5, color="0.93")
    for name, predicted, (marker, colour) in zip(
        ("network", "calibrated"), found.predictions(), MARKERS, strict=False
    ):
        axis.plot(1e3 * measured, 100 * (predicted / measured - 1), marker, color=colour,
                  markersize=4, label=name)  # fmt: skip
    axis.set(xscale="log", xlabel="measured step, ms", ylabel="predicted, % off")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("{x:g}")
    axis.legend(frameon=False, fontsize=8)
    return figure


def narrowing() -> Figure:
    """Plot the interval widths of target metrics against measuring time in minutes.

    Widths are relative to those before measuring, and are medians over simulated deployments.
    """
    with tempfile.TemporaryDirectory() as folder:
        tables = [
            score(*one, 0.01, seed, Path(folder), minutes=_MINUTES)
            for seed, one in enumerate(deployments(_DEPLOYMENTS).items())
        ]
    widths = pd.concat(tables).groupby(["arm", "minutes"])["width"].median()
    figure, axes = new_figure(3.4)
    axis = axes[0, 0]
    for arm, (marker, colour) in zip(ARMS, MARKERS, strict=False):
        axis.plot(_MINUTES, np.asarray(widths[arm]), marker + "-", color=colour, label=arm)
    axis.set(yscale="log", ylim=(None, 1), xlabel="minutes of measuring",
             ylabel="interval, over what it was")  # fmt: skip
    axis.legend(frameon=False, fontsize=8)
    return figure


def main() -> None:
    """Write the plots of calibration and of narrowing intervals."""
    if len(sys.argv) != 3:
        sys.exit(str(__doc__))
    steps, target = map(Path, sys.argv[1:])
    fit = calibrate(steps=steps).fit
    found = (fit.first or fit).found
    assert isinstance(found, StepCalibration)
    for name, figure in (("measure-steps", before_and_after(found)),
                         ("measure-narrowing", narrowing())):  # fmt: skip
        path = target / f"{name}.png"
        path.write_bytes(png(figure))
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
