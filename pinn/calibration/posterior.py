"""Posterior of a calibration: its intervals, and which parameters are well constrained."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float

from pinn.calibration.prior import SCALARS, Prior, all_features, prior_of_set
from pinn.engines.deployment import Deployment
from pinn.measurements import estimate
from pinn.physics.batch_sums import uniform_sums
from pinn.physics.costs import step_costs
from pinn.specs.batch import parse_batch
from pinn.surrogate.coefficient_set import CoefficientSet
from pinn.surrogate.coefficients import NAMES
from pinn.surrogate.evidence import Evidence, file_evidence
from pinn.surrogate.step_features import STEP_FEATURES, overlapped, step_features
from pinn.surrogate.surrogate import batch_features
from pinn.surrogate.uncertainty.distance import REFERENCE_BATCH
from pinn.surrogate.uncertainty.intervals import around
from pinn.surrogate.uncertainty.quantiles import LEVEL, NORMAL_QUANTILE

#: Ratio of a factor's standard errors after and before a calibration above which the calibration
#: did not constrain the factor.
_HARDLY_SMALLER = 0.8

# Errors of the model of benchmark metrics, defined here because this module does not import the
# simulator.

#: Relative standard deviation of the error that coefficients cannot explain: 0.09 for TTFT and 0.03
#: for all other times. With these values, 90 % intervals cover 90 % of the held-out rows of
#: measured deployments (scripts/score_calibration.py).
TIME_NOISE, TTFT_NOISE = 0.03, 0.09


# Posterior of the coefficients: Laplace's approximation around the most probable values.
#
# For given batches, every predicted time is linear in the coefficients c: x . c + offset, where x
# are the features and ``offset`` is in seconds. ``pinn.measurements.estimate`` minimizes the
# relative errors (x . c + offset) / seconds - 1, where ``seconds`` is the measured time.

#: Degrees of freedom of Student's t for residuals of unknown scale. The value is low, because
#: stalls and partly observed windows deviate by large factors. On the validation part of a
#: published trace (20 % of its time, between calibration and test), errors are smaller with 1
#: degree than with 3 degrees or Huber's weights.
_DEGREES = 1.0
#: ``_NOISE``: prior value of the relative noise scale. ``_NOISE_ROWS``: weight of this prior, as a
#: number of residuals. Both are assumptions.
_NOISE, _NOISE_ROWS = 0.02, 5.0
#: Measurements with a leverage up to this multiple of the median keep their full weight.
_USUAL = 1.5
#: Number of iterations that update the measurements' weights and the noise scale.
_ROUNDS = 12

Vector = Float[np.ndarray, " coefficients"]
Rows = Float[np.ndarray, " rows"]
Design = Float[np.ndarray, "rows coefficients"]
Alphas = Bool[np.ndarray, " request_features"]


@dataclass(frozen=True)
class Posterior(Prior):
    """Coefficients after a calibration, which serve as the prior of the next calibration.

    Attributes:
        noise: Relative standard deviation of each fitted measurement's noise.
    """

    noise: Rows


def fit_posterior(
    prior: Prior,
    features: Design,
    seconds: Rows,
    noise: Rows | None = None,
    offset: Rows | float = 0.0,
) -> Posterior:
    """Fit coefficients to measurements and return their posterior.

    Args:
        prior: Coefficients before the fit.
        features: Features of each measurement for all coefficients.
        seconds: Measured time of each measurement, in seconds.
        noise: Relative standard deviation of each measurement's normal noise; None to estimate one
            scale of Student's t from the residuals.
        offset: Time in seconds of each measurement, in addition to features x coefficients.
    """
    matrix = features / seconds[:, None]
    target = (seconds - offset) / seconds
    lower, upper = prior.lower, np.full(len(prior.mean), np.inf)
    if noise is not None:
        at_once = estimate.LinearRows(matrix, target, noise)
        problem = estimate.Problem(prior, lower, upper, lambda _: at_once)
        mean = estimate.most_probable(problem, prior.mean)
        return Posterior(mean, estimate.laplace_covariance(prior, matrix, noise), noise)
    free = prior.free
    trust = _trust(matrix[:, free] * prior.scale, prior.root)
    student = _Student(matrix, target, trust)
    problem = estimate.Problem(prior, lower, upper, student.rows_at)
    mean = estimate.most_probable(problem, prior.mean, _ROUNDS)
    student.update(mean)
    size = np.full(len(seconds), student.scale)
    told = size / np.sqrt(trust * (_DEGREES + 1) / (_DEGREES + 3))
    return Posterior(mean, estimate.laplace_covariance(prior, matrix, told), size)


class _Student:
    """Student's t noise of measured times, scaled by EM (Lange, Little and Taylor 1989)."""

    def __init__(self, matrix: Design, target: Rows, trust: Rows) -> None:
        self.matrix, self.target, self.trust = matrix, target, trust
        self.scale, self.weight = _NOISE, trust
        self._is_first = True

    def rows_at(self, coefficients: Vector) -> estimate.LinearRows:
        """Return the weighted measurements for the next iteration of the fit.

        The weights depend on residuals at these coefficients; in the first call, only on leverage.
        """
        if not self._is_first:
            self.update(coefficients)
        self._is_first = False
        return estimate.LinearRows(self.matrix, self.target, self.scale / np.sqrt(self.weight))

    def update(self, coefficients: Vector) -> None:
        """Update measurements' weights and the noise scale from residuals at ``coefficients``."""
        residual = self.matrix @ coefficients - self.target
        self.weight = self.trust * (_DEGREES + 1) / (_DEGREES + (residual / self.scale) ** 2)
        known = self.weight @ residual**2 + _NOISE_ROWS * _NOISE**2
        self.scale = float(np.sqrt(known / (self.trust.sum() + _NOISE_ROWS)))


