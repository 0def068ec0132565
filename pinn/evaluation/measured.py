"""Measured data of an experiment, and hashes of its data, settings and code."""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

import lightning
import pandas as pd
import torch
from hydra.utils import get_method

from pinn.common.code import code_digest
from pinn.common.files import ReadReport, sorted_json
from pinn.common.progress import note
from pinn.evaluation.config import ExperimentConfig
from pinn.measurements.deployments.observations import Manifest, read_manifest, read_observations
from pinn.measurements.runs.measured_runs import MeasuredRun, read_measured_runs
from pinn.training.serving_rows import ServingRows, serving_rows

#: Sections of an experiment's configuration that determine its training.
LEARNED_FROM = ("network", "kernels", "fit", "run_fit", "alpha_head", "seed")


@dataclass(frozen=True)
class Measured:
    """Measured data of an experiment, with its sources.

    Attributes:
        observations: Measured deployments as a table.
        rows: Measured deployments as training rows.
        runs: Serving runs; may be empty.
        manifest: Sources of the measured deployments, with hashes.
        report: Counts of serving runs that were read and rejected, with the hash of their file;
            None without runs.
    """

    observations: pd.DataFrame
    rows: ServingRows
    runs: tuple[MeasuredRun, ...]
    manifest: Manifest
    report: ReadReport | None

    @property
    def data_sha256(self) -> str:
        """Return the SHA-256 of the measured deployments and serving runs together."""
        of_runs = None if self.report is None else self.report.sha256
        return json_sha256(self.manifest.table_sha256, of_runs)


def read_measured(config: ExperimentConfig) -> Measured:
    """Read the measured deployments and, if configured, the serving runs of an experiment."""
    target = Path(config.data.target)
    get_method(config.data._target_)(target=target, source=config.data.source)
    manifest, observations = read_manifest(target), read_observations(target)
    note(manifest.report.table())
    runs: tuple[MeasuredRun, ...] = ()
    report = None
    if config.runs.path:
        configs = config.runs.model_configs
        runs, report = read_measured_runs(
            Path(config.runs.path), Path(configs) if configs else None
        )
    else:
        note(
            "no serving runs: training only on kernels and measured deployments (to add serving "
            "runs, give their file with runs.path=FILE or PINN_SERVING_RUNS)"
        )
    return Measured(observations, serving_rows(observations), runs, manifest, report)


def recipe_sha256(config: ExperimentConfig) -> str:
    """Return the SHA-256 of an experiment's settings that determine its training."""
    settings = asdict(config)
    return json_sha256({part: settings[part] for part in LEARNED_FROM})


def json_sha256(*parts: object) -> str:
    """Return the SHA-256 of values that can be written as JSON."""
    return hashlib.sha256(sorted_json(parts).encode()).hexdigest()


def code_sha256() -> str:
    """Return the SHA-256 of this package's code that trains networks and predicts times."""
    return code_digest("pinn.training.folds", "pinn.training.serving_fit")


def mark(config: ExperimentConfig, measured: Measured) -> str:
    """Return a hash of all settings, data and code that determine an experiment's predictions."""
    return json_sha256(recipe_sha256(config), measured.data_sha256, code_sha256())


def make_repeatable(config: ExperimentConfig) -> None:
    """Seed all random generators, so that identical configurations give bit-identical results."""
    lightning.seed_everything(config.seed, verbose=False)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(config.threads)
