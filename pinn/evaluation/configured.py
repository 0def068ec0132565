"""What a configuration stands for: measured data, and the recipe that learns from them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import pandas as pd
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from pinn.data.measured_runs import MeasuredRun, read_measured_runs
from pinn.data.table import Manifest, read_manifest, read_observations
from pinn.evaluation.methods import KernelFits
from pinn.specs.files.read_report import ReadReport
from pinn.training.kernel_learner import KernelLearner, KernelSettings
from pinn.training.learner import ServingLearner
from pinn.training.provenance import json_sha256
from pinn.training.serving_rows import ServingRows, serving_rows

#: Parts of the configuration that decide what is learned.
LEARNED_FROM = ("network", "kernels", "fit", "run_fit", "seed")

#: Where folds are remembered, below the output folder.
FOLDS = "folds"


@dataclass(frozen=True)
class Measured:
    """Everything that was measured, and where it comes from.

    Attributes:
        observations: Measured deployments as a table.
        rows: The same, ready to learn from.
        runs: Serving runs; none where none are given.
        manifest: Of the deployments.
        report: Of the runs.
    """

    observations: pd.DataFrame
    rows: ServingRows
    runs: tuple[MeasuredRun, ...]
    manifest: Manifest
    report: ReadReport | None

    @property
    def data_sha256(self) -> str:
        """Of all data."""
        of_runs = None if self.report is None else self.report.sha256
        return json_sha256(self.manifest.table_sha256, of_runs)


def read_measured(config: DictConfig) -> Measured:
    """Measured deployments, and serving runs where the configuration names them."""
    instantiate(config.data)
    manifest = read_manifest(Path(config.data.target))
    observations = read_observations(Path(config.data.target))
    print(manifest.report.table(), file=sys.stderr)
    runs, report = measured_runs(config)
    return Measured(observations, serving_rows(observations), runs, manifest, report)


def measured_runs(config: DictConfig) -> tuple[tuple[MeasuredRun, ...], ReadReport | None]:
    """Serving runs where the configuration names them, else none."""
    if not config.runs.path:
        print(
            "no serving runs: learning from kernels and measured deployments alone (runs.path=FILE "
            "or PINN_SERVING_RUNS names them)",
            file=sys.stderr,
        )
        return (), None
    configs = config.runs.model_configs
    return read_measured_runs(Path(config.runs.path), Path(configs) if configs else None)


def recipe_sha256(config: DictConfig) -> str:
    """Digest of the settings that decide what is learned."""
    settings: Any = OmegaConf.to_container(config, resolve=True)
    return json_sha256({part: settings[part] for part in LEARNED_FROM})


def serving_learner(config: DictConfig) -> ServingLearner:
    """Learns from measured deployments alone, as the configuration says."""
    return ServingLearner(
        instantiate(config.network),
        instantiate(config.fit),
        instantiate(config.trainer),
        config.seed,
    )


def make_repeatable(config: DictConfig) -> None:
    """Seed everything; the same configuration then gives the same bits."""
    lightning.seed_everything(config.seed, verbose=False)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(config.threads)


def kernel_settings(config: DictConfig) -> KernelSettings:
    """Where kernels come from; Hydra makes a list of the GPUs, which no cache takes as a key."""
    values: Any = OmegaConf.to_container(config.kernels.settings, resolve=True)
    del values["_target_"]
    return KernelSettings(**values | {"gpus": tuple(values["gpus"])})


def kernel_learner(config: DictConfig) -> KernelLearner:
    """The recipe, as the configuration says."""
    return KernelLearner(
        kernel_settings(config),
        instantiate(config.network),
        instantiate(config.kernels.distillation),
        instantiate(config.run_fit),
        instantiate(config.trainer),
        config.seed,
    )


def kernel_fits(config: DictConfig, runs: tuple[MeasuredRun, ...], folder: Path) -> KernelFits:
    """Trainings of the recipe; experiments share those that they have in common."""
    root = Path(config.folds) if config.folds else folder / FOLDS
    return KernelFits(kernel_learner(config), runs, root)
