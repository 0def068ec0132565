"""What a calibration determines: scalars and combinations of coefficients, with their errors.

Single coefficients are seldom determined, since their features grow together at the loads that
were seen. What a step costs at once, per request and per token of context is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pinn.coefficients.coefficients import NAMES
from pinn.physics.batch_sums import uniform_sums
from pinn.physics.costs import step_costs
from pinn.physics.step import step_features
from pinn.specs.deployment import Deployment
from pinn.training.calibration.posterior import Posterior, relative_spread
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
    errors = [
        relative_spread(vectors, c.mean, c.covariance) * (vectors @ c.mean)
        for c in (prior, posterior)
    ]
    return [
        Quantity(name, unit, *map(float, values))
        for (name, unit), *values in zip(
            _PARTS, vectors @ prior.mean, errors[0], vectors @ posterior.mean, errors[1],
            strict=True,
        )
    ]  # fmt: skip


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
