"""Sensitivities: derivatives of a run's metric with respect to each coefficient.

A derivative is a difference between two runs that serve the same requests, sent at the same times
(common random numbers). It is therefore the coefficient's effect, including its effect on queues.
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

#: Changes of a coefficient for differentiating a metric. ``_RELATIVE_STEP``: relative change.
#: ``_LEAST_STEP``: minimum absolute change, for coefficients of 0.
_RELATIVE_STEP, _LEAST_STEP = 0.02, 1e-6


@dataclass(frozen=True)
class CoefficientShare:
    """Sensitivity of a metric to one coefficient.

    Attributes:
        value: Value of the coefficient in SI units.
        derivative: Change of the metric, in its unit, per unit of the coefficient.
        elasticity: Change of the metric in percent per percent change of the coefficient.
    """

    value: float
    derivative: float
    elasticity: float


@dataclass(frozen=True)
class Sensitivity:
    """Sensitivities of a metric to all coefficients.

    Attributes:
        figure: Name of the metric.
        value: Value of the metric.
        coefficients: Sensitivity to a feature's coefficient, by name of the feature.
    """

    figure: str
    value: float
    coefficients: Mapping[str, CoefficientShare]

    def to_json(self) -> JsonObject:
        """Return the object under the key ``sensitivity`` of the JSON output."""
        return asdict(self)


def coefficient_sensitivities(
    job: Job, figure: Callable[[Run], float]
) -> dict[str, CoefficientShare]:
    """Differentiate a metric of a run with respect to every coefficient.

    The derivative is a central difference, or a forward difference where a coefficient would become
    negative. Step features that never occur in the run have derivative 0, which requires no
    additional run.

    Args:
        job: Simulation at the predicted coefficients.
        figure: Function of a run that returns the metric, such as
            ``lambda run: run.requests.e2e_s.mean()``.

    Returns: Sensitivity to each feature's coefficient, by feature name; step features first, then
        request features.

    Raises:
        PinnError: If the metric is 0 or undefined in the run.
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
    """Differentiate a metric that is given by its name in the JSON output.

    ``percentiles`` are latency percentiles in addition to the default ones.

    Raises:
        PinnError: If no metric has this name, or if the metric is 0 or undefined in this run.
    """
    known = run_statistics(run, None, percentiles)
    if figure not in known:
        names = ", ".join(known)
        raise PinnError(f"--sensitivity has the unknown metric {figure}: use one of {names}")

    def value(run: Run) -> float:
        return float(run_statistics(run, None, percentiles)[figure])

    try:
        found = coefficient_sensitivities(job, value)
    except PinnError as error:
        raise PinnError(f"--sensitivity {figure}: {error}") from error
    return Sensitivity(figure, float(known[figure]), found)
