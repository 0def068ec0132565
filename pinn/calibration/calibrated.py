"""Calibrations of a server to its step traces, or to measured step times."""

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from pinn.calibration import calibrate, posterior
from pinn.calibration.alpha import AlphaCalibration, calibrate_alpha
from pinn.calibration.calibrate import BetaSettings, Intervals, Verdict, judgements
from pinn.calibration.checks import CoefficientsOf, check_kv_blocks, check_speed
from pinn.calibration.load_range import range_of
from pinn.calibration.posterior import TIME_NOISE, TTFT_NOISE, Posterior, Quantity
from pinn.calibration.prior import Prior, all_features
from pinn.calibration.requests import read_requests
from pinn.engines.deployment import Deployment
from pinn.measurements.traces.measured_steps import MeasuredSteps
from pinn.measurements.traces.trace_tables import TraceTables
from pinn.surrogate.coefficient_set import CoefficientSet, deployment_facts
from pinn.surrogate.coefficients import Coefficients
from pinn.surrogate.deployment_features import padded_features
from pinn.surrogate.step_features import STEP_FEATURES, overlapped

#: ``_TWO_LOADS``: the halves of a trace count as two loads if their mean numbers of requests per
#: step differ by at least this ratio. ``_LEAST``: minimum number of intervals in each half. Both
#: values are assumptions.
_TWO_LOADS, _LEAST = 1.5, 20


@dataclass(frozen=True)
class ServerCalibration:
    """Calibration of a server to measurements of any type.

    Attributes:
        deployment: Deployment of the server.
        prior: Coefficients before the calibration.
        posterior: Coefficients after the calibration.
        quantities: Parameters of the server, with values and standard errors before and after.
        verdicts: Changes in held-out error, one for each held-out data set.
        facts: Description of measurements and fit as JSON values, for the coefficient file.
    """

    deployment: Deployment
    prior: Prior
    posterior: Prior
    quantities: list[Quantity]
    verdicts: Sequence[Verdict]
    facts: dict[str, Any]

    def coefficient_set(
        self, named: dict[str, str], taught: Bool[np.ndarray, " request_features"]
    ) -> CoefficientSet:
        """Return the posterior as the content of a coefficient file.

        Args:
            named: Model, GPU and weight format as named by the user.
            taught: Whether each alpha was fitted to measured requests, ``[n alphas]``.
        """
        facts = self.facts | {
            "quantities": [asdict(quantity) for quantity in self.quantities],
            "verdicts": [verdict.facts for verdict in self.verdicts],
        }
        deployment = deployment_facts(self.deployment) | {"named": named}
        before, after = (Coefficients(c.beta[None], c.alpha[None])
                         for c in (self.prior, self.posterior))  # fmt: skip
        return CoefficientSet(deployment, after, taught, before, facts, self.posterior.covariance)


@dataclass(frozen=True)
class Calibration(ServerCalibration):
    """Calibration of a server to its traces.

    Attributes:
        beta: Posterior from step times; its noise has one entry for each fitted interval.
        alpha: Calibration of alpha to request journeys (event times); None if the trace has none.
        errors: Errors of mean step times before and after calibration, see
            :func:`pinn.calibration.calibrate.error_table`.
    """

    beta: Posterior
    alpha: AlphaCalibration
    errors: pd.DataFrame


def run_calibration(
    traces: TraceTables, deployment: Deployment, prior: Prior, settings: BetaSettings
) -> Calibration:
    """Calibrate beta to a run's steps and, if it has request journeys, alpha to its requests.

    Args:
        traces: Ingested trace tables (steps, cycles, requests, snapshots).
        deployment: Deployment that was traced.
        prior: Coefficients of the deployment before the calibration.
        settings: Settings of the calibration of beta.

    Raises:
        PinnError: If the tables have no data for a calibration.
    """
    intervals = calibrate.read_intervals(traces, deployment, prior.beta)
    used = calibrate.chosen(intervals, settings)
    beta = calibrate.calibrate_to(used, prior)
    requests = read_requests(traces, deployment, beta.beta)
    alpha = calibrate_alpha(requests, beta)
    errors = calibrate.error_table(intervals, {"before": prior.beta, "calibrated": beta.beta})
    decodes, prompt_tokens = used.sums.decode_requests, requests.mean_prompt_tokens
    context = used.sums.decode_context.sum() / max(decodes.sum(), 1.0)
    quantities = [
        *posterior.step_quantities(deployment, prior, beta, float(decodes.mean()), context),
        *posterior.scalar_quantities(prior, beta, all_features(used.features)),
        *posterior.request_quantities(prior, alpha.posterior, prompt_tokens, alpha.taught),
    ]
    others = _other_loads(intervals, prior, settings)
    verdicts = [*_later(intervals, prior, beta), *others, *alpha.verdicts]
    facts = {
        "sources": traces.manifest["sources"], **asdict(settings),
        "used": len(beta.noise), "noise": float(np.median(beta.noise)),
        "errors": _records(errors), "requests": _records(alpha.errors),
        "loads": {"requests_in_flight": range_of(used.sums.requests)},
    }  # fmt: skip
    return Calibration(
        deployment, prior, alpha.posterior, quantities, verdicts, facts, beta, alpha, errors
    )


