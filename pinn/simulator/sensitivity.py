"""Sensitivities: derivatives of a run's metric with respect to every coefficient.

Both sides of each difference serve the same requests at the same times (common random numbers), so
what remains is the coefficient's effect, queues included.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from pinn.common import JsonObject
from pinn.errors import PinnError
from pinn.simulator import metric_features
from pinn.simulator.run import Run
from pinn.simulator.simulate import Job, map_runs
from pinn.simulator.statistics import run_statistics
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES

#: Change of a coefficient as a share of it; smallest change, for those that are 0.
_RELATIVE_STEP, _LEAST_STEP = 0.02, 1e-6


@dataclass(frozen=True)
class CoefficientShare:
    """A coefficient's share in a metric.

    Attributes:
        value: Value of the coefficient in SI units.
        derivative: Units of the metric per unit of the coefficient.
        elasticity: Per cent of the metric per per cent of the coefficient.
    """

    value: float
    derivative: float
    elasticity: float


@dataclass(frozen=True)
class Sensitivity:
    """The derivatives of a metric.

    Attributes:
        figure: Name of the metric.
        value: Value of the metric.
        coefficients: Name of a feature -> its coefficient's share.
    """

    figure: str
    value: float
    coefficients: Mapping[str, CoefficientShare]

    def to_json(self) -> JsonObject:
        """Return the key ``sensitivity`` of the JSON."""
        return asdict(self)


def coefficient_sensitivities(
    job: Job, figure: Callable[[Run], float]
) -> dict[str, CoefficientShare]:
    """Differentiate a figure of a run with respect to every coefficient.

    A symmetric difference, or a forward one where a coefficient would turn negative. Step
    features that never occur in the run have derivative 0 without a further run.

    Args:
        job: The run.
        figure: Such as ``lambda run: run.requests.e2e_s.mean()``.

    Returns:
        Name of a feature, those of beta first, then those of alpha -> its coefficient.

    Raises:
        PinnError: If the figure is 0 or does not exist in the run.
    """
    latency, base = job.latency, job.run()
    base_figure = figure(base)
    if not math.isfinite(base_figure) or base_figure == 0:
        what = f"is {base_figure:g}" if math.isfinite(base_figure) else "does not exist"
        fault = f"the metric {what} in this run, so its sensitivity is undefined"
        raise PinnError(f"{fault}: choose another metric")
    in_steps = metric_features.features_spent(latency, base.steps.table)[-1] > 0
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
    columns = zip(values.tolist(), derivative.tolist(), elasticity.tolist(), strict=True)
    names = (*STEP_FEATURES, *REQUEST_FEATURES)
    return {name: CoefficientShare(*row) for name, row in zip(names, columns, strict=True)}


def sensitivity(job: Job, run: Run, figure: str, percentiles: Sequence[float] = ()) -> Sensitivity:
    """Differentiate a metric by its name in JSON; ``percentiles`` are those beside the usual ones.

    Raises:
        PinnError: If no metric has this name, or it is 0 or missing in this run.
    """
    known = run_statistics(run, None, percentiles)
    if figure not in known:
        raise PinnError(f"--sensitivity {figure}: unknown metric: use one of {', '.join(known)}")

    def value(run: Run) -> float:
        return float(run_statistics(run, None, percentiles)[figure])

    try:
        found = coefficient_sensitivities(job, value)
    except PinnError as error:
        raise PinnError(f"--sensitivity {figure}: {error}") from error
    return Sensitivity(figure, float(known[figure]), found)
