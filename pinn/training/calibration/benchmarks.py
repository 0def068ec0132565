"""Coefficients fitted to benchmarks: their loads are simulated until batches and fit agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from pinn.data.benchmarks.benchmark_run import BenchmarkRun
from pinn.simulator.engine_spec import EngineSpec
from pinn.specs.deployment import Deployment
from pinn.training.calibration.benchmark_figures import FigureRows, noise_of_draws, simulated_rows
from pinn.training.calibration.determined import Quantity, scalar_quantities, step_quantities
from pinn.training.calibration.figure_noise import TIME_NOISE
from pinn.training.calibration.posterior import Posterior, distance_squared, fit_posterior
from pinn.training.calibration.prior import Prior
from pinn.training.calibration.verdict import Likelihood, Verdict, judge, judge_likelihood

#: Most rounds of simulating and fitting, and the relative change of figures at which they end.
_ROUNDS, _TOLERANCE = 6, 0.005


@dataclass(frozen=True)
class BenchmarkCalibration:
    """A server calibrated to its benchmarks.

    Attributes:
        deployment: The server.
        runs: What it was calibrated to.
        prior: Coefficients before.
        posterior: Coefficients after.
        errors: ``run``, ``load``, ``figure``, ``measured``, ``before`` and ``after``, one row for
            each figure that was fitted.
        quantities: What the runs determine.
        verdicts: Before and after on loads left out.
    """

    deployment: Deployment
    runs: tuple[BenchmarkRun, ...]
    prior: Prior
    posterior: Posterior
    errors: pd.DataFrame
    quantities: list[Quantity]
    verdicts: list[Verdict | Likelihood]


def calibrate_to_benchmarks(
    runs: Sequence[BenchmarkRun],
    deployment: Deployment,
    prior: Prior,
    engine: EngineSpec | None = None,
) -> BenchmarkCalibration:
    """Fit the coefficients to runs, and judge them by leaving each load out.

    Args:
        runs: Of one server.
        deployment: The server.
        prior: Coefficients before.
        engine: How it schedules; None for the engine's defaults.

    Raises:
        PinnError: If a run has no figure to fit, or the simulated server serves none of it.
    """
    served = partial(simulated_rows, deployment=deployment, engine=engine)
    before = served(runs, coefficients=prior.mean)
    drawn = noise_of_draws(runs, deployment, prior.mean, engine)
    before = replace(before, noise=np.hypot(before.noise, drawn))
    posterior, after = _converged(partial(served, runs), prior, before)
    errors = pd.DataFrame(
        {
            "run": [runs[i].name for i in before.run],
            "load": [runs[i].load.text for i in before.run],
            "figure": before.names,
            "measured": before.measured,
            "before": before.simulated,
            "after": after.simulated,
        }
    )
    requests, context = _mean_step(runs)
    quantities = [
        *step_quantities(deployment, prior, posterior, requests, context),
        *scalar_quantities(prior, posterior, after.features / after.measured[:, None]),
    ]
    verdicts = _left_out(runs, served, prior, before)
    return BenchmarkCalibration(
        deployment, tuple(runs), prior, posterior, errors, quantities, verdicts
    )


def _converged(
    served: Callable[..., FigureRows], prior: Prior, rows: FigureRows
) -> tuple[Posterior, FigureRows]:
    """Fit and simulate in turn until the figures stay: Gauss-Newton with steps that are halved.

    Closed-loop clients with equal lengths synchronise; small timing changes break this, so the
    objective is discontinuous. A step is taken only where the simulated figures make it more
    probable, else half of it is tried.
    """
    at, share = prior.mean, 1.0
    fitted, best = fit_rows(prior, rows, at), _improbability(prior, rows, at)
    for _ in range(_ROUNDS):
        tried = at + share * (fitted.mean - at)
        found = replace(served(coefficients=tried), noise=rows.noise)
        worth = _improbability(prior, found, tried)
        if worth >= best:
            share /= 2
            continue
        change = np.abs(found.simulated / rows.simulated - 1).max()
        at, rows, best, share = tried, found, worth, 1.0
        fitted = fit_rows(prior, rows, at)
        if change < _TOLERANCE:
            break
    return replace(fitted, mean=at), rows


def _improbability(prior: Prior, rows: FigureRows, at: np.ndarray) -> float:
    """-2 log of the posterior's density by simulated figures, up to a constant."""
    misfit = ((rows.simulated / rows.measured - 1) / rows.noise) ** 2
    return float(misfit.sum()) + distance_squared(prior, at)


