"""Intervals of a checkpoint from the leave-one-out experiments of the same training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from pinn.evaluation.configured import Measured, kernel_fits, kernel_settings
from pinn.evaluation.held_out import held_out_errors
from pinn.evaluation.left_out_runs import network_latencies, run_folds
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.surrogates import KernelSurrogates
from pinn.specs.files.read_report import file_sha256
from pinn.training.folds import learn_fold
from pinn.training.kernel_learner import fitted_surrogates
from pinn.trust.calibrate import calibrate
from pinn.trust.calibration import Calibration
from pinn.trust.coefficient_errors import FoldNetwork, coefficient_changes
from pinn.trust.run_errors import run_error_rows


def configured_surrogates(config: Any) -> Callable[[Exclusion], KernelSurrogates]:
    """What gives the kernel surrogates of an exclusion, under an experiment's configuration."""
    settings = kernel_settings(config)

    def surrogates(exclude: Exclusion) -> KernelSurrogates:
        return fitted_surrogates(settings, exclude)

    return surrogates


def calibrate_folds(
    config: DictConfig,
    measured: Measured,
    networks: Sequence[FoldNetwork],
    checkpoint: Path,
) -> Calibration:
    """Calibrate a checkpoint on what the folds of its own experiment left out.

    Args:
        config: Of the experiment.
        measured: What it learned from.
        networks: What its folds learned.
        checkpoint: In the experiment's folder, fitted on everything.

    Raises:
        PinnError: If the experiment is not finished.
    """
    folder = checkpoint.parent
    errors = held_out_errors(folder, configured_surrogates(config))
    source = {
        "experiment": folder.name,
        "splits": sorted(errors["split"].unique().tolist()),
        "rows": len(errors),
        "predictions_sha256": file_sha256(folder / "predictions.csv"),
    }
    fits = kernel_fits(config, measured.runs, folder)
    of_runs = []
    for fold, test in run_folds(measured.rows, measured.runs):
        learned = learn_fold(fits.learner, fold, fits.root)
        latencies = network_latencies(learned.network, test)
        of_runs.append(run_error_rows(test, latencies, learned.teacher.kernels))
    together = pd.concat([errors, *of_runs], ignore_index=True)
    changes = coefficient_changes(checkpoint, networks)
    return calibrate(together, changes, checkpoint, [source])
