"""Calibration of the request coefficients (alpha) to the times of request events in a server.

Alpha are the coefficients of a request's time outside engine steps, beta those of step times. A
request journey is the record of the times of a request's events. A phase is the time between two
events. The measured time of a phase is linear in its alphas, in the wait for a step in flight and,
for the first token, in beta:

    seconds = alpha . features + share x step_in_flight + beta . prompt_steps + noise

where alpha and beta are seconds per unit of a feature, ``features`` are the request's features,
``step_in_flight`` is the duration in seconds of the step running when the phase begins, ``share``
is the fraction of this step for which the phase waits, and ``prompt_steps`` are the summed features
of the steps that compute the prompt.

The shares are fitted together with alpha, so that waiting is not attributed to a constant. The
fitted shares are then dropped, because a simulation reproduces these waits itself. For the same
reason ``queue_to_schedule`` is fitted only to requests that did not queue.

The remaining time of a step in flight is uniformly distributed, with standard deviation step /
sqrt(12). Residuals beyond this noise are weighted by Tukey's biweight, because server stalls are
not caused by a request. Journeys do not change beta. The uncertainty of beta is part of alpha's
error.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from pinn.calibration.calibrate import PARTS, Verdict, judge
from pinn.calibration.posterior import Posterior, fit_posterior
from pinn.calibration.prior import Prior
from pinn.calibration.requests import MIN_REQUESTS, PHASES, RequestRows
from pinn.surrogate.request_features import REQUEST_FEATURES, phase_mask
from pinn.surrogate.step_features import STEP_FEATURES

#: Mean and standard deviation of the time that an arriving request waits for the running step, as a
#: fraction of that step. The fraction is uniform from 0 to 1, so these are 1/2 and 1 / sqrt(12).
_WAIT, _WAIT_SPREAD = 0.5, 12**-0.5
#: Assumed standard deviation of the time between a request's scheduling and the first step of its
#: prompt, as a fraction of a step. The mean is 0, or 1 if steps are scheduled ahead.
_SHARE_SPREAD = 0.1
#: Constants of the robust fit. ``_MEDIAN_SQUARE``: median of squared standard normal noise.
#: ``_BEYOND``: residual, in standard deviations, from which on Tukey's biweight is 0 (95 %
#: efficient for normal noise). ``_NONE``: small number that replaces 0 in divisions.
_MEDIAN_SQUARE, _BEYOND, _NONE = 0.455, 4.685, 1e-6
#: Prefix of the names of verdicts on a trace's later requests, which are held out of the fit. A
#: verdict states how the calibration changes the error of one phase of these requests.
LATER_REQUESTS = "later requests"
#: Minimum standard deviation of a phase's noise, in seconds: the clock resolution of request traces
#: (journeys).
_LEAST_S = 1e-6
#: The prior of a request coefficient (alpha) is widened if the fitted value is more than this many
#: standard deviations from it.
_FAR = 2.0
#: ``_ROUNDS``: number of iterations of the robust fit, each of which updates the weights and the
#: noise. ``_BLOCKS``: number of time blocks of a run; residuals within a block are assumed to be
#: correlated.
_ROUNDS, _BLOCKS = 8, 20

_BETA = len(STEP_FEATURES)
#: Standard deviation of a phase's wait for the running step, as a fraction of that step, by phase.
_SHARES = {"arrival_to_queue": _WAIT_SPREAD, "schedule_to_first_token": _SHARE_SPREAD}

Rows = Float[np.ndarray, " requests"]
Design = Float[np.ndarray, "requests coefficients"]


@dataclass(frozen=True)
class AlphaCalibration:
    """Result of calibrating alpha, the coefficients of a request's time outside engine steps.

    A phase is the time between two events of a request's journey, such as its arrival and queueing.

    Attributes:
        prior: Coefficients (alpha and beta) before the fit to journeys. Beta, the coefficients of
            step times, is already calibrated.
        posterior: Coefficients after the fit to journeys.
        taught: Mask of the alphas that were fitted to journeys, ``[n alphas]``. All other alphas
            keep their prior values.
        waits: Fraction of the running step that a request waits for, by phase. The fractions are
            fitted together with alpha.
        errors: Errors of the predicted time of each phase, see :func:`phase_errors`.
        verdicts: For each phase whose fit is used: change in the error on later requests, which
            were held out of the fit.
        worse: For each phase whose fit is not used because this error grew: change in the error.
    """

    prior: Prior
    posterior: Prior
    taught: Bool[np.ndarray, " features"]
    waits: dict[str, float]
    errors: pd.DataFrame
    verdicts: tuple[Verdict, ...]
    worse: tuple[Verdict, ...]


def calibrate_alpha(rows: RequestRows, before: Prior) -> AlphaCalibration:
    """Fit alpha, phase by phase, to the requests in the first 60 % of a run's time.

    A phase keeps its prior if it has fewer than ``MIN_REQUESTS`` requests, or if the fit predicts
    later requests less accurately than the prior.

    Args:
        rows: Requests of a run with complete journeys.
        before: Alpha and beta before the fit, with beta calibrated to step times.
    """
    after, taught, waits = before, np.zeros(len(REQUEST_FEATURES), dtype=bool), _prior_waits(rows)
    verdicts, worse = list[Verdict](), list[Verdict]()
    for phase in PHASES:
        design, seconds, known = _measured(rows, phase, before)
        train = known & (rows.part == 0)
        if train.sum() < MIN_REQUESTS:
            continue
        prior = _of_phase(before, phase, waits[phase])
        found = _fit(prior, design[train], seconds[train], _noise_floor(rows, phase)[train])
        later = known & (rows.part > 0)
        if later.any():
            verdict = _judged(phase, seconds[later], design[later], prior, found)
            (worse if verdict.is_worse else verdicts).append(verdict)
            if verdict.is_worse:
                continue
        mine = phase_mask(phase) > 0
        waits[phase] = float(found.mean[-1])
        learned = mine & (np.diag(before.covariance)[_BETA:] > 0)
        taught |= learned
        after = _with_phase(after, found, _BETA + np.flatnonzero(learned))
    errors = phase_errors(rows, before, after.alpha, waits)
    return AlphaCalibration(before, after, taught, waits, errors, tuple(verdicts), tuple(worse))


def _prior_waits(rows: RequestRows) -> dict[str, float]:
    """Return the expected share of the running step for which a request waits, by phase."""
    ahead = float(rows.is_ahead.any())
    expected = {"arrival_to_queue": _WAIT, "schedule_to_first_token": ahead}
    return {phase: expected.get(phase, 0.0) for phase in PHASES}


def _waited_s(rows: RequestRows, phase: str) -> Rows:
    """Return the duration of the running step that each request waits for in a phase, in seconds.

    The durations are 0 in a phase without such a wait.
    """
    return rows.waits.get(phase, np.zeros(len(rows)))


def _measured(
    rows: RequestRows, phase: str, before: Prior
) -> tuple[Design, Rows, Bool[np.ndarray, " requests"]]:
    """Return the features and measured times of requests in a phase, and which requests are usable.

    The last feature is the duration of the running step, for part of which the phase waits.
    """
    first = phase == "schedule_to_first_token"
    own = rows.own_steps * first
    design = np.column_stack([own, rows.features * phase_mask(phase), _waited_s(rows, phase)])
    seconds = rows.targets[phase] + own @ before.beta
    known = np.isfinite(seconds)
    if phase == "queue_to_schedule":
        known &= ~rows.met_queue
    return design, seconds, known


def _noise_floor(rows: RequestRows, phase: str) -> Rows:
    """Return the standard deviation in seconds of the wait for the step that runs on arrival.

    For phases other than ``arrival_to_queue``, the result is the clock's resolution.
    """
    in_flight = _waited_s(rows, phase) * (phase == "arrival_to_queue")
    return np.maximum(in_flight / np.sqrt(12), _LEAST_S)


def _of_phase(before: Prior, phase: str, share: float) -> Prior:
    """Return the prior of a phase's parameters: its alphas, then its share of the running step.

    Errors of different alphas are treated as independent. With a wrong correlation, a well-known
    alpha would determine a poorly known one.
    """
    variance = np.append(np.diag(before.covariance), _SHARES.get(phase, 0.0) ** 2)
    covariance = np.diag(variance)
    covariance[:_BETA, :_BETA] = before.covariance[:_BETA, :_BETA]
    return Prior(np.append(before.mean, share), covariance)


def _fit(prior: Prior, design: Design, seconds: Rows, floor: Rows) -> Posterior:
    """Return the posterior of a phase's alphas, with noise and outlier weights from residuals."""
    one, weight = np.ones(len(seconds)), np.ones(len(seconds))
    wide, residual = prior, seconds - design @ prior.mean
    for _ in range(_ROUNDS):
        beyond = np.median(residual**2 - _MEDIAN_SQUARE * floor**2) / _MEDIAN_SQUARE
        noise = np.sqrt(max(beyond, 0.0) + floor**2)
        weight = np.maximum(1 - (residual / (_BEYOND * noise)) ** 2, _NONE) ** 2
        found = fit_posterior(wide, design, one, noise / np.sqrt(weight), 1 - seconds)
        wide, residual = _widened(prior, found.mean, design), seconds - design @ found.mean
    blocks = np.array_split(weight * residual / noise, min(_BLOCKS, len(seconds)))
    shared = np.sqrt(np.mean([block.sum() ** 2 / len(block) for block in blocks]))
    return fit_posterior(wide, design, one, max(shared, 1.0) * noise / np.sqrt(weight), 1 - seconds)


