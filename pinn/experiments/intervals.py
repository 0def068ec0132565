"""Intervals of a checkpoint from the leave-one-out experiments of the same training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from pinn.errors import PinnError
from pinn.experiments.experiment import kernel_settings
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.surrogates import KernelSurrogates
from pinn.sources.report import file_sha256
from pinn.training.kernel_learner import fitted_surrogates
from pinn.uncertainty.calibrate import calibrate
from pinn.uncertainty.calibration import Calibration
from pinn.uncertainty.coefficient_errors import FoldNetwork, coefficient_changes
from pinn.uncertainty.held_out import held_out_errors


def experiment_errors(folder: Path) -> pd.DataFrame:
    """Errors and descriptions of an experiment's left-out rows.

    Raises:
        PinnError: If the folder holds no such experiment.
    """
    config_path = folder / ".hydra" / "config.yaml"
    if not config_path.is_file():
        raise PinnError(f"no {config_path}: give the results folder of a 'python train.py' run")
    return held_out_errors(folder, configured_surrogates(OmegaConf.load(config_path)))


def configured_surrogates(config: Any) -> Callable[[Exclusion], KernelSurrogates]:
    """What gives the kernel surrogates of an exclusion, under an experiment's configuration."""
    settings = kernel_settings(config)

    def surrogates(exclude: Exclusion) -> KernelSurrogates:
        return fitted_surrogates(settings, exclude)

    return surrogates


def calibrate_experiments(
    folders: Sequence[Path],
    checkpoint: Path,
    folds: Sequence[FoldNetwork],
    run_errors: Sequence[pd.DataFrame] = (),
) -> Calibration:
    """Calibrate a checkpoint on what experiments of its recipe left out.

    Args:
        folders: Results of leave-one-out experiments with the checkpoint's recipe and data.
        checkpoint: Fitted on everything by one of them.
        folds: What their folds learned.
        run_errors: Of each model's left-out serving runs, as
            ``pinn.uncertainty.run_errors.run_error_rows``.

    Raises:
        PinnError: If an experiment is not finished.
    """
    errors = [experiment_errors(folder) for folder in folders]
    sources = [
        {
            "experiment": folder.name,
            "splits": sorted(of_folder["split"].unique().tolist()),
            "rows": len(of_folder),
            "predictions_sha256": file_sha256(folder / "predictions.csv"),
        }
        for folder, of_folder in zip(folders, errors, strict=True)
    ]
    together = pd.concat([*errors, *run_errors], ignore_index=True)
    return calibrate(together, coefficient_changes(checkpoint, folds), checkpoint, sources)
