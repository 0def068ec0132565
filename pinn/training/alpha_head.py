"""Fit of the alpha head: how request coefficients (alpha) differ between deployments.

The calibration fit (:mod:`pinn.training.run_scalars`) yields one alpha for all deployments, and the
network is distilled from kernels, which say nothing about the time outside the steps. The head is
fitted last, with everything else fixed, to measured latencies of deployments and serving runs::

    log alpha = log shared alpha + head . features

The features are standardized (:func:`pinn.surrogate.architecture.standardized`). The prior of every
weight is a Gaussian around 0. The measurements of each model have the same total weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from pinn.measurements.estimate import huber_deviation
from pinn.measurements.runs.measured_runs import MeasuredRun
from pinn.simulator.linear_latency import LinearLatency
from pinn.surrogate.architecture import NetworkWeights
from pinn.surrogate.featurizer import featurize
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.training.run_rows import run_rows
from pinn.training.serving_rows import SATURATED, ServingRows, resimulated

#: Maximum number of Gauss-Newton steps, a numerical limit.
_STEPS = 20
#: Name of the request feature that is the number of prompt tokens.
_PROMPT = "arrival_to_queue.prompt_token"


@dataclass(frozen=True)
class AlphaHeadSettings:
    """Settings of the fit of the alpha head.

    Attributes:
        spread: Prior standard deviation of each weight; 0 gives all deployments the same alpha.
        noise: Standard deviation of the mean log error of one model's latencies.
        outlier: Log error of a latency beyond which its loss grows linearly.
    """

    spread: float = 0.05
    noise: float = 0.05
    outlier: float = 0.2


@dataclass(frozen=True)
class Latencies:
    """Measured latencies, each modelled as a sum of request times and of all other times.

    Attributes:
        request_s: Time in seconds that each alpha contributes with a head of zeros, ``[n, alpha]``.
        other_s: All other time of the simulated latency, seconds.
        measured_s: Measured latency, seconds.
        features: Standardized features of the deployment, ``[n, descriptors]``.
        weight: Weight of each latency; the latencies of each model have a total weight of 1.
    """

    request_s: Float[np.ndarray, "n alpha"]
    other_s: Float[np.ndarray, " n"]
    measured_s: Float[np.ndarray, " n"]
    features: Float[np.ndarray, "n descriptors"]
    weight: Float[np.ndarray, " n"]

    def errors(
        self, head: Float[np.ndarray, "alpha descriptors"]
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n alpha"]]:
        """Return each latency's log error and its derivatives with respect to the log alphas."""
        seconds = self.request_s * np.exp(self.features @ head.T)
        total = self.other_s + seconds.sum(axis=1)
        return np.log(total / self.measured_s), seconds / total[:, None]


def fit_alpha_head(
    weights: NetworkWeights,
    rows: ServingRows,
    runs: Sequence[MeasuredRun],
    settings: AlphaHeadSettings,
) -> Float[np.ndarray, "alpha descriptors"]:
    """Return the most probable weights of the alpha head.

    Args:
        weights: Trained network, whose alpha head is still zero.
        rows: Measured deployments to fit to, by their TTFT below saturation.
        runs: Serving runs to fit to, by all their latency metrics; may be empty.
        settings: Prior and noise.
    """
    found = [deployment_latencies(weights, rows)]
    if runs:
        found.append(run_latencies(weights, runs))
    return most_probable_head(found, settings)


def most_probable_head(
    latencies: Sequence[Latencies], settings: AlphaHeadSettings
) -> Float[np.ndarray, "alpha descriptors"]:
    """Return the head with the highest posterior density, by Gauss-Newton steps."""
    shape = len(REQUEST_FEATURES), latencies[0].features.shape[1]
    head: Float[np.ndarray, "alpha descriptors"] = np.zeros(shape)
    if settings.spread == 0:
        return head
    for _ in range(_STEPS):
        precision, target = np.eye(head.size) / settings.spread**2, np.zeros(head.size)
        for each in latencies:
            error, direct = each.errors(head)
            matrix = (direct[:, :, None] * each.features[:, None, :]).reshape(len(error), -1)
            deviation = settings.noise / np.sqrt(each.weight)
            noise = huber_deviation(error, deviation, settings.outlier)
            scaled = matrix / noise[:, None] ** 2
            precision += scaled.T @ matrix
            target += scaled.T @ (matrix @ head.ravel() - error)
        after = np.linalg.solve(precision, target).reshape(shape)
        if np.abs(after - head).max() < 1e-6 * settings.spread:
            return after
        head = after
    return head


def deployment_latencies(weights: NetworkWeights, rows: ServingRows) -> Latencies:
    """Return the TTFT of measured deployments below saturation, simulated with a network.

    Args:
        weights: Network whose alpha head is zero.
        rows: Measured deployments.
    """
    kept = rows.take(_unsaturated(rows))
    beta, alpha = weights.coefficients(*featurize(kept.deployments))
    found = resimulated(kept, beta)
    request = found.request_features * alpha[found.deployment]
    steps = (found.ttft_features * beta[found.deployment]).sum(axis=1)
    names = [found.deployments[i].model.name for i in found.deployment]
    other = steps + found.ttft_offset_s
    features = weights.standardized(featurize(found.deployments)[0])[found.deployment]
    return Latencies(request, other, found.ttft_s, features, _equal_models(names))


def run_latencies(weights: NetworkWeights, runs: Sequence[MeasuredRun]) -> Latencies:
    """Return all latency metrics of serving runs, simulated with a network.

    Args:
        weights: Network whose alpha head is zero.
        runs: Serving runs, at least one.
    """
    deployments = [run.deployment for run in runs]
    beta, alpha = weights.coefficients(*featurize(deployments))
    latencies = [LinearLatency(d, b, a) for d, b, a in zip(deployments, beta, alpha, strict=True)]
    rows = run_rows(runs, latencies)
    request = rows.request_features * alpha[rows.run]
    names = [deployments[i].model.name for i in rows.run]
    features = weights.standardized(featurize(deployments)[0])[rows.run]
    other = rows.simulated - request.sum(axis=1)
    weight = _equal_models(names, rows.weight)
    return Latencies(request, other, rows.measured_s, features, weight)


def _unsaturated(rows: ServingRows) -> Bool[np.ndarray, " n"]:
    """Return whether each row's TTFT is below ``SATURATED`` x the minimum of its series.

    A series has one deployment and one mean prompt length.
    """
    prompts = rows.request_features[:, list(REQUEST_FEATURES).index(_PROMPT)]
    _, series = np.unique(np.stack([rows.deployment, prompts]), axis=1, return_inverse=True)
    least = np.full(series.max() + 1, np.inf)
    np.minimum.at(least, series, rows.ttft_s)
    return rows.ttft_s < SATURATED * least[series]


def _equal_models(
    names: Sequence[str], weight: Float[np.ndarray, " n"] | None = None
) -> Float[np.ndarray, " n"]:
    """Return weights scaled to a sum of 1 for each model."""
    _, index = np.unique(np.array(names), return_inverse=True)
    each = np.ones(len(index)) if weight is None else weight
    return each / np.bincount(index, each)[index]