def _widened(prior: Prior, mean: np.ndarray, design: Design) -> Prior:
    """Widen the prior of alphas that the measured journeys contradict.

    Otherwise a wrong prior would bias its alpha, and other alphas would compensate for the bias.
    """
    move = mean - prior.mean
    far = np.abs(move) > _FAR * np.sqrt(np.diag(prior.covariance))
    far &= design.any(axis=0) & (np.arange(len(move)) >= _BETA) & (np.diag(prior.covariance) > 0)
    return Prior(prior.mean, prior.covariance + np.diag(np.where(far, move**2, 0.0)))


def _with_phase(after: Prior, found: Posterior, at: Int[np.ndarray, " k"]) -> Prior:
    """Replace the coefficients of one phase in ``after`` with the fitted ones."""
    mean, covariance = after.mean.copy(), after.covariance.copy()
    mean[at] = found.mean[at]
    covariance[at, :] = covariance[:, at] = 0.0
    covariance[np.ix_(at, at)] = found.covariance[np.ix_(at, at)]
    return Prior(mean, covariance)


def _judged(phase: str, seconds: Rows, design: Design, prior: Prior, found: Posterior) -> Verdict:
    """Return the change in a phase's mean error on later requests, which were held out."""
    scale = max(float(np.mean(np.abs(seconds))), _LEAST_S)
    errors = [(design @ c.mean - seconds) / scale for c in (prior, found)]
    return judge(f"{LATER_REQUESTS}, {phase}", *errors)


