"""Intervals of a simulation's means and what left-out data showed, beside its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pinn.coefficients.coefficient_set import CoefficientSet
from pinn.errors import PinnError
from pinn.interface.commands.trust_report import METRICS
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.many import Job
from pinn.simulator.run import Run
from pinn.simulator.statistics import run_statistics
from pinn.training.calibration.posterior_intervals import posterior_step_half_widths
from pinn.trust.calibration import Ends, read_calibration
from pinn.trust.conformal import LEVEL
from pinn.trust.sentence import describe_trust
from pinn.trust.simulated import Figures, end_figures, figure_ends, standing_step
from pinn.trust.spread_parts import spread_parts
from pinn.trust.step_distance import outside_inputs
from pinn.trust.step_interval import situation_of

#: Figures of a run whose means have intervals.
_FIGURES = ("e2e", "ttft", "itl", "step")


def simulation_trust(
    run: Run, job: Job, latency: LinearLatency, checkpoint: Path
) -> dict[str, Any]:
    """Intervals of a run's mean figures and what left-out data showed, ready for JSON.

    The run is simulated twice more, with all times at either end of their intervals.

    Args:
        run: What ``job`` gave.
        job: The simulation.
        latency: Its coefficients, the checkpoint's.
        checkpoint: The network.

    Returns:
        ``level``; ``figures``: name of a mean in milliseconds -> its two ends, the upper one None
        where the slow end serves nothing; ``slow_end_unserved``: share of requests that are not
        served to the end there; ``distance``: as ``describe_trust``. Or ``missing``, the reason
        why there are none.
    """
    if not run.requests.finished.any():
        return {"missing": "no request was served"}
    try:
        calibration = read_calibration(checkpoint)
        situation = situation_of(checkpoint, job.deployment, standing_step(run))
        outside = outside_inputs(checkpoint, job.deployment)
    except PinnError as error:
        return {"missing": str(error)}
    parts = spread_parts(situation)
    step, ttft = (calibration.half_width(metric, parts) for metric in METRICS)
    figures, unserved = _simulated_ends(run, job, latency, step, ttft)
    return {
        "level": calibration.level,
        "figures": figures,
        "slow_end_unserved": unserved,
        "distance": describe_trust(situation, outside, calibration),
    }


_UNSERVED = "unserved"


def _mean_figures(run: Run) -> Figures:
    """Means in milliseconds, and the share of requests that were not served to the end."""
    statistics = run_statistics(run)
    means = {name: float(statistics[f"{name}_mean_ms"]) for name in _FIGURES}
    return means | {_UNSERVED: 1 - float(run.requests.finished.mean())}


def posterior_trust(
    run: Run, job: Job, latency: LinearLatency, found: CoefficientSet
) -> dict[str, Any] | None:
    """Intervals of the means by a calibrated file's posterior; None where it has none.

    The run is simulated twice more, with all times at either end of the mean step's interval.
    """
    if found.covariance is None or not run.requests.finished.any():
        return None
    prompt = "1 prefill 2048 @ 0"
    halves = posterior_step_half_widths(found, job.deployment, [standing_step(run), prompt])
    step, ttft = (float(half) for half in halves)
    figures, unserved = _simulated_ends(run, job, latency, step, ttft)
    names = ", ".join(Path(source["path"]).name for source in found.calibration.get("sources", ()))
    return {
        "level": LEVEL,
        "figures": figures,
        "slow_end_unserved": unserved,
        "distance": {"sentence": f"Calibrated to {names}: intervals are those of its posterior."},
    }


def _simulated_ends(
    run: Run, job: Job, latency: LinearLatency, step: float, ttft: float
) -> tuple[dict[str, tuple[float, float | None]], float]:
    """Ends of the means, and the share of requests that the slow end does not serve."""
    fast, slow = end_figures(job, latency, step, ttft, _mean_figures)
    unserved = slow.pop(_UNSERVED)
    value = _mean_figures(run)
    del value[_UNSERVED], fast[_UNSERVED]
    # No gaps where outputs are one token.
    value = {name: seconds for name, seconds in value.items() if not math.isnan(seconds)}
    ends = figure_ends(value, fast, slow, ttft)
    return {f"{name}_mean_ms": _finite(pair) for name, pair in ends.items()}, unserved


def _finite(ends: Ends) -> tuple[float, float | None]:
    return ends[0], ends[1] if math.isfinite(ends[1]) else None


def simulation_lines(trust: Mapping[str, Any], statistics: Mapping[str, Any]) -> list[str]:
    """The same for people."""
    if "missing" in trust:
        return [f"No intervals: {trust['missing']}."]
    lines = ["Intervals are simulated at the ends of the step time's."]
    if trust["slow_end_unserved"] > 1 - float(statistics["completed_requests"]) / max(
        statistics["injected_requests"], 1
    ):
        lines.append(
            f"At the slow end {100 * trust['slow_end_unserved']:.0f} % of the requests are not "
            "served in time."
        )
    return [*lines, str(trust["distance"]["sentence"])]
