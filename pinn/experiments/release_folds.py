"""Serving runs of each model, predicted by what never saw that model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.evaluation.serving_runs import score_runs
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.near_copy import is_near_copy
from pinn.observations.table import replace_atomically
from pinn.specs.model import ModelSpec
from pinn.training.kernel_learner import KernelSettings, fitted_surrogates
from pinn.training.run_learner import learn_from_runs, run_latencies, run_parts
from pinn.training.run_scalars import RunFitSettings
from pinn.training.serving_rows import ServingRows
from pinn.workloads.measured_runs import MeasuredRun

#: Name of these predictions in tables.
LEFT_OUT = "teacher, model left out"


def leave_models_out(
    kernels: KernelSettings,
    settings: RunFitSettings,
    runs: Sequence[MeasuredRun],
    serving: ServingRows,
    folder: Path,
    fingerprint: str,
) -> pd.DataFrame:
    """Score each model's runs with what the others taught.

    The model's kernels, its runs, and the serving rows of it and of its near copies are left out.

    Args:
        kernels: Where surrogates without a model's kernels are found or kept.
        settings: How runs teach.
        runs: All runs.
        serving: All measured deployments.
        folder: Where finished folds are kept.
        fingerprint: Of everything that a fold depends on beside the model.

    Returns:
        As ``pinn.evaluation.serving_runs.score_runs``, method ``LEFT_OUT``.
    """
    models = {run.deployment.model.name: run.deployment.model for run in runs}
    folds = [
        _fold(kernels, settings, runs, serving, model, folder, fingerprint)
        for _, model in sorted(models.items())
    ]
    return pd.concat(folds, ignore_index=True)


def _fold(
    kernels: KernelSettings,
    settings: RunFitSettings,
    runs: Sequence[MeasuredRun],
    serving: ServingRows,
    model: ModelSpec,
    folder: Path,
    fingerprint: str,
) -> pd.DataFrame:
    key = hashlib.sha256(f"{fingerprint} {model.name} {asdict(settings)}".encode()).hexdigest()
    path = folder / f"{key[:16]}.parquet"
    if path.is_file():
        return pd.read_parquet(path)
    surrogates = fitted_surrogates(kernels, Exclusion(models=(model,)))
    train, test = split_runs(runs, model)
    fit = learn_from_runs(surrogates, train, without_model(serving, model), settings)
    latencies = run_latencies(fit, test, run_parts(surrogates, test))
    scores = score_runs(test, latencies, LEFT_OUT)
    folder.mkdir(parents=True, exist_ok=True)
    replace_atomically(path, lambda target: scores.to_parquet(target, index=False))
    return scores


def split_runs(
    runs: Sequence[MeasuredRun], model: ModelSpec
) -> tuple[list[MeasuredRun], list[MeasuredRun]]:
    """Runs of models that are no near copy of a model, and the runs of the model itself."""
    train = [run for run in runs if not is_near_copy(run.deployment.model, model)]
    test = [run for run in runs if run.deployment.model.name == model.name]
    return train, test


def without_model(serving: ServingRows, model: ModelSpec) -> ServingRows:
    """The measured deployments of other models; near copies go too."""
    other = np.array([not is_near_copy(d.model, model) for d in serving.deployments])
    return serving.take(other[serving.deployment])