def phase_errors(
    rows: RequestRows,
    before: Prior,
    calibrated: Float[np.ndarray, " features"],
    waits: dict[str, float],
) -> pd.DataFrame:
    """Return errors of the predicted time of each phase in the last 20 % of a run's time.

    Args:
        rows: Requests of a run with complete journeys.
        before: Coefficients before the fit to journeys, with beta calibrated to step times.
        calibrated: Alpha after the fit to journeys, in seconds per unit of a feature.
        waits: Share of the running step that requests wait for, by phase, fitted together with
            alpha.

    Returns:
        Columns ``phase``, ``method`` (before, calibrated), ``n`` (requests), ``median_s`` (median
        measured seconds) and ``error_s`` (median absolute error).
    """
    sides = {"before": (before.alpha, _prior_waits(rows)), "calibrated": (calibrated, waits)}
    table = []
    for phase in PHASES:
        seconds = rows.targets[phase]
        known = _measured(rows, phase, before)[2]
        test = known & (rows.part == PARTS.index("last 20 %"))
        if (known & (rows.part == 0)).sum() < MIN_REQUESTS or not test.any():
            continue
        for name, (alpha, shares) in sides.items():
            waited = shares[phase] * _waited_s(rows, phase)
            error = np.abs(rows.features @ (alpha * phase_mask(phase)) + waited - seconds)
            medians = (float(np.median(values[test])) for values in (seconds, error))
            table.append((phase, name, int(test.sum()), *medians))
    return pd.DataFrame(table, columns=["phase", "method", "n", "median_s", "error_s"])