def _trust(matrix: Float[np.ndarray, "rows free"], root: Float[np.ndarray, "free free"]) -> Rows:
    """Return weights of measurements, below 1 for those that strongly affect the fit (Mallows).

    The fit follows measurements with high leverage, so their residuals do not reveal whether they
    are wrong. Windows (intervals of several steps) with unusual batches are also the least certain
    measurements.
    """
    said = np.linalg.norm(np.linalg.solve(root.T, matrix.T), axis=0)
    return np.minimum(1.0, _USUAL * np.median(said) / np.maximum(said, np.finfo(float).tiny)) ** 2


# Intervals of a calibrated server, from the posterior and from the error that no coefficient
# explains.


def posterior_step_half_widths(
    found: CoefficientSet, deployment: Deployment, batches: Sequence[str]
) -> Float[np.ndarray, " batches"]:
    """Return half-widths of 90 % intervals of log step times, from a coefficient file's posterior.

    Args:
        found: Coefficients with a covariance.
        deployment: Deployment that runs the steps.
        batches: Batches in the notation of the command line, such as ``32 decode @ 700``.
    """
    return step_half_widths(prior_of_set(found), deployment, batches)


def step_half_widths(
    known: Prior, deployment: Deployment, batches: Sequence[str]
) -> Float[np.ndarray, " batches"]:
    """Return half-widths of 90 % intervals of log step times; arguments as above.

    ``known`` has the coefficients with their covariance.
    """
    parsed = [parse_batch(text) for text in batches]
    features = overlapped(batch_features(deployment, parsed), known.beta)
    spread = known.spread(all_features(features))
    noise = [TTFT_NOISE if any(batch.is_prefill) else TIME_NOISE for batch in parsed]
    return NORMAL_QUANTILE * np.hypot(spread, noise)


def server_half_widths(
    found: CoefficientSet, deployment: Deployment, batch: str
) -> tuple[float, float]:
    """Return half-widths of 90 % intervals of log step time and of log TTFT below saturation.

    The half-width of TTFT is that of a prompt's step time, or that of the file's held-out TTFTs if
    it is larger.

    Args:
        found: Coefficients with a covariance.
        deployment: Deployment of the server.
        batch: Batch whose step time is predicted, in the notation of the command line.
    """
    step, prompt = posterior_step_half_widths(found, deployment, [batch, _PROMPT]).tolist()
    return step, max(prompt, _half_width(held_out_ttft_errors(found)))


def _half_width(errors: Float[np.ndarray, " n"]) -> float:
    """Return the half-width of the 90 % interval of a further error of mean 0; 0 without errors."""
    if not len(errors):
        return 0.0
    from scipy.special import stdtrit  # import only when needed, because scipy is slow to load

    quantile = float(stdtrit(len(errors), (1 + LEVEL) / 2))
    return quantile * float(np.sqrt(np.mean(errors**2)))


