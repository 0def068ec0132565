"""TPOT and TTFT errors of the network for SGLang and TensorRT-LLM, with each row's model held out.

Each row is predicted by the network that was trained without deployments of the row's model. A
model without deployments in the training data is predicted by the checkpoint itself, which may have
been trained on kernels of the model's shapes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd

from pinn.common.files import find_checkpoint
from pinn.common.screen import Grid
from pinn.engines.deployment import Deployment
from pinn.errors import warn_user
from pinn.evaluation.metrics import error_summary
from pinn.kernels.exclusion import is_near_copy
from pinn.measurements.deployments.measured import MeasuredDeployment, measured_deployments
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import measured_job
from pinn.specs.catalog import load_model
from pinn.specs.model import ModelSpec
from pinn.surrogate.architecture import NetworkWeights
from pinn.surrogate.checkpoint import load_checkpoint
from pinn.surrogate.surrogate import predict_coefficients
from pinn.training.data import engine_deployments, released
from pinn.training.serving_rows import mean_times

#: Columns that identify a row in a table of an engine's TPOT and TTFT errors.
PART = ["engine", "model", "gpu", "precision"]
METHODS = ("network", "aiconfigurator")
OTHER_CAMPAIGN = "second measurement campaign (TPOT only, because its benchmark client is unknown)"


def engine_rows() -> pd.DataFrame:
    """Return all measured deployments of SGLang and TensorRT-LLM to score.

    The column ``apart`` states why a row is reported in a separate table; it is mostly empty.
    """
    other = engine_deployments.read_other_campaign()[0].assign(apart=OTHER_CAMPAIGN)
    parts = [
        engine_deployments.read_engines()[0],
        engine_deployments.read_other_attention()[0],
        other,
    ]
    return pd.concat(parts, ignore_index=True)


@runtime_checkable
class HeldOut(Protocol):
    """Predictor of coefficients that never uses a network trained on the deployment's model."""

    def latencies(self, deployments: Sequence[Deployment]) -> list[LinearLatency]:
        """Return a latency model for each deployment.

        The network that predicts it was trained without the deployment's LLM.
        """


@dataclass(frozen=True)
class Networks:
    """Networks of a checkpoint, one per held-out model; implements :class:`HeldOut`.

    Attributes:
        network: Released network, trained on all data.
        left_out: Networks by held-out model, each trained without this model and without models of
            almost the same shape.
    """

    network: NetworkWeights
    left_out: Mapping[str, NetworkWeights]

    def without(self, model: ModelSpec) -> NetworkWeights:
        """Return the network that was trained without a model, or else the released network."""
        if model.name in self.left_out:
            return self.left_out[model.name]
        near = (name for name in self.left_out if is_near_copy(model, load_model(name)))
        return self.left_out.get(next(near, ""), self.network)

    def latencies(self, deployments: Sequence[Deployment]) -> list[LinearLatency]:
        """Return a latency model for each deployment, from the network trained without its LLM."""
        found = (predict_coefficients(self.without(one.model), [one]) for one in deployments)
        each = zip(deployments, found, strict=True)
        return [LinearLatency(one, of.beta[0], of.alpha[0]) for one, of in each]


def networks(checkpoint: Path | None = None) -> Networks:
    """Return a checkpoint's network, and the networks in the folder ``left_out`` next to it.

    A warning is issued if the folder has no networks. The checkpoint's own network then predicts
    every row, although it may have been trained on it.

    Raises:
        PinnError: If there is no checkpoint.
    """
    path = find_checkpoint(checkpoint)
    left_out = {}
    for fold in sorted((path.parent / "left_out").glob("*.safetensors")):
        loaded = load_checkpoint(fold)
        left_out[loaded.metadata["excluded"]["models"][0]] = loaded.network
    if not left_out:
        warn_user(
            f"{path.parent / 'left_out'} has no networks trained without one of the models: every "
            f"row is predicted by {path.name}, which may have been trained on the row's model"
        )
    return Networks(load_checkpoint(path).network, left_out)


def score_engines(rows: pd.DataFrame, of: HeldOut, workers: int | None = None) -> pd.DataFrame:
    """Simulate every row's benchmark and return the predicted TPOT and TTFT, in seconds.

    Args:
        rows: Rows as :func:`engine_rows` returns them.
        of: Predictor of coefficients for each row's deployment.
        workers: Number of threads.

    Returns:
        The rows with ``METHOD_tpot_s`` and ``METHOD_ttft_s`` for each of ``METHODS``; NaN if
        AIConfigurator has no prediction.
    """
    jobs = [
        measured_job(one.served, one.workload, replace(latency, deployment=one.served))
        for one, latency in with_coefficients(rows, of)
    ]
    means = mean_times(jobs, workers)
    peer = released.released_predictions().set_index("row_id").reindex(rows["row_id"])
    return rows.assign(
        network_tpot_s=means.tpot_s,
        network_ttft_s=means.ttft_s,
        aiconfigurator_tpot_s=peer["tpot_s"].to_numpy(),
        aiconfigurator_ttft_s=peer["ttft_s"].to_numpy(),
    )


def with_coefficients(
    rows: pd.DataFrame, of: HeldOut
) -> Iterator[tuple[MeasuredDeployment, LinearLatency]]:
    """Yield each row's deployment, with coefficients from the network that holds out its model."""
    measured = measured_deployments(rows)
    yield from zip(measured, of.latencies([one.deployment for one in measured]), strict=True)


def engine_grids(scores: pd.DataFrame) -> Iterator[tuple[str, Grid]]:
    """Yield a table of TPOT and TTFT errors, and a table for each set of rows reported separately.

    Args:
        scores: Rows as :func:`score_engines` returns them.

    Yields:
        The reason for the separate table ("" for none) and a grid of :func:`part_grid` with a
        column for each metric and method. ``OTHER_CAMPAIGN`` rows have no TTFT errors.
    """
    columns = {
        f"{method} {metric.upper()}": (f"{method}_{metric}_s", f"{metric}_s")
        for metric in ("tpot", "ttft")
        for method in METHODS
    }
    for apart, rows in scores.groupby("apart", sort=True):
        if apart == OTHER_CAMPAIGN:
            rows = rows.assign(network_ttft_s=np.nan, aiconfigurator_ttft_s=np.nan)
        yield str(apart), part_grid(rows, columns)


def part_grid(scores: pd.DataFrame, columns: Mapping[str, tuple[str, str]]) -> Grid:
    """Return errors of predicted times by engine and, within each, by model, GPU and number format.

    Args:
        scores: Table of predicted and measured times with the columns ``PART``.
        columns: Pairs of column names (predicted time, measured time), by heading.

    Returns:
        A grid of ``median / mean (bias)`` in percent. If some rows lack a prediction, a cell also
        has the number of rows with one.
    """
    grid = Grid.of(*PART, "rows", *columns, text=len(PART))
    for engine, rows in scores.groupby("engine", sort=True):
        parts = [((engine, "all", "all", "all"), rows), *rows.groupby(PART, sort=True)]
        for key, part in parts:
            cells = (_cell(part, *pair) for pair in columns.values())
            grid.add(*map(str, key), str(len(part)), *cells)
    return grid


def _cell(part: pd.DataFrame, predicted: str, measured: str) -> str:
    scored = part[part[predicted].notna()]
    if scored.empty:
        return "-"
    summary = error_summary(scored[predicted].to_numpy(), scored[measured].to_numpy())
    return str(summary) if summary.n == len(part) else f"{summary} of {summary.n}"
