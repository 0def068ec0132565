"""Intervals and distance of a network's answer, added to what commands print and write."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pinn.errors import PinnError
from pinn.specs.batch import parse_batch
from pinn.specs.deployment import Deployment
from pinn.uncertainty.calibration import Calibration, read_calibration
from pinn.uncertainty.located import locate, outside_inputs
from pinn.uncertainty.sentence import describe_distance

#: Metric -> what people call it.
_METRICS = {"tpot": "step time and ITL", "ttft": "TTFT", "e2e": "E2E"}


def with_trust(report: dict[str, Any], checkpoint: Path, deployment: Deployment) -> dict[str, Any]:
    """A coefficient report with the ends of its intervals and the distance in words.

    Entries get ``low`` and ``high``, batches ``step_time_low_us`` and ``step_time_high_us``.
    Where the checkpoint has no intervals, ``intervals`` says why and nothing else changes.
    """
    try:
        calibration = read_calibration(checkpoint)
        distance = locate(checkpoint, deployment)
        batches = [
            entry | _step_ends(calibration, checkpoint, deployment, entry)
            for entry in report["batches"]
        ]
    except PinnError as error:
        return report | {"intervals": {"missing": str(error)}}
    described = describe_distance(
        distance, report["distance"]["outside_training_range"], calibration
    )
    sentence = described.pop("sentence")
    nearest = report["distance"]["nearest_measured"]
    if nearest is not None:
        sentence += f" The nearest measured deployment is {nearest}."
    return report | {
        "beta": _with_ends("beta", report["beta"], calibration, distance.total),
        "alpha": _with_ends("alpha", report["alpha"], calibration, distance.total),
        "batches": batches,
        "distance": report["distance"] | described | {"sentence": sentence},
        "intervals": {
            "level": calibration.level,
            **{m: calibration.interval(m, 1.0, distance.total) for m in calibration.metrics},
        },
    }


def _with_ends(
    part: str, entries: Mapping[str, dict[str, Any]], calibration: Calibration, distance: float
) -> dict[str, dict[str, Any]]:
    """Entries with ``low`` and ``high``; alphas that no data taught have none."""
    found = {}
    for name, entry in entries.items():
        if entry.get("taught", True):
            low, high = calibration.coefficient_interval(f"{part}.{name}", entry["value"], distance)
            entry = entry | {"low": low, "high": high}
        found[name] = entry
    return found


def _step_ends(
    calibration: Calibration, checkpoint: Path, deployment: Deployment, entry: Mapping[str, Any]
) -> dict[str, float]:
    """A step's ends; one with prefill work has the wider of TPOT's and TTFT's, taught by both."""
    distance = locate(checkpoint, deployment, entry["batch"]).total
    metrics = ["tpot", "ttft"] if any(parse_batch(entry["batch"]).is_prefill) else ["tpot"]
    ends = [calibration.interval(m, entry["step_time_us"], distance) for m in metrics]
    low, high = max(ends, key=lambda end: end[1])
    return {"step_time_low_us": low, "step_time_high_us": high}


def intervals_line(intervals: Mapping[str, Any]) -> str:
    """The intervals of every metric in one sentence, or why there are none."""
    if "missing" in intervals:
        return f"No intervals: {intervals['missing']}."
    named = ", ".join(
        f"{label} {100 * (intervals[m][0] - 1):+.0f} % to {100 * (intervals[m][1] - 1):+.0f} %"
        for m, label in _METRICS.items()
    )
    return f"{100 * intervals['level']:.0f} % intervals at this distance: {named}."


def simulation_trust(
    statistics: Mapping[str, Any], deployment: Deployment, checkpoint: Path
) -> dict[str, Any]:
    """Intervals of a run's mean figures and the distance of its mean step, ready for JSON.

    Returns:
        ``figures``: name of a mean in milliseconds -> its two ends; ``distance``: as
        ``describe_distance``. Or ``missing``, the reason why there are none.
    """
    if not statistics["completed_requests"]:
        return {"missing": "no request was served"}
    requests = max(round(statistics["requests_per_step"]), 1)
    context = round(
        (statistics["total_input_tokens"] + statistics["total_output_tokens"] / 2)
        / max(statistics["injected_requests"], 1)
    )
    try:
        calibration = read_calibration(checkpoint)
        distance = locate(checkpoint, deployment, f"{requests} decode @ {max(context, 1)}")
        outside = outside_inputs(checkpoint, deployment)
    except PinnError as error:
        return {"missing": str(error)}
    figures = {
        f"{name}_mean_ms": calibration.interval(
            metric, statistics[f"{name}_mean_ms"], distance.total
        )
        for name, metric in (("e2e", "e2e"), ("ttft", "ttft"), ("itl", "tpot"), ("step", "tpot"))
        if not math.isnan(statistics[f"{name}_mean_ms"])  # no gaps where outputs are one token
    }
    return {
        "level": calibration.level,
        "figures": figures,
        "distance": describe_distance(distance, outside, calibration),
    }


def simulation_lines(trust: Mapping[str, Any], statistics: Mapping[str, Any]) -> list[str]:
    """The same for people."""
    if "missing" in trust:
        return [f"No intervals: {trust['missing']}."]
    labels = {"e2e": "end to end", "ttft": "first token", "itl": "between tokens", "step": "step"}
    means = [
        f"{label} {statistics[f'{name}_mean_ms']:,.4g} "
        f"({trust['figures'][f'{name}_mean_ms'][0]:,.4g} to "
        f"{trust['figures'][f'{name}_mean_ms'][1]:,.4g})"
        for name, label in labels.items()
        if f"{name}_mean_ms" in trust["figures"]
    ]
    return [
        f"{100 * trust['level']:.0f} % intervals of the means (ms), as they held below saturation: "
        + "; ".join(means)
        + ".",
        str(trust["distance"]["sentence"]),
    ]