def percentile_half_widths(found: CoefficientSet, name: str) -> dict[str, float]:
    """Return half-widths of 90 % intervals of log percentiles, from a calibration's held-out loads.

    Args:
        found: Calibrated coefficients.
        name: Percentile, such as ``p99``.

    Returns:
        Half-width by metric, such as ``ttft``; metrics without held-out measurements are omitted.
    """
    errors: dict[str, list[float]] = {}
    for row in found.calibration.get("held_out_percentiles") or ():
        metric, statistic, _ = row["figure"].split("_")
        if statistic == name:
            errors.setdefault(metric, []).append(np.log(row["after"] / row["measured"]))
    return {metric: _half_width(np.array(each)) for metric, each in errors.items()}


def held_out_ttft_errors(found: CoefficientSet) -> Float[np.ndarray, " n"]:
    """Return log ratios of predicted to measured TTFT for the held-out loads of a calibration."""
    rows = found.calibration.get("held_out") or ()
    ratios = [e["after"] / e["measured"] for e in rows if e["figure"].startswith("ttft")]
    return np.log(np.array(ratios, float))


def ttft_sentence(found: CoefficientSet) -> str:
    """Return a sentence about the held-out TTFTs behind the TTFT interval of a calibration."""
    errors = held_out_ttft_errors(found)
    if not len(errors):
        return "The TTFT interval was not checked, because the calibration has no held-out TTFTs."
    size = 100 * float(np.median(np.abs(np.expm1(errors))))
    return (
        f"The TTFT interval accounts for the errors of {len(errors)} held-out TTFTs (median "
        f"APE {size:.1f} %)."
    )


def trust_sentences(found: CoefficientSet) -> str:
    """Return sentences about a calibration: held-out TTFTs, what it did not measure, its warnings.

    It did not measure a calibration factor if the factor's standard error hardly decreased.
    """
    factors = [each for each in found.calibration.get("quantities") or () if each["unit"] == "x"]
    kept = [
        each["name"]
        for each in factors
        if each["after_error"] > _HARDLY_SMALLER * each["before_error"]
    ]
    sentences = [ttft_sentence(found)]
    if kept:
        sentences.append(
            f"The measurements barely constrain these calibration factors: {', '.join(kept)}."
        )
    return " ".join([*sentences, *(found.calibration.get("warnings") or ())])


#: Batch for which the interval of the TTFT is computed.
_PROMPT = "1 prefill 2048 @ 0"


def posterior_evidence(
    found: CoefficientSet, deployment: Deployment, batches: Sequence[str]
) -> Evidence:
    """Return the intervals of calibrated coefficients and of the step times of batches.

    A coefficient with a variance of 0 has no interval. The interval of a step time does not extend
    below the roofline lower bound.

    Args:
        found: Calibrated coefficients.
        deployment: Deployment of the coefficients.
        batches: Batches whose step times are predicted, in the notation of the command line.
    """
    known = prior_of_set(found)
    half = NORMAL_QUANTILE * np.sqrt(np.diag(known.covariance))
    low, high = np.maximum(known.mean - half, known.lower).tolist(), (known.mean + half).tolist()
    halves = posterior_step_half_widths(found, deployment, batches) if batches else ()
    step, ttft = server_half_widths(found, deployment, REFERENCE_BATCH)
    source = file_evidence(found)
    return replace(
        source,
        distance={"sentence": f"{source.sentence} {trust_sentences(found)}"},
        level=LEVEL,
        usual={"tpot": around(1.0, step), "ttft": around(1.0, ttft)},
        coefficient_ends={NAMES[i]: (low[i], high[i]) for i in np.flatnonzero(half > 0)},
        step_ends=[around(1.0, float(half)) for half in halves],
        reference=REFERENCE_BATCH,
    )


# Parameters that a calibration determines: calibration factors and sums of coefficients.
#
# Single coefficients are seldom well constrained, because their features are correlated at the
# measured loads. Sums are well constrained: the cost of a step, of a request in it and of a context
# token, and the time of a request outside its steps.

#: Additional context tokens of each request in a step, for computing the cost of one context token.
_MORE_TOKENS = 64.0

CoefficientRows = Float[np.ndarray, "n coefficients"]


@dataclass(frozen=True)
class Quantity:
    """Parameter of a server (a sum of coefficients) before and after a calibration.

    Attributes:
        name: Name of the parameter.
        unit: Unit of the parameter: ``x`` for a factor on the value before calibration, else
            seconds per unit of a feature.
        before: Value before the calibration.
        before_error: Standard error of the value before the calibration.
        after: Value after the calibration.
        after_error: Standard error of the value after the calibration.
    """

    name: str
    unit: str
    before: float
    before_error: float
    after: float
    after_error: float

    @property
    def is_determined(self) -> bool:
        """Return whether the parameter's standard error is below a tenth of its value."""
        return bool(self.after_error < 0.1 * self.after)

    @property
    def drift(self) -> float:
        """Return the parameter's change by calibration, in units of its prior standard error."""
        return (self.after - self.before) / self.before_error if self.before_error else 0.0


