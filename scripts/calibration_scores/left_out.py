"""Measured deployments beside what networks that never saw their model say of them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float, Shaped

from pinn.coefficients.coefficients import NAMES
from pinn.coefficients.interval_fit import coefficient_half_widths, fit_half_widths
from pinn.coefficients.intervals import NORMAL_QUANTILE
from pinn.coefficients.kernel_distance import FoldNetwork, coefficient_changes
from pinn.coefficients.surrogate import predict_coefficients
from pinn.coefficients.trained_network import load_checkpoint
from pinn.common.files import find_checkpoint
from pinn.common.store import remembered_table
from pinn.common.tables import write_frame
from pinn.engines.deployment import Deployment
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.surrogates import KernelSurrogates
from pinn.laboratory.crossvalidation import held_out_errors
from pinn.laboratory.folds import LEFT_OUT_FOLDER
from pinn.physics.batch_sums import sum_batches
from pinn.physics.costs import step_costs
from pinn.physics.step import step_features
from pinn.server.calibration.prior import STEPS, KnownSteps
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.many import Job, map_runs
from pinn.simulator.metric_features import WHOLE_RUN, figure_features, figure_seconds
from pinn.simulator.run import Run
from pinn.specs.batch import parse_batch
from pinn.training.data.silicon import read_silicon
from pinn.training.data.table import write_observations
from pinn.training.serving_rows import ServingRows, serving_rows

_FIGURES = ("itl_mean_s", "ttft_mean_s")
_SPLIT = "leave-one-model-out"


@dataclass(frozen=True)
class LeftOut:
    """``n`` measured deployments, their TPOT and TTFT as lines in the coefficients.

    Attributes:
        observations: The rows as they were read.
        model: Of each row.
        base: Coefficients by the network that never saw the model.
        features: Change of TPOT and of TTFT with each coefficient, for the batches of the base.
        offset: What both hold beside features x coefficients.
        measured: TPOT and TTFT.
        doubts: Deployment -> log half-widths of its coefficients, and what is known of steps.
        deployments: Of each row.
    """

    observations: pd.DataFrame
    model: Shaped[np.ndarray, " n"]
    base: Float[np.ndarray, "n coefficients"]
    features: Float[np.ndarray, "n figures coefficients"]
    offset: Float[np.ndarray, "n figures"]
    measured: Float[np.ndarray, "n figures"]
    doubts: dict[Deployment, tuple[Float[np.ndarray, " coefficients"], KnownSteps]]
    deployments: tuple[Deployment, ...]

    def doubt(self, row: int) -> tuple[Float[np.ndarray, " coefficients"], KnownSteps]:
        """Own spreads of a row's coefficients, and the steps known to within something."""
        return self.doubts[self.deployments[row]]


def read_left_out() -> LeftOut:
    """Read everything; simulations and descriptions are remembered on disk."""
    checkpoint = find_checkpoint(None)
    observations = read_silicon()[0]
    rows = serving_rows(observations)
    deployments = tuple(rows.deployments[i] for i in rows.deployment)
    model = np.array([d.model.name for d in deployments])
    networks = {
        name: _network(checkpoint, next(d for d in deployments if d.model.name == name))
        for name in np.unique(model)
    }
    table = remembered_table(_simulated, observations, networks)
    names = [f"{figure}:{name}" for figure in _FIGURES for name in NAMES]
    shape = (len(rows), len(_FIGURES), len(NAMES))
    base = np.array([_coefficients(networks[d.model.name], d) for d in deployments])
    features = table[names].to_numpy().reshape(shape)
    simulated = table[list(_FIGURES)].to_numpy()
    return LeftOut(
        observations,
        model,
        base,
        features,
        simulated - np.einsum("nfk,nk->nf", features, base),
        np.stack([rows.tpot_s, rows.ttft_s], axis=1),
        _doubts(checkpoint, rows, networks),
        deployments,
    )


def _network(checkpoint: Path, deployment: Deployment) -> Path:
    slug = Exclusion(models=(deployment.model,)).slug()
    return checkpoint.with_name(LEFT_OUT_FOLDER) / f"{slug}.safetensors"


def _coefficients(network: Path, deployment: Deployment) -> np.ndarray:
    found = predict_coefficients(load_checkpoint(network).network, [deployment])
    return np.concatenate([found.beta[0], found.alpha[0]])


def _simulated(observations: pd.DataFrame, networks: dict[str, Path]) -> pd.DataFrame:
    """TPOT and TTFT of every row, and how they change with each coefficient."""
    rows = serving_rows(observations)
    jobs, values = [], []
    for m in rows.measured:
        found = _coefficients(networks[m.deployment.model.name], m.deployment)
        split = len(found) - len([n for n in NAMES if n.startswith("alpha.")])
        latency = LinearLatency(m.served, found[:split], found[split:])
        jobs.append(Job(m.served, m.workload, latency))
        values.append(found)
    made = map_runs(_figures, jobs)
    names = [f"{figure}:{name}" for figure in _FIGURES for name in NAMES]
    table = []
    for coefficients, (seconds, features) in zip(values, made, strict=True):
        scale = seconds / (features @ coefficients)
        table.append([*seconds, *(features * scale[:, None]).ravel()])
    return pd.DataFrame(table, columns=[*_FIGURES, *names])


def _figures(job: Job, run: Run) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(WHOLE_RUN, figure) for figure in _FIGURES]
    seconds = np.array([figure_seconds(run, *pair) for pair in pairs])
    return seconds, np.hstack(figure_features(job.deployment, run, pairs))


def _doubts(
    checkpoint: Path, rows: ServingRows, networks: dict[str, Path]
) -> dict[Deployment, tuple[Float[np.ndarray, " coefficients"], KnownSteps]]:
    """How far each deployment's coefficients and steps may be off, learned on other models."""
    errors = remembered_table(_errors, checkpoint)
    found = {}
    for name in networks:
        mine = [d for d in rows.deployments if d.model.name == name]
        others = fit_half_widths(errors[~errors["row_id"].isin(_rows_of(rows, name))])
        wide = [others["tpot"].known, max(half.known for half in others.values())]
        folds = [
            FoldNetwork(_SPLIT, tuple(d for d in rows.deployments if d.model.name == other), path)
            for other, path in networks.items()
            if other != name
        ]
        half = coefficient_half_widths(coefficient_changes(checkpoint, folds))
        own = np.array([half[each] for each in NAMES]) / NORMAL_QUANTILE
        for deployment in mine:
            batches = [parse_batch(step) for step in STEPS]
            sums = sum_batches(batches, deployment.model.window_tokens)
            features = step_features(step_costs([deployment]), sums)
            found[deployment] = (own, KnownSteps(features, np.array(wide) / NORMAL_QUANTILE))
    return found


def _rows_of(rows: ServingRows, model: str) -> list[str]:
    return [
        row_id
        for row_id, i in zip(rows.row_id, rows.deployment, strict=True)
        if rows.deployments[i].model.name == model
    ]


def _errors(checkpoint: Path) -> pd.DataFrame:
    """Errors of left-out models' rows with all that was known of them."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        kept = pd.read_csv(checkpoint.with_suffix(".predictions.csv"))
        write_frame(kept[kept["split"] == _SPLIT], folder / "predictions.csv")
        rows, report = read_silicon()
        write_observations(rows, folder / "observations" / "silicon.parquet", report)
        return held_out_errors(
            folder, lambda e: KernelSurrogates.load(checkpoint.with_name("kernels") / e.slug())
        )