def _later(intervals: Intervals, prior: Prior, beta: Posterior) -> list[Verdict]:
    """Return the change in step time error on intervals after the last fitted one."""
    usual = intervals.is_window | intervals.is_single
    later = intervals.take((intervals.part > 0) & usual)
    return [_judged("later time", later, prior, beta)] if len(later) else []


def _other_loads(intervals: Intervals, prior: Prior, settings: BetaSettings) -> list[Verdict]:
    """Return changes in step time error on loads with few and with many requests per step.

    Steps with fewer requests than the median are predicted by a fit to the other steps, and vice
    versa. The list is empty if the two halves have similar loads or too few intervals.
    """
    pool = calibrate.candidates(intervals, settings.kind)
    requests = pool.sums.requests
    is_upper = requests > np.median(requests)
    halves = {"lower": pool.take(~is_upper), "upper": pool.take(is_upper)}
    lower, upper = (half.sums.requests.mean() if len(half) >= _LEAST else np.nan
                    for half in halves.values())  # fmt: skip
    if not upper > _TWO_LOADS * lower:
        return []
    verdicts = []
    for (name, left_out), other in zip(halves.items(), reversed(halves.values()), strict=True):
        fitted = calibrate.calibrate_to(calibrate.chosen(other, settings), prior)
        where = f"held-out {name} half of the loads"
        verdicts.append(_judged(where, left_out, prior, fitted))
    return verdicts


def _judged(where: str, rows: Intervals, prior: Prior, fitted: Posterior) -> Verdict:
    errors = [rows.features @ c.beta / rows.seconds - 1 for c in (prior, fitted)]
    return calibrate.judge(where, *errors)


def _records(table: pd.DataFrame) -> list[dict[Hashable, object]]:
    return table.astype(object).where(table.notna(), None).to_dict("records")


# Calibration of beta, a server's coefficients of step time, to the step times from ``pinn
# measure``.
#
# Each batch is one row: the median of its repeated steps. Its noise is the standard error of the
# median plus an error that no coefficient explains. The scale of this unexplained error is fitted
# by type-II maximum likelihood: it maximizes the evidence of all rows under the prior.

#: Candidates for the relative standard deviation of step times that no coefficient explains.
_SCALES = np.array([0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2])

#: Number of cross-validation folds of the measured batches.
_PARTS = 5

#: Flags that set the size of the KV cache. If one of them is given, the cache size says nothing
#: about other flags.
_CACHE_SIZES = {"--kv-cache-memory-bytes", "--num-gpu-blocks-override"}

#: Residual, in standard deviations, from which on Tukey's biweight is 0 (95 % efficient for normal
#: noise).
_BEYOND = 4.685

Rows = Float[np.ndarray, " batches"]


@dataclass(frozen=True)
class StepCalibration(ServerCalibration):
    """Calibration of step coefficients (beta) to measured step times; alpha stays unchanged.

    Attributes:
        steps: Measured batches, each with its median step time.
    """

    steps: MeasuredSteps

    def predictions(self) -> tuple[Rows, Rows]:
        """Return the predicted step time of each batch in seconds, before and after calibration."""
        features = measured_features(self.steps, self.deployment, self.prior.beta)
        return features @ self.prior.mean, features @ self.posterior.mean


def measured_features(
    steps: MeasuredSteps, deployment: Deployment, beta: Float[np.ndarray, " step_features"]
) -> Float[np.ndarray, "batches coefficients"]:
    """Return the features of measured batches for all coefficients.

    A step takes the longer of kernel launching and GPU work according to ``beta``; features of the
    shorter one are 0.
    """
    sums = steps.sums(deployment.model.window_tokens)
    return all_features(overlapped(padded_features(deployment, sums), beta))


