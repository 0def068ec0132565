"""What a figure of a run depends on: its derivative with respect to every coefficient.

Both sides of each difference serve the same requests at the same times (common random numbers),
so what remains is the coefficient's effect, queues included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pinn.errors import PinnError
from pinn.physics.request import REQUEST_FEATURES
from pinn.physics.step import STEP_FEATURES
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.feature_sums import step_feature_sums
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.many import Job, map_runs
from pinn.simulator.run import Run
from pinn.simulator.workloads.workload import Workload

#: Smallest change of a coefficient, for those that are 0.
_LEAST_STEP = 1e-6


@dataclass(frozen=True)
class Sensitivity:
    """How a figure answers to one coefficient.

    Attributes:
        name: Of the feature; those of beta first, then those of alpha.
        coefficient: Its value.
        derivative: Of the figure, per unit of the coefficient.
        elasticity: Per cent of the figure per per cent of the coefficient.
    """

    name: str
    coefficient: float
    derivative: float
    elasticity: float


def coefficient_sensitivities(
    workload: Workload,
    latency: LinearLatency,
    figure: Callable[[Run], float],
    engine: EngineSpec | None = None,
    *,
    relative_step: float = 0.02,
    workers: int | None = None,
) -> list[Sensitivity]:
    """Differentiate a figure of a run with respect to every coefficient.

    A symmetric difference, or a forward one where a coefficient would turn negative. Step
    features that never occur in the run have derivative 0 without a further run.

    Args:
        workload: What is sent.
        latency: Deployment and coefficients.
        figure: Such as ``lambda run: run.requests.e2e_s.mean()``.
        engine: Further engine settings.
        relative_step: Change of a coefficient, as a share of it.
        workers: Threads.

    Raises:
        PinnError: If the figure is 0 or does not exist in the run.
    """
    base = Job(latency.deployment, workload, latency, engine).run()
    base_figure = figure(base)
    if not (math.isfinite(base_figure) and base_figure != 0):
        raise PinnError(
            f"the figure is {base_figure:g} in this run, so no share of it can be told: choose "
            "another"
        )
    occurs = np.concatenate(
        [step_feature_sums(latency.deployment, base) > 0, np.ones(len(REQUEST_FEATURES), bool)]
    )
    values = np.concatenate([latency.beta, latency.alpha])
    steps = np.maximum(values * relative_step, _LEAST_STEP)
    lows, highs = np.maximum(values - steps, 0.0), values + steps
    changed = [(i, value) for i in np.flatnonzero(occurs).tolist() for value in (lows[i], highs[i])]
    jobs = [
        Job(latency.deployment, workload, _with(latency, values, i, value), engine)
        for i, value in changed
    ]
    figures = map_runs(lambda _, run: figure(run), jobs, workers)
    derivative = np.zeros(len(values))
    for (i, _), low, high in zip(changed[::2], figures[::2], figures[1::2], strict=True):
        derivative[i] = (high - low) / (highs[i] - lows[i])
    elasticity = derivative * values / base_figure
    names = [*STEP_FEATURES, *REQUEST_FEATURES]
    return [
        Sensitivity(name, float(v), float(d), float(e))
        for name, v, d, e in zip(names, values, derivative, elasticity, strict=True)
    ]


def _with(latency: LinearLatency, values: np.ndarray, index: int, value: float) -> LinearLatency:
    changed = values.copy()
    changed[index] = value
    beta, alpha = np.split(changed, [len(latency.beta)])
    return replace(latency, beta=beta, alpha=alpha)
