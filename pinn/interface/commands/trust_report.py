"""Intervals of coefficients and what left-out data showed, added to a coefficient report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import exp
from pathlib import Path
from typing import Any

from pinn.coefficients.coefficient_set import CoefficientSet, covariance_entry
from pinn.coefficients.coefficients import NAMES
from pinn.errors import PinnError
from pinn.specs.deployment import Deployment
from pinn.trust.calibration import Calibration, around, read_calibration
from pinn.trust.conformal import LEVEL
from pinn.trust.distance import REFERENCE_BATCH
from pinn.trust.sentence import describe_trust
from pinn.trust.step_interval import situation_of, step_half_width

#: Metric -> what people call it.
METRICS = {"tpot": "step time", "ttft": "TTFT"}


def with_trust(report: dict[str, Any], checkpoint: Path, deployment: Deployment) -> dict[str, Any]:
    """A coefficient report with the ends of its intervals and what left-out data showed.

    Entries get ``low`` and ``high``, batches ``step_time_low_us``, ``step_time_high_us`` and
    perhaps a further mark.
    Where the checkpoint has no intervals, ``intervals`` says why and nothing else changes.
    """
    try:
        calibration = read_calibration(checkpoint)
        situation = situation_of(checkpoint, deployment, REFERENCE_BATCH)
        batches = [
            entry
            | _step_ends(calibration, checkpoint, deployment, entry)
            | {"marks": entry["marks"] + _far(calibration, checkpoint, deployment, entry)}
            for entry in report["batches"]
        ]
    except PinnError as error:
        return report | {"intervals": {"missing": str(error)}}
    outside = report["distance"]["outside_training_range"]
    described = describe_trust(situation, outside, calibration)
    sentence = described.pop("sentence")
    nearest = report["distance"]["nearest_measured"]
    if nearest is not None:
        sentence += f" The nearest measured deployment is {nearest}."
    known = situation.gpu_known
    return report | {
        "beta": _with_ends("beta", report["beta"], calibration, known),
        "alpha": _with_ends("alpha", report["alpha"], calibration, known),
        "batches": batches,
        "distance": report["distance"] | described | {"sentence": sentence},
        "intervals": {
            "level": calibration.level,
            **{metric: around(1.0, calibration.half_width(metric, known)) for metric in METRICS},
        },
    }


def with_posterior(
    report: dict[str, Any], found: CoefficientSet, deployment: Deployment
) -> dict[str, Any]:
    """The report of a calibrated file with the ends that its posterior gives."""
    from pinn.training.calibration.posterior_intervals import (
        posterior_coefficient_ends,
        posterior_step_half_widths,
    )

    ends = posterior_coefficient_ends(found)
    places = {name: i for i, name in enumerate(NAMES)}

    def bounded(part: str) -> dict[str, dict[str, Any]]:
        entries = {}
        for name, entry in report[part].items():
            low, high = ends[:, places[f"{part}.{name}"]].tolist()
            entries[name] = entry if math.isnan(low) else entry | {"low": low, "high": high}
        return entries

    texts = [entry["batch"] for entry in report["batches"]]
    halves = posterior_step_half_widths(found, deployment, [*texts, REFERENCE_BATCH])
    batches = []
    for entry, half in zip(report["batches"], halves, strict=False):
        low, high = around(entry["step_time_us"], float(half))
        batches.append(entry | {"step_time_low_us": low, "step_time_high_us": high})
    return report | {
        "beta": bounded("beta"),
        "alpha": bounded("alpha"),
        "batches": batches,
        "intervals": {"level": LEVEL, "tpot": around(1.0, float(halves[-1]))},
        "covariance": None if found.covariance is None else covariance_entry(found.covariance),
    }


def _with_ends(
    part: str,
    entries: Mapping[str, dict[str, Any]],
    calibration: Calibration,
    gpu_known: bool,
) -> dict[str, dict[str, Any]]:
    """Entries with ``low`` and ``high``; alphas that no data taught have none."""
    found = {}
    for name, entry in entries.items():
        if entry.get("taught", True):
            low, high = calibration.coefficient_interval(
                f"{part}.{name}", entry["value"], gpu_known
            )
            entry = entry | {"low": low, "high": high}
        found[name] = entry
    return found


def _step_ends(
    calibration: Calibration, checkpoint: Path, deployment: Deployment, entry: Mapping[str, Any]
) -> dict[str, float]:
    """A step's ends."""
    half = step_half_width(calibration, checkpoint, deployment, entry["batch"])
    low, high = around(entry["step_time_us"], half)
    return {"step_time_low_us": low, "step_time_high_us": high}


def _far(
    calibration: Calibration, checkpoint: Path, deployment: Deployment, entry: Mapping[str, Any]
) -> list[str]:
    """A mark where a batch's kernels lie farther from measured ones than all that was left out."""
    distance = situation_of(checkpoint, deployment, entry["batch"]).distance.total
    farthest = max(kind.farthest for kind in calibration.kinds)
    if distance <= farthest:
        return []
    return [
        f"its kernels' sizes and GPU differ from measured ones by a factor of {exp(distance):.2f}, "
        f"those of left-out rows by {exp(farthest):.2f} at most"
    ]


def intervals_line(intervals: Mapping[str, Any]) -> str:
    """The intervals of every metric in one sentence, or why there are none."""
    if "missing" in intervals:
        return f"No intervals: {intervals['missing']}."
    named = ", ".join(
        f"{label} {100 * (intervals[m][0] - 1):+.0f} % to {100 * (intervals[m][1] - 1):+.0f} %"
        for m, label in METRICS.items()
        if m in intervals
    )
    return (
        f"{100 * intervals['level']:.0f} % intervals below saturation, of {REFERENCE_BATCH}: "
        f"{named}."
    )