def scalar_quantities(
    prior: Prior, posterior: Posterior, features: CoefficientRows
) -> list[Quantity]:
    """Return the change of each calibration factor that the measurements constrain.

    Args:
        prior: Coefficients before the calibration.
        posterior: Coefficients after the calibration.
        features: Features of each measurement for all coefficients.
    """
    found = []
    for scalar, group in SCALARS.items():
        sums = np.where(np.isin(NAMES, group), features.sum(axis=0), 0.0)
        base = float(sums @ prior.mean)
        if base > 0:
            found += _quantities([(scalar, "x")], sums[None] / base, prior, posterior)
    return found


def step_quantities(
    deployment: Deployment, prior: Prior, posterior: Posterior, requests: float, context: float
) -> list[Quantity]:
    """Return a decode step's parameters: fixed time, time per request and per context token.

    If kernel launching takes longer than GPU work in a mean step, only launching is included, else
    only GPU work.

    Args:
        deployment: Deployment that was measured.
        prior: Coefficients before the calibration.
        posterior: Coefficients after the calibration.
        requests: Number of decodes of the mean step.
        context: Mean context of these decodes, in tokens.
    """
    requests, context = max(requests, 1.0), max(context, 1.0)
    sums = uniform_sums(
        decode_requests=np.array([requests, requests + 1, requests]),
        decode_context=np.array([context, context, context + _MORE_TOKENS]),
        window=deployment.model.window_tokens,
    )
    steps = step_features(step_costs([deployment]), sums)
    at, more, longer = np.where(overlapped(steps[0], prior.beta) == steps[0], steps, 0.0)
    per_token = (longer - at) / (_MORE_TOKENS * requests)
    per_request = more - at - context * per_token
    once = at - requests * (per_request + context * per_token)
    vectors = np.stack([once, per_request, per_token])
    held = np.flatnonzero(vectors.any(axis=1))
    parts = [_STEP_PARTS[i] for i in held]
    return _quantities(parts, all_features(vectors[held]), prior, posterior)


def request_quantities(
    prior: Prior, posterior: Prior, prompt_tokens: float, taught: Alphas
) -> list[Quantity]:
    """Return the time of a request outside engine steps as parameters, one per measured phase.

    Args:
        prior: Coefficients before the calibration.
        posterior: Coefficients after the calibration.
        prompt_tokens: Mean length of the prompts, in tokens.
        taught: Whether each alpha was fitted to measured requests, ``[n alphas]``.
    """
    seen = np.append(np.zeros(len(STEP_FEATURES), bool), taught)
    found = []
    for part, features in _REQUEST_PARTS.items():
        at = [NAMES.index(f"alpha.{name}") for name in features]
        if seen[at].all():
            vector = np.zeros((1, len(NAMES)))
            vector[0, at] = (1.0, prompt_tokens)[: len(at)]
            found += _quantities([part], vector, prior, posterior)
    return found


def _quantities(
    parts: Sequence[tuple[str, str]], vectors: CoefficientRows, prior: Prior, posterior: Prior
) -> list[Quantity]:
    """Return parameters: the products of vectors with the coefficients before and after a fit."""
    columns = [e for c in (prior, posterior) for e in (vectors @ c.mean, c.deviation(vectors))]
    rows = zip(parts, *columns, strict=True)
    return [Quantity(*part, *map(float, values)) for part, *values in rows]


#: Request coefficients (alphas) whose sum is a request parameter, by the parameter's name and unit.
#: The second alpha is multiplied by the number of prompt tokens.
_REQUEST_PARTS = {
    ("time until a request is queued", "s"):
        ("arrival_to_queue.constant", "arrival_to_queue.prompt_token"),
    ("each of its prompt tokens", "s/token"): ("arrival_to_queue.prompt_token",),
    ("its scheduling", "s"): ("queue_to_schedule.constant",),
    ("its first token, outside steps", "s"): ("schedule_to_first_token.constant",),
    ("each streamed token", "s/token"): ("output_token.constant",),
    ("its completion", "s"): ("completion.constant",),
}  # fmt: skip

#: Names and units of the parameters of a decode step's time.
_STEP_PARTS = (
    ("a decode step, fixed part", "s"),
    ("each request in it", "s/request"),
    ("each token of context", "s/token"),
)
