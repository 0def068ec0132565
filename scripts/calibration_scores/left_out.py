"""Measured deployments, with the predictions of networks that were trained without their model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float, Shaped

from pinn.calibration.prior import KnownSteps, known_steps
from pinn.common.files import find_checkpoint
from pinn.common.store import remembered_table
from pinn.engines.deployment import Deployment
from pinn.evaluation.crossvalidation import described_errors
from pinn.evaluation.folds import KEPT, LEFT_OUT_FOLDER
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.surrogates import KernelSurrogates
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.metric_features import WHOLE_RUN, figure_features, figure_seconds
from pinn.simulator.run import Run
from pinn.simulator.simulate import Job, map_runs, measured_job
from pinn.specs.batch import parse_batch
from pinn.specs.model import ModelSpec
from pinn.surrogate.coefficients import NAMES
from pinn.surrogate.step_features import STEP_FEATURES, overlapped
from pinn.surrogate.surrogate import Surrogate, batch_features
from pinn.surrogate.uncertainty import interval_fit, intervals
from pinn.surrogate.uncertainty.coefficient_changes import FoldNetwork, coefficient_changes
from pinn.surrogate.uncertainty.quantiles import NORMAL_QUANTILE
from pinn.training.data.silicon import read_silicon
from pinn.training.serving_rows import ServingRows, serving_rows

_FIGURES = ("itl_mean_s", "ttft_mean_s")
_COLUMNS = [f"{figure}:{name}" for figure in _FIGURES for name in NAMES]

#: Log half-widths of a deployment's coefficients, and relative standard deviations of its known
#: step times.
Doubt = tuple[Float[np.ndarray, " coefficients"], KnownSteps]


@dataclass(frozen=True)
class LeftOut:
    """Measured deployments, with TPOT and TTFT predicted as linear functions of the coefficients.

    Attributes:
        observations: Measurements, one row per deployment and load.
        model: Model of each row.
        base: Coefficients predicted by the network trained without the row's model.
        features: Derivatives of TPOT and TTFT with respect to each coefficient, at the batches of a
            simulation with ``base``.
        offset: Parts of TPOT and TTFT in seconds that do not depend on the coefficients.
        measured: Measured TPOT and TTFT in seconds.
        doubts: Uncertainty of the coefficients and of the step times of each row.
    """

    observations: pd.DataFrame
    model: Shaped[np.ndarray, " n"]
    base: Float[np.ndarray, "n coefficients"]
    features: Float[np.ndarray, "n figures coefficients"]
    offset: Float[np.ndarray, "n figures"]
    measured: Float[np.ndarray, "n figures"]
    doubts: list[Doubt]


def read_left_out() -> LeftOut:
    """Return all measured rows with predictions; simulations and errors are cached on disk."""
    observations = read_silicon()[0]
    rows = serving_rows(observations)
    deployments = [rows.deployments[i] for i in rows.deployment]
    models = {d.model.name: d.model for d in deployments}
    networks = {name: left_out_network(models[name]) for name in sorted(models)}
    table = remembered_table(_simulated, observations, networks)
    base = np.array([_coefficients(networks[d.model.name], d) for d in deployments])
    features = table[_COLUMNS].to_numpy().reshape(len(rows), len(_FIGURES), len(NAMES))
    doubts = _doubts(rows, networks)
    return LeftOut(
        observations,
        np.array([d.model.name for d in deployments]),
        base,
        features,
        table[list(_FIGURES)].to_numpy() - np.einsum("nfk,nk->nf", features, base),
        np.stack([rows.tpot_s, rows.ttft_s], axis=1),
        [doubts[d] for d in deployments],
    )


def left_out_network(model: ModelSpec) -> Path:
    """Return the path of the network that was trained without a model."""
    slug = Exclusion(models=(model,)).slug()
    return find_checkpoint(None).with_name(LEFT_OUT_FOLDER) / f"{slug}.safetensors"


def _coefficients(network: Path, deployment: Deployment) -> Float[np.ndarray, " coefficients"]:
    found = Surrogate.load(network).coefficients([deployment])
    return np.concatenate([found.beta[0], found.alpha[0]])


def _simulated(observations: pd.DataFrame, networks: Mapping[str, Path]) -> pd.DataFrame:
    """Return each row's simulated TPOT and TTFT, and their derivatives by each coefficient."""
    jobs = []
    for m in serving_rows(observations).measured:
        found = _coefficients(networks[m.deployment.model.name], m.deployment)
        latency = LinearLatency(m.served, *np.split(found, [len(STEP_FEATURES)]))
        jobs.append(measured_job(m.served, m.workload, latency))
    return pd.DataFrame(map_runs(_figures, jobs), columns=[*_FIGURES, *_COLUMNS])


def _figures(job: Job, run: Run) -> list[float]:
    pairs = [(WHOLE_RUN, figure) for figure in _FIGURES]
    seconds = np.array([figure_seconds(run, *pair) for pair in pairs])
    features = np.hstack(figure_features(job.latency, run, pairs))
    scale = seconds / (features @ np.concatenate([job.latency.beta, job.latency.alpha]))
    return [*seconds, *(features * scale[:, None]).ravel()]


def _doubts(rows: ServingRows, networks: Mapping[str, Path]) -> dict[Deployment, Doubt]:
    """Return each deployment's uncertainty of coefficients and steps, from other models' errors."""
    checkpoint, found = find_checkpoint(None), {}
    errors = remembered_table(_errors, checkpoint)
    of_model = {n: tuple(d for d in rows.deployments if d.model.name == n) for n in networks}
    folds = [FoldNetwork(KEPT, of_model[n], path) for n, path in networks.items()]
    changes = coefficient_changes(checkpoint, folds)
    for name, mine in of_model.items():
        own_rows = [m.row_id for m in rows.measured if m.deployment.model.name == name]
        others = interval_fit.fit_half_widths(errors[~errors["row_id"].isin(own_rows)])
        halves = {metric: half.known for metric, half in others.items()}
        half = interval_fit.coefficient_half_widths(changes[changes["model"] != name])
        own = np.array(list(half.values())) / NORMAL_QUANTILE
        for deployment in mine:
            beta = _coefficients(networks[name], deployment)[: len(STEP_FEATURES)]
            texts = known_steps(deployment)
            steps = batch_features(deployment, list(map(parse_batch, texts)))
            features = overlapped(steps, beta)
            wide = [intervals.step_half_width(halves, text) for text in texts]
            found[deployment] = (own, KnownSteps(features, np.array(wide) / NORMAL_QUANTILE))
    return found


def _errors(checkpoint: Path) -> pd.DataFrame:
    """Return a checkpoint's errors on rows of held-out models, with properties of deployments.

    The properties are those that determine the widths of prediction intervals.
    """
    kept = pd.read_csv(checkpoint.with_suffix(".predictions.csv"))
    return described_errors(
        kept[kept["split"] == KEPT],
        read_silicon()[0],
        lambda e: KernelSurrogates.load(checkpoint.with_name("kernels") / e.slug()),
    )
