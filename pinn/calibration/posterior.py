"""The posterior of a calibration: intervals, and which parameters are constrained."""

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
from pinn.surrogate.surrogate import batch_work
from pinn.surrogate.uncertainty.distance import REFERENCE_BATCH
from pinn.surrogate.uncertainty.intervals import around
from pinn.surrogate.uncertainty.quantiles import LEVEL, NORMAL_QUANTILE

# How far figures of a benchmark are from any coefficients; apart, as it needs no simulator.

#: Relative standard deviation of what the coefficients cannot explain of a figure: those whose 90 %
#: intervals do best on other rows of measured deployments (scripts/score_calibration.py).
TIME_NOISE, TTFT_NOISE = 0.03, 0.09


# Coefficients after measurements: Laplace's approximation around the most probable ones.
#
# Every measurement is linear in the coefficients c, given its batches: x . c + offset seconds, with
# relative errors r = (x . c + offset) / seconds - 1. ``pinn.measurements.estimate`` minimizes.

#: Degrees of freedom of Student's t for residuals whose scale is unknown: stalls and windows of
#: which only the ends are known miss by factors. Chosen on the 20 % of the public run's time
#: between calibration and test among 1, 3 and Huber's weights.
_DEGREES = 1.0
#: Scale of the noise before any residual, and how many residuals that counts as: assumptions.
_NOISE, _NOISE_ROWS = 0.02, 5.0
#: Up to how many times the median a row may say something of the coefficients and count in full.
_USUAL = 1.5
#: Rounds of weights and scale: numerical.
_ROUNDS = 12

Vector = Float[np.ndarray, " coefficients"]
Rows = Float[np.ndarray, " rows"]
Design = Float[np.ndarray, "rows coefficients"]
Alphas = Bool[np.ndarray, " request_features"]


@dataclass(frozen=True)
class Posterior(Prior):
    """Coefficients after a calibration: the prior of the next one.

    Attributes:
        noise: Relative scale of a measurement's noise, of each row.
    """

    noise: Rows


def fit_posterior(
    prior: Prior,
    features: Design,
    seconds: Rows,
    noise: Rows | None = None,
    offset: Rows | float = 0.0,
) -> Posterior:
    """Fit coefficients to measurements.

    Args:
        prior: Before them.
        features: Features of each measurement.
        seconds: Measured.
        noise: Relative standard deviation of each, normal; None to learn a common scale of
            Student's t from the residuals.
        offset: What each holds beside features x coefficients.
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
    """Student's t with a scale that the residuals tell: EM of Lange, Little and Taylor (1989)."""

    def __init__(self, matrix: Design, target: Rows, trust: Rows) -> None:
        self.matrix, self.target, self.trust = matrix, target, trust
        self.scale, self.weight = _NOISE, trust
        self._is_first = True

    def rows_at(self, coefficients: Vector) -> estimate.LinearRows:
        """Return rows weighted by their residuals; in the first round by their leverage alone."""
        if not self._is_first:
            self.update(coefficients)
        self._is_first = False
        return estimate.LinearRows(self.matrix, self.target, self.scale / np.sqrt(self.weight))

    def update(self, coefficients: Vector) -> None:
        """Update weights and scale."""
        residual = self.matrix @ coefficients - self.target
        self.weight = self.trust * (_DEGREES + 1) / (_DEGREES + (residual / self.scale) ** 2)
        known = self.weight @ residual**2 + _NOISE_ROWS * _NOISE**2
        self.scale = float(np.sqrt(known / (self.trust.sum() + _NOISE_ROWS)))


def _trust(matrix: Float[np.ndarray, "rows free"], root: Float[np.ndarray, "free free"]) -> Rows:
    """Weights of rows, less for those with unusual leverage (Mallows' weights).

    Residuals do not show them, since the fit follows them; and a window that holds much of what
    others hold little is also the one whose batches are known least.
    """
    said = np.linalg.norm(np.linalg.solve(root.T, matrix.T), axis=0)
    return np.minimum(1.0, _USUAL * np.median(said) / np.maximum(said, np.finfo(float).tiny)) ** 2


# Intervals of a calibrated server: its posterior, and what no coefficient explains.


def posterior_step_half_widths(
    found: CoefficientSet, deployment: Deployment, batches: Sequence[str]
) -> Float[np.ndarray, " batches"]:
    """Log half-widths of steps by a file's posterior.

    Args:
        found: With a covariance.
        deployment: What the steps run on.
        batches: Batches as written on the command line.
    """
    parsed = [parse_batch(text) for text in batches]
    known = prior_of_set(found)
    features = overlapped(step_features(*batch_work(deployment, parsed)), known.beta)
    spread = known.spread(all_features(features))
    noise = [TTFT_NOISE if any(batch.is_prefill) else TIME_NOISE for batch in parsed]
    return NORMAL_QUANTILE * np.hypot(spread, noise)


