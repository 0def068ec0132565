"""Methods that predict TPOT and TTFT of deployments that they have not seen."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.evaluation.config import ExperimentConfig
from pinn.kernels.exclusion import Exclusion
from pinn.measurements.runs.measured_runs import MeasuredRun
from pinn.training.data.released import PEERS, released_predictions
from pinn.training.folds import fold_of, learn_fold
from pinn.training.kernel_learner import KernelLearner, Learned
from pinn.training.serving_fit import ServingLearner, predict
from pinn.training.serving_rows import ServingRows, SimulatedRows, simulate_rows
from pinn.training.trainer import make_trainer

#: TPOT and TTFT in seconds of every row; NaN where the method cannot predict one.
Prediction = SimulatedRows | tuple[np.ndarray, np.ndarray]
Predictor = Callable[[ServingRows], Prediction]


@dataclass(frozen=True)
class Method:
    """Something that learns from training rows and then predicts others.

    Attributes:
        name: Its name in every table.
        learn: Learns from rows, and from kernels but those of what is excluded; gets a folder for
            its logs. A function that other processes can import, or a partial one.
        logs: Folder of its training logs, which methods of one fit share; ``none`` of those that
            keep none.
        recipe: What a kept prediction depends on beside the name.
    """

    name: str
    learn: Callable[[ServingRows, Exclusion, Path], Predictor]
    logs: str = "none"
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


def without_kernels(config: ExperimentConfig) -> list[Method]:
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

    def network(self, train: ServingRows, exclude: Exclusion, _: Path) -> Predictor:
        """Learn the network that kernels taught."""
        return partial(predict, self._learn(train, exclude).network)

    def teacher(self, train: ServingRows, exclude: Exclusion, _: Path) -> Predictor:
        """Learn composed kernels, projected for each deployment; alpha as the network."""
        learned = self._learn(train, exclude)

        def from_kernels(rows: ServingRows) -> Prediction:
            betas = learned.teacher.betas(rows.deployments)
            alpha = np.tile(learned.fit.alpha, (len(betas), 1))
            return simulate_rows(rows, betas, alpha)

        return from_kernels

    def _learn(self, train: ServingRows, exclude: Exclusion) -> Learned:
        """Learn a fold, or read what it learned before."""
        return learn_fold(self.learner, fold_of(train, self.runs, exclude), self.root)


def kernel_methods(fits: KernelFits) -> list[Method]:
    """The teacher and the network that kernels taught."""
    learns = {"teacher": fits.teacher, "network": fits.network}
    return [Method(name, learn, "kernels") for name, learn in learns.items()]


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


def serving_learner(config: ExperimentConfig) -> ServingLearner:
    """Learns from measured deployments alone, as the configuration says."""
    trainer = partial(make_trainer, config.trainer)
    return ServingLearner(config.network, config.fit, trainer, config.seed)


def kernel_fits(config: ExperimentConfig, runs: tuple[MeasuredRun, ...]) -> KernelFits:
    """Trainings of the recipe; experiments share those that they have in common."""
    kernels, trainer = config.kernels, partial(make_trainer, config.trainer)
    learner = KernelLearner(
        kernels.settings, config.network, kernels.distillation, config.run_fit, trainer, config.seed
    )
    root = Path(config.folds) if config.folds else Path(config.output_dir) / "folds"
    return KernelFits(learner, runs, root)