def fit_steps(
    prior: Prior, features: Float[np.ndarray, "batches coefficients"], seconds: Rows, error: Rows
) -> tuple[Posterior, float]:
    """Fit coefficients to median step times.

    Args:
        prior: Coefficients before the fit.
        features: Step features of each batch.
        seconds: Median step time of each batch, seconds.
        error: Relative standard error of each median.

    Returns:
        The posterior, and the relative standard deviation of the error that no coefficient
        explains.
    """
    weight = np.ones(len(seconds))
    for _ in range(2):
        scale = _unexplained(prior, features, seconds, error / np.sqrt(weight))
        noise = np.hypot(error, scale)
        found = posterior.fit_posterior(prior, features, seconds, noise / np.sqrt(weight))
        away = (features @ found.mean / seconds - 1) / noise
        weight = np.maximum(1 - (away / _BEYOND) ** 2, 1e-3) ** 2
    return found, scale


def _unexplained(
    prior: Prior, features: Float[np.ndarray, "batches coefficients"], seconds: Rows, error: Rows
) -> float:
    """Return the most likely relative standard deviation of errors that no coefficient explains.

    The unexplained error is the part of step times that no choice of coefficients can fit.
    """
    relative = features / seconds[:, None]
    residual = relative @ prior.mean - 1
    spread = relative @ prior.covariance @ relative.T

    def improbable(scale: float) -> float:
        root = np.linalg.cholesky(spread + np.diag(error**2 + scale**2))
        return float(np.sum(np.linalg.solve(root, residual) ** 2) + 2 * np.log(np.diag(root)).sum())

    return float(min(_SCALES, key=improbable))


def calibrate_steps(steps: MeasuredSteps, deployment: Deployment, prior: Prior) -> StepCalibration:
    """Fit beta to measured step times, and evaluate fits with a fifth of the batches held out."""
    features = measured_features(steps, deployment, prior.beta)
    fitted, scale = fit_steps(prior, features, steps.seconds, steps.error)
    held = steps.rows[["num_decode_requests", "sum_decode_kv_tokens"]].mean()
    decodes, context = held.to_numpy(float)
    each = context / decodes if decodes else 0.0
    quantities = [
        *posterior.step_quantities(deployment, prior, fitted, decodes, each),
        *posterior.scalar_quantities(prior, fitted, features),
    ]
    verdicts = _left_out(steps, features, prior)
    sources = [{"path": steps.name, "sha256": steps.report.sha256}]
    facts: dict[str, Any] = {"sources": sources, "used": len(steps), "noise": scale}
    sums = steps.sums(deployment.model.window_tokens)
    facts["loads"] = {"requests_in_flight": range_of(sums.requests)}
    return StepCalibration(deployment, prior, fitted, quantities, verdicts, facts, steps)


def _left_out(
    steps: MeasuredSteps, features: Float[np.ndarray, "batches coefficients"], prior: Prior
) -> list[Verdict]:
    part = np.arange(len(steps)) % _PARTS
    if len(steps) < _PARTS:
        return []
    noise = np.where(steps.rows["num_prefill_requests"] > 0, TTFT_NOISE, TIME_NOISE)
    before, before_spread = features @ prior.mean, np.hypot(prior.spread(features), noise)
    after, after_spread = before.copy(), before_spread.copy()
    for number in range(_PARTS):
        out = part == number
        found, scale = fit_steps(prior, features[~out], steps.seconds[~out], steps.error[~out])
        after[out] = features[out] @ found.mean
        beside = np.maximum(noise[out], scale)
        after_spread[out] = np.hypot(found.spread(features[out]), beside)
    ratios, spreads = [before / steps.seconds, after / steps.seconds], [before_spread, after_spread]
    return judgements("each fifth of the batches, held out", ratios, spreads)


def check_steps(
    steps: MeasuredSteps, deployment: Deployment, coefficients_of: CoefficientsOf
) -> list[str]:
    """Return findings about measured engine settings that contradict the user's flags."""
    found = []
    limits, recipe = steps.facts.at("limits"), deployment.recipe
    seats = ("max_num_seqs", recipe.max_requests, "--max-num-seqs")
    budget = ("budget", recipe.token_budget, "--max-num-batched-tokens")
    for name, got, option in (seats, budget):
        if name in limits and limits.count(name) != got:
            ran = f"{option} {limits.count(name)}"
            found.append(
                f"the measured engine ran with {ran}, but the flags are {got}: did you mean {ran}?"
            )
    asked = {word.partition("=")[0] for word in steps.facts.texts("flags")}
    blocks = steps.facts.count("kv_blocks")
    if blocks and not asked & _CACHE_SIZES:
        found += check_kv_blocks(blocks, deployment)

    def ratio(other: Deployment) -> float:
        beta = coefficients_of(other).beta[0]
        features = measured_features(steps, other, beta)[:, : len(STEP_FEATURES)]
        return float(np.median(steps.seconds / (features @ beta)))

    return [*found, *check_speed(ratio, deployment, "steps take")]