def posterior_evidence(
    found: CoefficientSet, deployment: Deployment, batches: Sequence[str]
) -> Evidence:
    """The evidence for coefficients with a covariance.

    A coefficient without variance has no interval, and none lies below what the datasheet allows.

    Args:
        found: Calibrated coefficients.
        deployment: What they belong to.
        batches: Batches to time, as written on the command line.
    """
    known = prior_of_set(found)
    half = NORMAL_QUANTILE * np.sqrt(np.diag(known.covariance))
    low, high = np.maximum(known.mean - half, known.lower).tolist(), (known.mean + half).tolist()
    *halves, usual = posterior_step_half_widths(found, deployment, [*batches, REFERENCE_BATCH])
    return replace(
        file_evidence(found),
        level=LEVEL,
        usual={"tpot": around(1.0, float(usual))},
        coefficient_ends={NAMES[i]: (low[i], high[i]) for i in np.flatnonzero(half > 0)},
        step_ends=[around(1.0, float(half)) for half in halves],
        reference=REFERENCE_BATCH,
    )


# What a calibration determines: scalars and combinations of coefficients, with their errors.
#
# Single coefficients are seldom determined, since their features grow together at the loads that
# were seen. What a step costs at once, per request and per token of context is, and what a
# request of the usual length costs outside its steps.

#: Tokens by which the context of a step's requests is changed to see what one costs.
_MORE_TOKENS = 64.0

CoefficientRows = Float[np.ndarray, "n coefficients"]


@dataclass(frozen=True)
class Quantity:
    """Something that coefficients add up to, before and after.

    Attributes:
        name: What it is.
        unit: Of its values: ``x`` for a factor on what was before, else seconds per something.
        before: Value before the calibration.
        before_error: Its standard error then.
        after: Value after.
        after_error: Its standard error.
    """

    name: str
    unit: str
    before: float
    before_error: float
    after: float
    after_error: float

    @property
    def is_determined(self) -> bool:
        """Whether it is known to within a tenth."""
        return bool(self.after_error < 0.1 * self.after)

    @property
    def drift(self) -> float:
        """Change since the earlier calibration, in its standard errors."""
        return (self.after - self.before) / self.before_error if self.before_error else 0.0


def scalar_quantities(
    prior: Prior, posterior: Posterior, features: CoefficientRows
) -> list[Quantity]:
    """Return the factor on what each scalar's coefficients add to the measurements, if any is seen.

    Args:
        prior: Before.
        posterior: After.
        features: All features of the measurements.
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
    """Return the seconds of a step of decodes: constant, per request and per token of context.

    The mean step says whether steps wait for launching or for the GPU's work; what they do not wait
    for is not included.

    Args:
        deployment: What was measured.
        prior: Before.
        posterior: After.
        requests: Decodes of the mean step.
        context: Mean tokens that they have.
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
    """Return the seconds of a request outside its steps, by phase; only phases that were measured.

    Args:
        prior: Before.
        posterior: After.
        prompt_tokens: Mean length of the prompts.
        taught: Which alphas requests taught.
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
    """Products of vectors and coefficients before and after, by their names and units."""
    columns = [e for c in (prior, posterior) for e in (vectors @ c.mean, c.deviation(vectors))]
    rows = zip(parts, *columns, strict=True)
    return [Quantity(*part, *map(float, values)) for part, *values in rows]


#: Quantity of a request and its unit -> its alphas; a second one is per token of the prompt.
_REQUEST_PARTS = {
    ("a request, until it is queued", "s"):
        ("arrival_to_queue.constant", "arrival_to_queue.prompt_token"),
    ("each of its prompt tokens", "s/token"): ("arrival_to_queue.prompt_token",),
    ("its scheduling", "s"): ("queue_to_schedule.constant",),
    ("its first token, outside steps", "s"): ("schedule_to_first_token.constant",),
    ("each streamed token", "s/token"): ("output_token.constant",),
    ("its completion", "s"): ("completion.constant",),
}  # fmt: skip

#: Quantity of a step of decodes and its unit.
_STEP_PARTS = (
    ("a decode step, fixed part", "s"),
    ("each request in it", "s/request"),
    ("each token of context", "s/token"),
)
