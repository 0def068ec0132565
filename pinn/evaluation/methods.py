"""Methods that are scored, and those that a configuration makes."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pandas as pd
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from pinn.common.code import code_digest
from pinn.common.files import ReadReport, sorted_json
from pinn.common.progress import note
from pinn.kernels.exclusion import Exclusion
from pinn.measurements.deployments.observations import Manifest, read_manifest, read_observations
from pinn.measurements.runs.measured_runs import MeasuredRun, read_measured_runs
from pinn.training.data.released import PEERS, released_predictions
from pinn.training.kernel_learner import KernelLearner, KernelSettings, Learned, fold_of, learn_fold
from pinn.training.learner import ServingLearner, predict
from pinn.training.serving_rows import ServingRows, SimulatedRows, serving_rows, simulate_rows

# Methods that predict TPOT and TTFT of deployments they have not seen.

#: TPOT and TTFT in seconds of every row; NaN where the method cannot predict one.
Prediction = SimulatedRows | tuple[np.ndarray, np.ndarray]
Predictor = Callable[[ServingRows], Prediction]

#: ``logs`` of methods that keep none, and so share no fit.
NO_LOGS = "none"


@dataclass(frozen=True)
class Method:
    """Something that learns from training rows and then predicts others.

    Attributes:
        name: Its name in every table.
        learn: Learns from rows, and from kernels but those of what is excluded; gets a folder for
            its logs. A function that other processes can import, or a partial one.
        logs: Folder of its training logs; methods that share a fit share it.
        recipe: What a kept prediction depends on beside the name.
    """

    name: str
    learn: Callable[[ServingRows, Exclusion, Path], Predictor]
    logs: str = NO_LOGS
    recipe: str = ""


def roofline() -> Method:
    """The physical floor itself: max(FLOPs / peak, bytes / bandwidth) of every step."""
    return Method("roofline", _floors)


def _floors(*_: object) -> Predictor:
    return lambda rows: (rows.tpot_floor_s, rows.ttft_floor_s)


def learned_network(name: str, learner: ServingLearner) -> Method:
    """A network learned from the training rows."""
    return Method(name, partial(_learn_network, learner), name.replace(" ", "-"))


def _learn_network(
    learner: ServingLearner, train: ServingRows, _: Exclusion, folder: Path
) -> Predictor:
    network = learner.learn(train, folder)
    return partial(predict, network)


def without_kernels(config: DictConfig) -> list[Method]:
    """What learns from measured deployments alone, as the configuration says."""
    alone = serving_learner(config)
    network = replace(alone.network, corrected=False)
    return [
        learned_network("global vector", replace(alone, network=network)),
        learned_network("network, no kernels", alone),
    ]


@dataclass(frozen=True)
class KernelFits:
    """Fits of the recipe; teacher and network of a fold come from the same one.

    Attributes:
        learner: The recipe.
        runs: Serving runs; a fold learns from those that it does not leave out.
        root: Where folds are remembered.
    """

    learner: KernelLearner
    runs: tuple[MeasuredRun, ...]
    root: Path

    def learn(self, train: ServingRows, exclude: Exclusion) -> Learned:
        """Learn a fold, or read what it learned before."""
        return learn_fold(self.learner, fold_of(train, self.runs, exclude), self.root)


def kernel_methods(fits: KernelFits) -> list[Method]:
    """The teacher and the network that kernels taught.

    The teacher is composed kernels, projected for each deployment; alpha as the network.
    """
    learns = {"teacher": _learn_teacher, "network": _learn_from_kernels}
    return [Method(name, partial(learn, fits), "kernels") for name, learn in learns.items()]


def _learn_from_kernels(
    fits: KernelFits, train: ServingRows, exclude: Exclusion, _: Path
) -> Predictor:
    learned = fits.learn(train, exclude)
    return partial(predict, learned.network)


def _learn_teacher(fits: KernelFits, train: ServingRows, exclude: Exclusion, _: Path) -> Predictor:
    learned = fits.learn(train, exclude)

    def from_kernels(rows: ServingRows) -> Prediction:
        betas = learned.teacher.betas(rows.deployments)
        alpha = np.tile(learned.fit.alpha, (len(betas), 1))
        return simulate_rows(rows, betas, alpha)

    return from_kernels


def peers() -> list[Method]:
    """What other estimators predict, made beforehand and looked up by row id.

    They hold their own kernel measurements, those of the very models.
    """
    tables = {peer: released_predictions(peer).set_index("row_id") for peer in PEERS}
    return [Method(peer, partial(_look_up, table)) for peer, table in tables.items()]


def _look_up(table: pd.DataFrame, *_: object) -> Predictor:
    def found(rows: ServingRows) -> Prediction:
        of_rows = table.reindex(list(rows.row_id))
        return of_rows["tpot_s"].to_numpy(np.float64), of_rows["ttft_s"].to_numpy(np.float64)

    return found


# What a configuration stands for: measured data, and the recipe that learns from them.

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
            "no serving runs: learning from kernels and measured deployments alone (runs.path=FILE "
            "or PINN_SERVING_RUNS names them)"
        )
    return Measured(observations, serving_rows(observations), runs, manifest, report)


def recipe_sha256(config: DictConfig) -> str:
    """Digest of the settings that decide what is learned."""
    settings: Any = OmegaConf.to_container(config, resolve=True)
    return json_sha256({part: settings[part] for part in LEARNED_FROM})


def json_sha256(*parts: Any) -> str:
    """SHA-256 of JSON-ready values."""
    return hashlib.sha256(sorted_json(parts).encode()).hexdigest()


def code_sha256() -> str:
    """SHA-256 of the code that learns and predicts."""
    return code_digest("pinn.training.kernel_learner", "pinn.training.learner")


def mark(config: DictConfig, measured: Measured) -> str:
    """Digest of all that decides a prediction: settings, data and code."""
    return json_sha256(recipe_sha256(config), measured.data_sha256, code_sha256())


def serving_learner(config: DictConfig) -> ServingLearner:
    """Learns from measured deployments alone, as the configuration says."""
    network, fit, trainer = map(instantiate, (config.network, config.fit, config.trainer))
    return ServingLearner(network, fit, trainer, config.seed)


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


def kernel_fits(config: DictConfig, runs: tuple[MeasuredRun, ...], folder: Path) -> KernelFits:
    """Trainings of the recipe; experiments share those that they have in common."""
    root = Path(config.folds) if config.folds else folder / FOLDS
    parts = (config.network, config.kernels.distillation, config.run_fit, config.trainer)
    network, teaching, run_fit, trainer = map(instantiate, parts)
    kernels = kernel_settings(config)
    learner = KernelLearner(kernels, network, teaching, run_fit, trainer, config.seed)
    return KernelFits(learner, runs, root)
