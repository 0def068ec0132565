"""How much coefficients change when a group's own kernels and rows become known.

The networks of the folds are an ensemble, each without one model or GPU (a delete-group
jackknife). For a left-out deployment a fold's network gives the coefficients that an unseen one
would get; the network of everything gives what they are once the group is known. No measurement
tells a single coefficient, so this is what its interval can be calibrated on: it holds what leaving
out kernels and rows does, not what the features themselves leave out.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from pinn.errors import PinnError
from pinn.evaluation.crossvalidation import fold_logs
from pinn.latency.surrogate import predict_coefficients
from pinn.network.checkpoint import Checkpoint
from pinn.network.coefficient_network import CoefficientNetwork
from pinn.observations.splits import read_splits
from pinn.observations.table import read_observations
from pinn.training.serving_rows import ServingRows, serving_rows
from pinn.uncertainty.calibration import NAMES
from pinn.uncertainty.held_out import LEFT_OUT


def coefficient_errors(
    folder: Path, fingerprint: str, checkpoint: Checkpoint, errors: pd.DataFrame
) -> pd.DataFrame:
    """Log changes of every coefficient of left-out deployments.

    Args:
        folder: Of the experiment.
        fingerprint: Under which it was run, as its checkpoint's metadata tell.
        checkpoint: The network of everything.
        errors: As ``pinn.uncertainty.held_out.held_out_errors``; gives each deployment's distance.

    Returns:
        Columns ``model``, ``gpu``, ``group``, ``distance`` and ``NAMES``, one row per split and
        deployment; coefficients that are 0 have change 0.

    Raises:
        PinnError: If a fold's weights are missing.
    """
    rows = serving_rows(read_observations(folder / "observations" / "silicon.parquet"))
    parts = []
    for path in sorted((folder / "splits").glob("*.json")):
        kind = path.stem
        if kind not in LEFT_OUT:
            continue
        for split in read_splits(path):
            test = rows.take(np.isin(rows.row_id, split.test_ids))
            logs = fold_logs(folder, fingerprint, kind, split.name) / "kernels" / "alpha"
            found = _changes(
                _fold_network(logs / "last.ckpt", checkpoint.network), checkpoint, test
            )
            parts.append(_described(found, test, errors[errors["split"] == kind]))
    return pd.concat(parts, ignore_index=True)


def _fold_network(path: Path, like: CoefficientNetwork) -> CoefficientNetwork:
    if not path.is_file():
        raise PinnError(f"no weights of the fold at {path}: run the experiment again")
    saved = torch.load(path, weights_only=True, map_location="cpu")["state_dict"]
    network = copy.deepcopy(like)
    network.load_state_dict({k.removeprefix("network."): v for k, v in saved.items()})
    return network.eval()


def _changes(fold: CoefficientNetwork, checkpoint: Checkpoint, test: ServingRows) -> np.ndarray:
    without, known = (
        np.concatenate([found.beta, found.alpha], axis=1)
        for found in (
            predict_coefficients(fold, test.deployments),
            predict_coefficients(checkpoint.network, test.deployments),
        )
    )
    both = (without > 0) & (known > 0)
    return np.log(np.where(both, known, 1.0) / np.where(both, without, 1.0))


def _described(changes: np.ndarray, test: ServingRows, errors: pd.DataFrame) -> pd.DataFrame:
    """The changes with each deployment's group and mean distance."""
    place = dict(zip(test.row_id, test.deployment.tolist(), strict=True))
    errors = errors[errors["row_id"].isin(place)]
    of_deployment = errors.groupby(errors["row_id"].map(place)).agg(
        model=("model", "first"),
        gpu=("gpu", "first"),
        group=("group", "first"),
        distance=("distance", "mean"),
    )
    named = pd.DataFrame(changes, columns=list(NAMES)).loc[of_deployment.index]
    return pd.concat([of_deployment, named], axis=1).reset_index(drop=True)
