"""Other ways to predict step times than by calibrated coefficients."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.optimize import nnls

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.laboratory.formulas import phase_floors, row_bases
from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import step_costs
from pinn.physics.step import STEP_FEATURES
from pinn.server.calibration.calibrate import Intervals, calibrate_to
from pinn.server.calibration.prior import Prior
from pinn.training.data.deployments import observed_deployment

# The hierarchical two-stage pipeline (HFD-TL) for step times, as a baseline.
#
# latency = base . F_base + config . F_config + residual . F_residual. Base and configuration
# coefficients are fitted on a few donor deployments and frozen; a new one fits its residual
# alone. Donors here are three of the measured benchmarks whose steps follow from their load: a
# dense model and a mixture of experts on H100, and the dense one on another GPU (the method asks
# for an A100, which nobody published).

#: (model, GPU) of the donors.
DONORS = (
    ("meta-llama/Llama-3.3-70B-Instruct", "H100-SXM"),
    ("openai/gpt-oss-120b", "H100-SXM"),
    ("meta-llama/Llama-3.3-70B-Instruct", "B200-SXM"),
)

#: Strengths of the residual's ridge to choose from: from none to nothing but the donors.
STRENGTHS = 10.0 ** np.arange(-9, 1.01, 0.5)

Matrix = Float[np.ndarray, "n features"]
Times = Float[np.ndarray, " n"]

#: Fits to intervals and predicts the times of others.
FitPredict = Callable[[Intervals, Intervals], Times]


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


def hierarchical(
    deployment: Deployment, shared: Float[np.ndarray, " features"]
) -> dict[str, FitPredict]:
    """What the donors alone say of a new deployment, and with the residual of its own steps.

    Args:
        deployment: The new one.
        shared: Frozen base and configuration coefficients.
    """

    def before(rows: Intervals) -> Times:
        budget = deployment.recipe.token_budget
        return shared_features(deployment, rows.sums, budget) @ shared

    def with_residual(train: Intervals, test: Intervals) -> Times:
        """The residual (1, KV usage squared) by ridge with cross-validated strength."""
        from sklearn.linear_model import RidgeCV

        ridge = RidgeCV(alphas=STRENGTHS, fit_intercept=True)
        ridge.fit(train.kv_usage[:, None] ** 2, train.seconds - before(train))
        return before(test) + ridge.predict(test.kv_usage[:, None] ** 2)

    return {
        "hierarchical, donors alone": lambda _, test: before(test),
        "hierarchical, residual fitted": with_residual,
    }


# The donors of the hierarchical pipeline: what their benchmarks teach a baseline.


def donor_coefficients(observations: pd.DataFrame) -> Float[np.ndarray, " features"]:
    """Base and configuration coefficients of the donors among measured deployments.

    Args:
        observations: As ``pinn.training.data.table.read_observations`` gives them.

    Raises:
        PinnError: If no donor is among them.
    """
    chosen = [
        (row["model"], observed_deployment(row).gpu.name) in DONORS
        for _, row in observations.iterrows()
    ]
    donors = observations[chosen]
    if donors.empty:
        raise PinnError(f"none of the donors {DONORS} is among the observations")
    means, seconds = row_bases(donors, hierarchical_basis).tpot, donors["tpot_s"].to_numpy()
    found, _ = nnls(means / seconds[:, None], np.ones(len(seconds)))
    return found


def hierarchical_basis(
    deployment: Deployment, sums: BatchSums, _: float
) -> Float[np.ndarray, "batches functions"]:
    """F_base and F_config of batches."""
    return shared_features(deployment, sums, deployment.recipe.token_budget)


# Other ways to predict step times, fitted to the same intervals.

#: Regressions of scikit-learn, which the extra ``research`` installs.
LEARNERS = ("ridge", "lasso", "polynomial", "gradient-boosted trees")


def line(train: Intervals, test: Intervals) -> Times:
    """Four coefficients from nothing: 1, prefill tokens, decodes, context of the decodes."""
    return _least_squares(_load(train, 4), train.seconds, _load(test, 4))


def blackbox(train: Intervals, test: Intervals) -> Times:
    """beta0 + beta1 prefill tokens + beta2 decode tokens."""
    return _least_squares(_load(train, 3), train.seconds, _load(test, 3))


def roofline(deployment: Deployment) -> FitPredict:
    """max(FLOPs / peak, bytes / bandwidth) per phase, each over an efficiency that is tuned."""

    def fit_predict(train: Intervals, test: Intervals) -> Times:
        floors, tested = (phase_floors(deployment, rows.sums, 0.0) for rows in (train, test))
        slowness, _ = nnls(floors / train.seconds[:, None], np.ones(len(train)))
        return tested @ slowness

    return fit_predict


def _load(rows: Intervals, columns: int) -> Float[np.ndarray, "n columns"]:
    sums = rows.sums
    every = (np.ones(len(rows)), sums.prefill_tokens, sums.decode_requests, sums.decode_context)
    return np.stack(every[:columns], axis=1)


def _least_squares(
    train: Float[np.ndarray, "n parts"], seconds: Times, test: Float[np.ndarray, "tested parts"]
) -> Float[np.ndarray, " tested"]:
    """Least squares of relative errors."""
    found = np.linalg.lstsq(train / seconds[:, None], np.ones(len(seconds)), rcond=None)[0]
    return test @ found


def _learner(name: str) -> FitPredict:
    """A regression of scikit-learn on the load, KV usage and request count included."""

    def matrix(rows: Intervals) -> np.ndarray:
        return np.column_stack([_load(rows, 4)[:, 1:], rows.sums.prefill_requests, rows.kv_usage])

    def fit_predict(train: Intervals, test: Intervals) -> Times:
        from sklearn.ensemble import GradientBoostingRegressor
        from sklearn.linear_model import LassoCV, RidgeCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import PolynomialFeatures, StandardScaler

        strengths = np.logspace(-4, 4, 17)
        models = {
            "ridge": lambda: [StandardScaler(), RidgeCV(strengths)],
            "lasso": lambda: [StandardScaler(), LassoCV(max_iter=20_000)],
            "polynomial": lambda: [
                StandardScaler(), PolynomialFeatures(2), StandardScaler(), RidgeCV(strengths)
            ],
            "gradient-boosted trees": lambda: [GradientBoostingRegressor(random_state=0)],
        }  # fmt: skip
        model = make_pipeline(*models[name]())
        model.fit(matrix(train), train.seconds * 1e3)
        return model.predict(matrix(test)) / 1e3

    return fit_predict


def baselines(
    deployment: Deployment,
    prior: Prior,
    shared: Float[np.ndarray, " shared"],
) -> dict[str, FitPredict]:
    """Every method by name.

    Args:
        deployment: The new one.
        prior: Coefficients before a calibration.
        shared: Base and configuration coefficients of :func:`donor_coefficients`.

    Returns:
        Those that can be fitted here: the regressions of :data:`LEARNERS` need scikit-learn.
    """
    beta = prior.mean[: len(STEP_FEATURES)]
    return {
        "coefficients, before": lambda _, test: test.features @ beta,
        "coefficients, calibrated": lambda train, test: (
            test.features @ calibrate_to(train, prior).beta
        ),
        **hierarchical(deployment, shared),
        "roofline, tuned efficiencies": roofline(deployment),
        "blackbox": blackbox,
        "line of four coefficients": line,
        **{name: _learner(name) for name in LEARNERS if find_spec("sklearn") is not None},
    }
