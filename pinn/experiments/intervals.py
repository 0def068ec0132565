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
from pinn.network.checkpoint import load_checkpoint
from pinn.sources.report import file_sha256
from pinn.training.kernel_learner import fitted_surrogates
from pinn.uncertainty.calibrate import calibrate
from pinn.uncertainty.calibration import Calibration
from pinn.uncertainty.coefficient_errors import coefficient_errors
from pinn.uncertainty.held_out import held_out_errors


def experiment_errors(folder: Path) -> pd.DataFrame:
    """Errors and distances of an experiment's left-out rows.

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


def calibrate_experiments(folders: Sequence[Path], checkpoint: Path) -> Calibration:
    """Calibrate a checkpoint on what experiments left out.

    Args:
        folders: Results of leave-one-out experiments with the checkpoint's settings and data.
        checkpoint: Fitted on everything by one of them.

    Raises:
        PinnError: If an experiment was of other settings or data, or is not finished.
    """
    network = load_checkpoint(checkpoint)
    fingerprint = network.metadata["fingerprint"]
    errors = [experiment_errors(folder) for folder in folders]
    changes = [
        coefficient_errors(folder, fingerprint, network, of_folder)
        for folder, of_folder in zip(folders, errors, strict=True)
    ]
    sources = [
        {
            "experiment": folder.name,
            "splits": sorted(of_folder["split"].unique().tolist()),
            "rows": len(of_folder),
            "predictions_sha256": file_sha256(folder / "predictions.csv"),
        }
        for folder, of_folder in zip(folders, errors, strict=True)
    ]
    together = pd.concat(errors, ignore_index=True)
    return calibrate(together, pd.concat(changes, ignore_index=True), checkpoint, sources)
