"""Many simulations: intervals of their figures, and what moves them."""

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.physics.request import REQUEST_FEATURES
from pinn.physics.step import STEP_FEATURES
from pinn.simulator import engine_spec, metric_features
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.workload import Workload

# Many simulations side by side: compiled runs release the interpreter lock.

Result = TypeVar("Result")


@dataclass(frozen=True)
class Job:
    """Arguments of one ``simulate``."""

    deployment: Deployment
    workload: Workload
    latency: LinearLatency
    engine: engine_spec.EngineSpec | None = None

    def run(self) -> Run:
        """Simulate it."""
        return simulate(self.deployment, self.workload, self.latency, self.engine)


def simulate_many(jobs: Iterable[Job], workers: int | None = None) -> list[Run]:
    """Simulate jobs in threads; results in the order of the jobs.

    Args:
        jobs: What to run.
        workers: Threads; as many as there are cores by default.

    Raises:
        PinnError: That of the first job that cannot run.
    """
    return map_runs(lambda _, run: run, jobs, workers)


def map_runs(
    figure: Callable[[Job, Run], Result], jobs: Iterable[Job], workers: int | None = None
) -> list[Result]:
    """Simulate and keep what ``figure`` makes of each run: records of long runs are large."""
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        return list(pool.map(lambda job: figure(job, job.run()), jobs))


# Ends of a simulated run's figures: the run again with every time shorter, and with every
# longer.
#
# Step time moves all figures one way, so its interval has two ends that are two runs. Below
# saturation a figure follows the step time; where queues grow it moves farther, and so do its
# ends.

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
    job: Job, step: float, request: float, figures: Callable[[Run], Figures]
) -> tuple[Figures, Figures]:
    """Figures of the run with all times shorter, and with all longer.

    Args:
        job: The run.
        step: Log half-width of the step time.
        request: Log half-width of the times of a request outside the steps.
        figures: What is reported of a run.
    """
    jobs = [replace(job, latency=scaled(job.latency, way * step, way * request)) for way in (-1, 1)]
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


def gains(job: Job, figures: Callable[[Run], Figures], value: Figures) -> Figures:
    """Log change of each figure per log change of the step time; at least 0.

    1 where a figure follows the step time, more where queues magnify it.
    """
    fast, slow = end_figures(job, NUDGE, 0.0, figures)
    return {name: max(float(np.log(slow[name] / fast[name])) / (2 * NUDGE), 0.0) for name in value}


# What a figure of a run depends on: its derivative with respect to every coefficient.
#
# Both sides of each difference serve the same requests at the same times (common random
# numbers), so what remains is the coefficient's effect, queues included.

#: Change of a coefficient as a share of it; smallest change, for those that are 0.
_RELATIVE_STEP, _LEAST_STEP = 0.02, 1e-6


def coefficient_sensitivities(
    job: Job, figure: Callable[[Run], float]
) -> dict[str, dict[str, float]]:
    """Differentiate a figure of a run with respect to every coefficient.

    A symmetric difference, or a forward one where a coefficient would turn negative. Step
    features that never occur in the run have derivative 0 without a further run.

    Args:
        job: The run.
        figure: Such as ``lambda run: run.requests.e2e_s.mean()``.

    Returns:
        Name of a feature, those of beta first, then those of alpha -> ``value`` of its coefficient,
        ``derivative`` (units of the figure per unit of the coefficient) and ``elasticity`` (per
        cent of the figure per per cent of the coefficient).

    Raises:
        PinnError: If the figure is 0 or does not exist in the run.
    """
    latency, base = job.latency, job.run()
    base_figure = figure(base)
    if not (math.isfinite(base_figure) and base_figure != 0):
        raise PinnError(
            f"the figure is {base_figure:g} in this run, so no share of it can be told: choose "
            "another"
        )
    in_steps = metric_features.features_spent(latency.deployment, base.steps.table)[-1] > 0
    occurs = np.concatenate([in_steps, np.ones(len(REQUEST_FEATURES), bool)])
    values, split = np.concatenate([latency.beta, latency.alpha]), [len(latency.beta)]
    steps = np.maximum(values * _RELATIVE_STEP, _LEAST_STEP)
    lows, highs = np.maximum(values - steps, 0.0), values + steps
    jobs = []
    for i in np.flatnonzero(occurs):
        for value in (lows[i], highs[i]):
            beta, alpha = np.split(np.where(np.arange(len(values)) == i, value, values), split)
            jobs.append(replace(job, latency=replace(latency, beta=beta, alpha=alpha)))
    figures = np.reshape(map_runs(lambda _, run: figure(run), jobs), (-1, 2))
    derivative = np.zeros(len(values))
    derivative[occurs] = (figures[:, 1] - figures[:, 0]) / (highs - lows)[occurs]
    elasticity = derivative * values / base_figure
    columns = {"value": values, "derivative": derivative, "elasticity": elasticity}
    return {
        name: {column: float(of_all[i]) for column, of_all in columns.items()}
        for i, name in enumerate([*STEP_FEATURES, *REQUEST_FEATURES])
    }
