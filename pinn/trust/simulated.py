"""Ends of a simulated run's figures: the run again with every time shorter, and with every longer.

Step time moves all figures one way, so its interval has two ends that are two runs. Below
saturation a figure follows the step time; where queues grow it moves farther, and so do its ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.many import Job, map_runs
from pinn.simulator.run import Run

#: Log change of the step time by which gains are measured, either way.
NUDGE = math.log(1.1)

#: Mean figures by name, in any unit of time.
Figures = dict[str, float]


def scaled(latency: LinearLatency, step: float, request: float) -> LinearLatency:
    """Every step time and every time of a request outside the steps, changed by log factors."""
    return replace(
        latency, beta=latency.beta * math.exp(step), alpha=latency.alpha * math.exp(request)
    )


def end_figures(
    job: Job, latency: LinearLatency, step: float, request: float, figures: Callable[[Run], Figures]
) -> tuple[Figures, Figures]:
    """Figures of the run with all times shorter, and with all longer.

    Args:
        job: The run.
        latency: Its coefficients.
        step: Log half-width of the step time.
        request: Log half-width of the times of a request outside the steps.
        figures: What is reported of a run.
    """
    jobs = [replace(job, latency=scaled(latency, way * step, way * request)) for way in (-1, 1)]
    fast, slow = map_runs(lambda _, run: figures(run), jobs)
    return fast, slow


def figure_ends(
    value: Figures, fast: Figures, slow: Figures, ttft_half: float
) -> dict[str, tuple[float, float]]:
    """The intervals of a run's means, or of the same percentile of all; each holds the value.

    TTFT has the wider of what simulating shows and of its own spread below saturation. E2E has
    simulated ends, moved by as much as TTFT's were.

    Args:
        value: ``ttft``, ``e2e`` and any others that follow the step time.
        fast: Of the run with shorter times.
        slow: Of the run with longer ones; NaN where nothing was served in time: no upper end.
        ttft_half: Log half-width of TTFT below saturation.
    """
    found = {name: ends(value[name], fast[name], slow[name]) for name in value}
    low, high = found["ttft"]
    wider = (
        min(low, value["ttft"] * math.exp(-ttft_half)),
        max(high, value["ttft"] * math.exp(ttft_half)),
    )
    # Where TTFT has no upper end, neither has E2E; its own is infinite already.
    beyond = wider[1] - high if math.isfinite(high) else 0.0
    shortest, longest = found["e2e"]
    # No answer ends before its first token; decodes take what the fast run says.
    return found | {"ttft": wider, "e2e": (max(shortest - (low - wider[0]), 0.0), longest + beyond)}


def ends(value: float, fast: float, slow: float) -> tuple[float, float]:
    """The least and the most of three; without end where the slow run has no value."""
    known = [x for x in (value, fast, slow) if not math.isnan(x)]
    return min(known), math.inf if math.isnan(slow) else max(known)


def standing_step(run: Run) -> str:
    """The decode step that stands for a run: its mean number of requests at their mean context."""
    r = run.requests
    steps = max(len(run.steps), 1)
    requests = max(round(float(run.steps["requests"].sum()) / steps), 1)
    tokens = float(r.prompt_tokens.sum()) + float(r.output_tokens.sum()) / 2
    return f"{requests} decode @ {max(round(tokens / max(len(r), 1)), 1)}"


def gains(
    job: Job, latency: LinearLatency, figures: Callable[[Run], Figures], value: Figures
) -> Figures:
    """Log change of each figure per log change of the step time; at least 0.

    1 where a figure follows the step time, more where queues magnify it.
    """
    fast, slow = end_figures(job, latency, NUDGE, 0.0, figures)
    return {name: max(float(np.log(slow[name] / fast[name])) / (2 * NUDGE), 0.0) for name in value}
