"""A linear latency model: coefficients of one deployment, for compiled and plain runs alike."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float

from pinn.physics.batch_sums import sum_batches
from pinn.physics.costs import model_costs
from pinn.physics.request import RequestState, phase_mask, request_features
from pinn.physics.speculation import ONCE, deployment_features, speculative_costs
from pinn.simulator.hooks import LinearCoefficients, SpeculativeCoefficients
from pinn.simulator.request_kernel import request_coefficients
from pinn.simulator.step_kernel import cost_numbers, step_coefficients
from pinn.specs.batch import Batch
from pinn.specs.deployment import Deployment


@dataclass(frozen=True)
class LinearLatency:
    """``LatencyModel`` whose every answer is a dot product of features and coefficients.

    Attributes:
        deployment: What the coefficients belong to.
        beta: Seconds per step feature, in the order of ``STEP_FEATURES``.
        alpha: Seconds per request feature, in the order of ``REQUEST_FEATURES``.
    """

    deployment: Deployment
    beta: Float[np.ndarray, " step_features"]
    alpha: Float[np.ndarray, " request_features"]

    def compile(self, apart: bool) -> LinearCoefficients | SpeculativeCoefficients:
        """As compiled code reads them; ``apart`` where prompts get steps of their own."""
        kind = 1 if apart else None
        alpha, beta = request_coefficients(self.alpha), step_coefficients(self.beta)
        drafts = speculative_costs(self.deployment)
        if drafts is None:
            return LinearCoefficients(
                cost_numbers(model_costs([self.deployment])), beta, alpha, kind
            )
        pass_beta, once = self.beta.copy(), np.zeros_like(self.beta)
        pass_beta[list(ONCE)] = 0.0
        once[list(ONCE)] = self.beta[list(ONCE)]
        return SpeculativeCoefficients(
            cost_numbers(drafts.verified),
            step_coefficients(once),
            alpha,
            step_coefficients(pass_beta),
            cost_numbers(drafts.first),
            cost_numbers(drafts.later),
            float(drafts.tokens),
            float(drafts.passes),
            float(drafts.branches),
            kind,
        )

    def step_time(self, batch: Batch) -> float:
        """One step: beta . features."""
        sums = sum_batches([batch], self.deployment.model.window_tokens)
        return float((deployment_features(self.deployment, sums) @ self.beta)[0])

    def queueing_time(self, request: RequestState) -> float:
        """Phase ``arrival_to_queue``."""
        return self._phase("arrival_to_queue", request)

    def output_token_processing_time(self) -> float:
        """Phase ``output_token``."""
        return self._phase("output_token", _NO_REQUEST)

    def scheduling_processing_time(self, request: RequestState) -> float:
        """Phases ``queue_to_schedule`` and ``schedule_to_first_token``."""
        return self._phase("queue_to_schedule", request) + self._phase(
            "schedule_to_first_token", request
        )

    def preemption_processing_time(self, request: RequestState) -> float:
        """Phase ``preemption``."""
        return self._phase("preemption", request)

    def post_decode_fixed_overhead(self) -> float:
        """Phase ``completion``."""
        return self._phase("completion", _NO_REQUEST)

    def _phase(self, phase: str, request: RequestState) -> float:
        return float(request_features(request) @ (self.alpha * phase_mask(phase)))


_NO_REQUEST = RequestState(*(np.zeros(()) for _ in fields(RequestState)))
