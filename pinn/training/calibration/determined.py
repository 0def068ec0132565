"""What a calibration determines: scalars and combinations of coefficients, with their errors.

Single coefficients are seldom determined, since their features grow together at the loads that
were seen. What a step costs at once, per request and per token of context is, and what a request
of the usual length costs outside its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from pinn.coefficients.coefficients import NAMES
from pinn.physics.batch_sums import uniform_sums
from pinn.physics.costs import step_costs
from pinn.physics.step import STEP_FEATURES, step_features
from pinn.specs.deployment import Deployment
from pinn.training.calibration.posterior import Posterior
from pinn.training.calibration.prior import Prior
from pinn.training.calibration.scalars import SCALARS

#: Tokens by which the context of a step's requests is changed to see what one costs.
_MORE_TOKENS = 64.0

Rows = Float[np.ndarray, "n coefficients"]


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
        """How many standard errors of before it moved."""
        if not self.before_error:
            return 0.0
        return (self.after - self.before) / self.before_error


def scalar_quantities(prior: Prior, posterior: Posterior, features: Rows) -> list[Quantity]:
    """The factor on what each scalar's coefficients add to the measurements; unseen ones left out.

    Args:
        prior: Before.
        posterior: After.
        features: Of the measurements, all coefficients.
    """
    found = []
    for scalar, group in SCALARS.items():
        sums = np.where(np.isin(NAMES, group), features.sum(axis=0), 0.0)
        base = float(sums @ prior.mean)
        if base > 0:
            errors = [np.sqrt(max(sums @ c @ sums, 0.0)) / base
                      for c in (prior.covariance, posterior.covariance)]  # fmt: skip
            after = float(sums @ posterior.mean) / base
            found.append(Quantity(scalar, "x", 1.0, errors[0], after, errors[1]))
    return found


def step_quantities(
    deployment: Deployment, prior: Prior, posterior: Posterior, requests: float, context: float
) -> list[Quantity]:
    """What a step of decodes costs at once, per request and per token of context.

    Args:
        deployment: What was measured.
        prior: Before.
        posterior: After.
        requests: Decodes of the mean step.
        context: Mean tokens that they have.
    """
    vectors = _decode_vectors(deployment, max(requests, 1.0), max(context, 1.0))
    return _quantities(_PARTS, vectors, prior, posterior)


def request_quantities(
    prior: Prior,
    posterior: Prior,
    prompt_tokens: float,
    taught: Bool[np.ndarray, " request_features"],
) -> list[Quantity]:
    """What a request costs outside its steps, phase by phase; phases that nothing taught left out.

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
    parts: Sequence[tuple[str, str]], vectors: Rows, prior: Prior, posterior: Posterior | Prior
) -> list[Quantity]:
    """Products of vectors and coefficients before and after, by their names and units."""
    errors = [
        np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", vectors, c.covariance, vectors), 0.0))
        for c in (prior, posterior)
    ]
    return [
        Quantity(name, unit, *map(float, values))
        for (name, unit), *values in zip(
            parts, vectors @ prior.mean, errors[0], vectors @ posterior.mean, errors[1],
            strict=True,
        )
    ]  # fmt: skip


#: Quantity of a request and its unit -> its alphas; a second one is per token of the prompt.
_REQUEST_PARTS = {
    ("a request, to the queue", "s"):
        ("arrival_to_queue.constant", "arrival_to_queue.prompt_token"),
    ("of it, each prompt token", "s/token"): ("arrival_to_queue.prompt_token",),
    ("its scheduling", "s"): ("queue_to_schedule.constant",),
    ("its first token, beside steps", "s"): ("schedule_to_first_token.constant",),
    ("each token it streams", "s/token"): ("output_token.constant",),
    ("its completion", "s"): ("completion.constant",),
}  # fmt: skip

_PARTS = (
    ("a step of decodes, at once", "s"),
    ("each request in it", "s/request"),
    ("each token of context", "s/token"),
)


def _decode_vectors(deployment: Deployment, requests: float, context: float) -> Rows:
    """Features whose product with the coefficients is each of ``_PARTS``."""
    sums = uniform_sums(
        decode_requests=np.array([requests, requests + 1, requests]),
        decode_context=np.array([context, context, context + _MORE_TOKENS]),
        window=deployment.model.window_tokens,
    )
    at, more, longer = step_features(step_costs([deployment]), sums)
    per_token = (longer - at) / (_MORE_TOKENS * requests)
    per_request = more - at - context * per_token
    once = at - requests * (per_request + context * per_token)
    rows = np.stack([once, per_request, per_token])
    return np.pad(rows, ((0, 0), (0, len(NAMES) - rows.shape[1])))