def fit_rows(
    prior: Prior,
    rows: FigureRows,
    at: Float[np.ndarray, " coefficients"],
    keep: Bool[np.ndarray, " figures"] | None = None,
) -> Posterior:
    """Fit figures that were simulated with the coefficients ``at``; those to ``keep``, or all."""
    keep = np.ones(len(rows.measured), bool) if keep is None else keep
    features = rows.features[keep]
    offset = rows.simulated[keep] - features @ at
    return fit_posterior(prior, features, rows.measured[keep], rows.noise[keep], offset)


def _left_out(
    runs: Sequence[BenchmarkRun], served: Callable[..., FigureRows], prior: Prior, rows: FigureRows
) -> list[Verdict | Likelihood]:
    """Each load predicted from the other loads; none where there is one load."""
    loads = np.array([run.load.text for run in runs])
    of_row = loads[rows.run]
    if len(set(loads)) < 2:
        return []
    where = "each load, left out"
    weighed, logs, spreads = [], [], []
    for load in dict.fromkeys(loads):
        fitted = fit_rows(prior, rows, prior.mean, of_row != load)
        mine = [run for run in runs if run.load.text == load]
        found = served(mine, coefficients=fitted.mean)
        found = replace(found, noise=rows.noise[of_row == load])
        weighed.append(_weighed(found))
        logs.append(np.log(found.simulated / found.measured))
        spreads.append(_spread(found, fitted.covariance))
    order = np.argsort([list(dict.fromkeys(loads)).index(load) for load in of_row], kind="stable")
    return [
        judge(where, _weighed(rows)[order], np.concatenate(weighed)),
        judge_likelihood(
            where,
            np.log(rows.simulated / rows.measured)[order],
            _spread(rows, prior.covariance)[order],
            np.concatenate(logs),
            np.concatenate(spreads),
        ),
    ]


def _weighed(rows: FigureRows) -> Float[np.ndarray, " n"]:
    """Relative errors, those of noisy figures counting less."""
    return (rows.simulated / rows.measured - 1) * TIME_NOISE / rows.noise


def _spread(
    rows: FigureRows, covariance: Float[np.ndarray, "coefficients coefficients"]
) -> Float[np.ndarray, " n"]:
    """Relative standard deviations of what is predicted, with what no coefficient explains."""
    variance = np.einsum("ij,jk,ik->i", rows.features, covariance, rows.features)
    return np.hypot(np.sqrt(np.maximum(variance, 0.0)) / rows.simulated, rows.noise)


def _mean_step(runs: Sequence[BenchmarkRun]) -> tuple[float, float]:
    """Requests and context of a typical decode step, by Little's law."""
    requests, context = [], []
    for run in runs:
        load = run.load
        rate = run.figures.get("requests_per_s", load.rate_per_s)
        first = run.figures.get("ttft_mean_s", 0.0)
        gap = run.figures.get("tpot_mean_s", run.figures.get("itl_mean_s", 0.0))
        length = run.figures.get("e2e_mean_s", first + gap * load.output.mean)
        in_flight = load.concurrency or load.requests
        requests.append(min(rate * length, in_flight) if rate else in_flight)
        context.append(load.prompt.mean + load.output.mean / 2)
    return float(np.mean(requests)), float(np.mean(context))
