"""Latency metrics of serving runs as linear functions of coefficients, around a simulation."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from pinn.measurements.runs.measured_runs import MeasuredRun
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.metric_features import figure_features, figure_seconds
from pinn.simulator.run import Run
from pinn.simulator.simulate import measured_job, simulate_many
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES

#: Weights of errors in the fit, by latency metric. Means have the largest weights. The 99th
#: percentile of TTFT is not fitted, because it depends on the few prompts at the start of a run
#: that find no cached prefix.
FIGURE_WEIGHTS = {
    "e2e_mean_s": 1.0, "e2e_p90_s": 0.3, "e2e_p99_s": 0.2, "ttft_mean_s": 1.0, "ttft_p90_s": 0.3,
    "itl_mean_s": 0.5,
}  # fmt: skip

#: Relative change, up and down, of all step coefficients (betas), for simulating the gains of runs.
_NUDGE = 0.01
#: Bounds of a gain: the relative change of a latency per relative change of the step time. Near
#: saturation, the gain of the E2E latency would otherwise be very large.
_GAINS = (0.3, 10.0)


@dataclass(frozen=True)
class RunRows:
    """Latency metrics of measured serving runs as ``n`` rows, linearized around a simulation.

    log(metric) = log(simulated) + (gain x delta_beta . step_features + delta_alpha .
    request_features) / simulated, where the metric and ``simulated`` are in seconds, and delta_beta
    and delta_alpha are changes from the coefficients of the simulation (seconds per feature).

    Attributes:
        run: Index of each row's run.
        step_features: Mean step features of the metric, ``[n, step_features]``.
        request_features: Mean request features of the metric, ``[n, request_features]``.
        simulated: Simulated metric, seconds.
        measured_s: Measured metric, seconds.
        gain: Relative change of the metric per relative change of its steps' time. The gain may
            exceed 1, since slower steps also cause larger batches and longer queues.
        weight: Weight of each row in the fit.
    """

    run: Int[np.ndarray, " n"]
    step_features: Float[np.ndarray, "n step_features"]
    request_features: Float[np.ndarray, "n request_features"]
    simulated: Float[np.ndarray, " n"]
    measured_s: Float[np.ndarray, " n"]
    gain: Float[np.ndarray, " n"]
    weight: Float[np.ndarray, " n"]


#: Empty ``RunRows`` for fits without serving runs.
NO_RUNS = RunRows(
    np.zeros(0, dtype=np.int64),
    np.zeros((0, len(STEP_FEATURES))),
    np.zeros((0, len(REQUEST_FEATURES))),
    *(np.zeros(0) for _ in range(4)),
)


def run_rows(
    runs: Sequence[MeasuredRun], latencies: Sequence[LinearLatency], workers: int = 1
) -> RunRows:
    """Simulate measured runs and return each measured latency metric with its mean features.

    A metric with a high gain (see :class:`RunRows`) has a lower weight, because its error is an
    amplified error of step times. Each row is also weighted by 1 / sqrt(number of stages in all
    runs of the row's model), so that no model dominates.

    Args:
        runs: Measured serving runs.
        latencies: Coefficients of each run's deployment.
        workers: Number of threads.
    """
    jobs = [
        measured_job(la.deployment, run.workload, replace(la, beta=la.beta * (1 + sign * _NUDGE)))
        for run, la in zip(runs, latencies, strict=True)
        for sign in (-1, 0, 1)
    ]
    simulated = simulate_many(jobs, workers)
    parts = [
        _columns(run, latency, simulated[3 * i : 3 * i + 3])
        for i, (run, latency) in enumerate(zip(runs, latencies, strict=True))
    ]
    index = np.repeat(np.arange(len(runs)), [len(part[-1]) for part in parts])
    step, request, seconds, measured, gain, weight = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    weight = weight * _model_weights(runs)[index] / np.maximum(gain, 1.0)
    return RunRows(index, step, request, seconds, measured, gain, weight)


def _columns(
    run: MeasuredRun, latency: LinearLatency, simulated: Sequence[Run]
) -> tuple[np.ndarray, ...]:
    """Return one run's columns of ``RunRows`` except ``run``; weights are those of the metrics.

    ``simulated`` has runs with shorter, unchanged and longer step times.
    """
    less, base, more = simulated
    places = itertools.product(run.stages, FIGURE_WEIGHTS)
    figures = [(stage, figure) for stage, figure in places if figure in run.measured[stage]]
    seconds, low, high = (
        np.array([figure_seconds(r, *figure) for figure in figures]) for r in (base, less, more)
    )
    step, request = figure_features(latency, base, figures)
    steps_s = step @ latency.beta
    gain = (high - low) / (2 * _NUDGE * steps_s)
    measured = np.array([run.measured[stage][figure] for stage, figure in figures])
    weight = np.array([FIGURE_WEIGHTS[figure] for _, figure in figures])
    return step, request, seconds, measured, np.clip(gain, *_GAINS), weight


def _model_weights(runs: Sequence[MeasuredRun]) -> np.ndarray:
    """Return each run's weight, 1 / sqrt(number of stages of all runs of the same model)."""
    names = [run.deployment.model.name for run in runs]
    stages = dict.fromkeys(names, 0)
    for name, run in zip(names, runs, strict=True):
        stages[name] += len(run.stages)
    return np.array([1 / np.sqrt(stages[name]) for name in names])
