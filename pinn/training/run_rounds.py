"""Rounds of simulating measured runs and fitting calibration factors, until nothing changes."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from pinn.common.screen import note
from pinn.kernels.composition import COMPOSED_PARTS
from pinn.kernels.surrogates import KernelSurrogates
from pinn.simulator.linear_latency import LinearLatency
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.training import run_scalars
from pinn.training.data.measured_runs import MeasuredRun
from pinn.training.run_scalars import Evidence, RunFit, RunFitSettings
from pinn.training.serving_rows import ServingRows
from pinn.training.teacher import projected_parts

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

    def fitted(rows: run_scalars.RunRows, start: RunFit) -> RunFit:
        evidence = Evidence(rows, models, parts, serving, serving_parts)
        return run_scalars.fit_to_runs(evidence, start, settings)

    fit, before = RunFit(), None
    trusted, least = fit, np.inf
    if not runs:
        return fitted(run_scalars.NO_RUNS, fit)
    for number in range(1, settings.rounds + 1):
        rows = run_scalars.run_rows(runs, run_latencies(fit, runs, parts), settings.workers)
        error = float(np.median(np.abs(rows.simulated_s / rows.measured_s - 1)))
        note(f"round {number}: median error of a figure {100 * error:.2f} %")
        if error > max(_TOO_FAR, least):
            fit = run_scalars.between(trusted, fit)
            continue
        trusted, least = fit, error
        # Root mean square of the figures' log changes.
        if before is not None and (
            np.sqrt(np.mean(np.log(rows.simulated_s / before) ** 2)) < settings.tolerance
        ):
            break
        found = fitted(rows, fit)
        fit = found if number <= _WHOLE_ROUNDS else run_scalars.between(fit, found)
        before = rows.simulated_s
    return fit
