"""A configuration's distance from the data in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Any

from pinn.uncertainty.calibration import Calibration
from pinn.uncertainty.distance import KernelDistance

#: Most inputs and operators that a sentence names.
_NAMED = 4

#: A part of the distance that is named as something the prediction extrapolates in.
_NOTABLE = 0.2

INTERPOLATING, EXTRAPOLATING, OUTSIDE = "interpolating", "extrapolating", "outside"


def describe_distance(
    distance: KernelDistance, outside: Mapping[str, float], calibration: Calibration
) -> dict[str, Any]:
    """Where a configuration lies, ready for JSON.

    ``interpolating``: every input inside the training range, kernels nearer to measured ones than
    in half of the left-out rows. ``outside``: farther than any left-out row. Else
    ``extrapolating``.

    Args:
        distance: From the measured kernels.
        outside: Inputs beyond the training range, in standard deviations, farthest first.
        calibration: Tells how wrong left-out rows of that distance were.
    """
    bands = calibration.bands
    if distance.total > bands[-1].farthest:
        kind = OUTSIDE
    elif outside or distance.total > bands[len(bands) // 2 - 1].farthest:
        kind = EXTRAPOLATING
    else:
        kind = INTERPOLATING
    notable = sorted(distance.by_operator.items(), key=lambda item: -item[1])
    return {
        "kind": kind,
        "kernel_distance": distance.total,
        "by_operator": dict(distance.by_operator),
        "sentence": _sentence(kind, distance, notable, outside, calibration),
    }


def _sentence(
    kind: str,
    distance: KernelDistance,
    notable: list[tuple[str, float]],
    outside: Mapping[str, float],
    calibration: Calibration,
) -> str:
    names = [f"{name} ({by:+.1f})" for name, by in list(outside.items())[:_NAMED]]
    if kind != INTERPOLATING:
        names += [f"{_words(name)} kernels" for name, by in notable[:_NAMED] if by > _NOTABLE]
    band = calibration.band(distance.total)
    where = {
        INTERPOLATING: "Interpolating",
        EXTRAPOLATING: "Extrapolating" + (f" in {', '.join(names)}" if names else ""),
        OUTSIDE: "Outside the data" + (f", in {', '.join(names)}" if names else ""),
    }[kind]
    text = (
        f"{where}: weighted by time, its kernels' sizes differ from measured ones by a factor "
        f"of {distance.factor:.2f}."
    )
    errors = f"{100 * band.median:.0f} % (median) and {100 * band.p90:.0f} % (9 in 10 below)"
    if kind == OUTSIDE:
        return (
            f"{text} No left-out deployment lay so far; the farthest {band.rows} rows, up to "
            f"a factor of {exp(band.farthest):.2f}, were off by {errors} in step time: expect more."
        )
    return (
        f"{text} Left-out deployments as far ({band.rows} rows of {band.groups} models on GPUs) "
        f"were off by {errors} in step time."
    )


def _words(name: str) -> str:
    return name.replace("_", "-")
