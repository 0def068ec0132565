"""Learning from measured servers: simulate, take the batches, fit, until nothing changes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from pinn.data.measured_runs import MeasuredRun
from pinn.kernels.composition import COMPOSED_PARTS
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.step import STEP_FEATURES
from pinn.simulator.linear_latency import LinearLatency
from pinn.training.run_rows import NO_RUNS, run_rows
from pinn.training.run_scalars import (
    Evidence,
    RunFit,
    RunFitSettings,
    between,
    fit_to_runs,
)
from pinn.training.serving_rows import ServingRows
from pinn.training.teacher.teacher import projected_parts

#: After so many rounds only half of each change is taken: near saturation the batches answer so
#: strongly that whole ones would swing around the solution.
_WHOLE_ROUNDS = 3
#: A change that leaves half of the figures wrong by more than this, and by more than before, is
#: halved: they are no longer linear that far, and fitting on from there can end elsewhere.
_TOO_FAR = 0.25


def run_parts(
    kernels: KernelSurrogates, runs: Sequence[MeasuredRun]
) -> Float[np.ndarray, "runs operators features"]:
    """Projected betas of each run's operators; equal deployments are projected once."""
    deployments = list(dict.fromkeys(run.deployment for run in runs))
    if not deployments:
        return np.zeros((0, len(COMPOSED_PARTS), len(STEP_FEATURES)))
    parts = projected_parts(kernels, deployments)
    return parts[[deployments.index(run.deployment) for run in runs]]


def run_latencies(
    fit: RunFit, runs: Sequence[MeasuredRun], parts: Float[np.ndarray, "runs operators features"]
) -> list[LinearLatency]:
    """The coefficients that a fit gives each run's deployment."""
    return [
        LinearLatency(
            run.deployment, fit.of_model(run.deployment.model.name).betas(of_run), fit.alpha
        )
        for run, of_run in zip(runs, parts, strict=True)
    ]


def learn_from_runs(
    kernels: KernelSurrogates,
    runs: Sequence[MeasuredRun],
    serving: ServingRows,
    settings: RunFitSettings,
) -> RunFit:
    """Fit scalars, departures and alpha to measured deployments and runs.

    Every round simulates the runs with what was learned so far and fits to the batches that came
    out; a change that went too far is halved. It ends when the figures hardly change any more.
    Without runs one fit is all: the batches of closed loops hardly depend on the coefficients.

    Args:
        kernels: Surrogates to compose steps of.
        runs: To train on; may be none.
        serving: Measured deployments to train on.
        settings: How.
    """
    of_serving = projected_parts(kernels, serving.deployments)
    return alternate(runs, run_parts(kernels, runs), serving, of_serving, settings)


def alternate(
    runs: Sequence[MeasuredRun],
    parts: Float[np.ndarray, "runs operators features"],
    serving: ServingRows,
    serving_parts: Float[np.ndarray, "deployments operators features"],
    settings: RunFitSettings,
) -> RunFit:
    """The rounds themselves, given the projected betas of every deployment's operators."""
    models = [run.deployment.model.name for run in runs]
    fit, before = RunFit(), None
    trusted, least = fit, np.inf
    if not runs:
        return fit_to_runs(Evidence(NO_RUNS, models, parts, serving, serving_parts), fit, settings)
    for number in range(1, settings.rounds + 1):
        rows = run_rows(runs, run_latencies(fit, runs, parts), settings.workers)
        error = float(np.median(np.abs(rows.simulated_s / rows.measured_s - 1)))
        _tell(f"round {number}: median error of a figure {100 * error:.2f} %")
        if error > max(_TOO_FAR, least):
            fit = between(trusted, fit)
            continue
        trusted, least = fit, error
        if before is not None and _change(before, rows.simulated_s) < settings.tolerance:
            break
        found = fit_to_runs(Evidence(rows, models, parts, serving, serving_parts), fit, settings)
        fit = found if number <= _WHOLE_ROUNDS else between(fit, found)
        before = rows.simulated_s
    return fit


def _change(before: Float[np.ndarray, " n"], after: Float[np.ndarray, " n"]) -> float:
    """Root mean square of the figures' log changes."""
    return float(np.sqrt(np.mean(np.log(after / before) ** 2)))


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
