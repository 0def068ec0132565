"""The hierarchical two-stage pipeline (HFD-TL) for step times, as a baseline.

latency = base . F_base + config . F_config + residual . F_residual. Base and configuration
coefficients are fitted on a few donor deployments and frozen; a new one fits its residual alone.
Donors here are three of the measured benchmarks whose steps follow from their load: a dense model
and a mixture of experts on H100, and the dense one on another GPU (the method asks for an A100,
which nobody published).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

from pinn.errors import PinnError
from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import step_costs
from pinn.specs.deployment import Deployment
from pinn.training.calibration.intervals import Intervals

#: (model, GPU) of the donors.
DONORS = (
    ("meta-llama/Llama-3.3-70B-Instruct", "H100-SXM"),
    ("openai/gpt-oss-120b", "H100-SXM"),
    ("meta-llama/Llama-3.3-70B-Instruct", "B200-SXM"),
)

#: Strengths of the residual's ridge to choose from: from none to nothing but the donors.
STRENGTHS = 10.0 ** np.arange(-9, 1.01, 0.5)

Matrix = Float[np.ndarray, "n features"]


def shared_features(
    deployment: Deployment, sums: BatchSums, max_num_batched_tokens: float
) -> Matrix:
    """F_base and F_config of mean steps.

    Base: prefill tokens x FLOPs per token / peak, decode tokens x KV bytes per token / bandwidth,
    batch tokens / token budget. Configuration: 1 / TP, experts / 8, CPU offload on.
    """
    costs = step_costs([deployment])
    moe = deployment.model.moe
    experts = moe.experts / 8 if moe is not None else 0.0
    one = np.ones_like(sums.tokens)
    columns = [
        sums.prefill_tokens * (costs.gemm_token_s + costs.expert_token_s),
        sums.decode_requests * costs.kv_read_s,
        sums.tokens / max_num_batched_tokens,
        one / deployment.recipe.tensor_parallel_size,
        one * experts,
        one * (deployment.serving.cpu_offload_gb > 0),
    ]
    return np.stack(columns, axis=1)


def fit_donors(
    features: Matrix, seconds: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " features"]:
    """Base and configuration coefficients from the donors' mean times per output token.

    Args:
        features: Mean ``shared_features`` of each of the donors' benchmarks.
        seconds: Their measured mean times per output token.

    Raises:
        PinnError: If there are no donors.
    """
    if not len(seconds):
        raise PinnError(f"none of the donors {DONORS} is among the observations")
    found, _ = nnls(features / seconds[:, None], np.ones(len(seconds)))
    return found


@dataclass(frozen=True)
class Hierarchical:
    """The second stage: the residual of one deployment.

    Attributes:
        deployment: The new one.
        shared: Frozen base and configuration coefficients.
    """

    deployment: Deployment
    shared: Float[np.ndarray, " features"]

    def before(self, rows: Intervals) -> Float[np.ndarray, " n"]:
        """What the donors alone say."""
        budget = self.deployment.recipe.token_budget
        return shared_features(self.deployment, rows.sums, budget) @ self.shared

    def fit_predict(self, train: Intervals, test: Intervals) -> Float[np.ndarray, " n"]:
        """Fit the residual (1, KV usage squared) by ridge with cross-validated strength."""
        from sklearn.linear_model import RidgeCV

        ridge = RidgeCV(alphas=STRENGTHS, fit_intercept=True)
        ridge.fit(train.kv_usage[:, None] ** 2, train.seconds - self.before(train))
        return self.before(test) + ridge.predict(test.kv_usage[:, None] ** 2)
