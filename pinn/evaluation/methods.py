"""Methods that predict TPOT and TTFT of held-out deployments."""

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

#: Predicted TPOT and TTFT of every row, in seconds; NaN for rows that the method cannot predict.
Prediction = SimulatedRows | tuple[np.ndarray, np.ndarray]
Predictor = Callable[[ServingRows], Prediction]


@dataclass(frozen=True)
class Method:
    """Method that learns from measured deployments and predicts TPOT and TTFT of others.

    Attributes:
        name: Name of the method in every table.
        learn: Function that takes training rows, an exclusion (models or GPUs whose kernels must
            not be used) and a folder for logs, and returns a predictor. Worker processes unpickle
            the function, so it must be a module-level function or a partial of one.
        logs: Folder of training logs, shared by methods from the same fit; ``none`` for methods
            without logs.
        recipe: Hash or text of the settings on which the method's cached predictions depend.
    """

    name: str
    learn: Callable[[ServingRows, Exclusion, Path], Predictor]
    logs: str = "none"
    recipe: str = ""


def roofline() -> Method:
    """Return a method that predicts each step's time as its roofline lower bound.

    The bound is max(FLOPs / peak FLOP/s, bytes / memory bandwidth).
    """
    return Method("roofline", _floors)


def _floors(*_: object) -> Predictor:
    return lambda rows: (rows.tpot_floor_s, rows.ttft_floor_s)


def learned_network(name: str, learner: ServingLearner) -> Method:
    """Return a prediction method that trains a network on measured deployments."""
    return Method(name, partial(_learn_network, learner), name.replace(" ", "-"))


def _learn_network(
    learner: ServingLearner, train: ServingRows, _: Exclusion, folder: Path
) -> Predictor:
    network = learner.learn(train, folder)
    return partial(predict, network)


def without_kernels(config: ExperimentConfig) -> list[Method]:
    """Return the configured prediction methods that use measured deployments alone."""
    alone = serving_learner(config)
    network = replace(alone.network, corrected=False)
    return [
        learned_network("global vector", replace(alone, network=network)),
        learned_network("network, no kernels", alone),
    ]


@dataclass(frozen=True)
class KernelFits:
    """Training runs on kernels, one per cross-validation fold.

    Each run yields a teacher, which sums kernel times to step times, and a network trained on the
    teacher's step times.

    Attributes:
        learner: Learner (training settings) that trains each fold.
        runs: All serving runs; each fold is trained on the runs that it does not hold out.
        root: Folder of cached folds.
    """

    learner: KernelLearner
    runs: tuple[MeasuredRun, ...]
    root: Path

    def network(self, train: ServingRows, exclude: Exclusion, _: Path) -> Predictor:
        """Train the network on kernels, and return a predictor of TPOT and TTFT."""
        return partial(predict, self._learn(train, exclude).network)

    def teacher(self, train: ServingRows, exclude: Exclusion, _: Path) -> Predictor:
        """Return the teacher's predictor of TPOT and TTFT, based on summed kernel times."""
        learned = self._learn(train, exclude)

        def from_kernels(rows: ServingRows) -> Prediction:
            betas = learned.teacher.betas(rows.deployments)
            alpha = np.tile(learned.fit.alpha, (len(betas), 1))
            return simulate_rows(rows, betas, alpha)

        return from_kernels

    def _learn(self, train: ServingRows, exclude: Exclusion) -> Learned:
        """Train a fold's teacher (summed kernel times) and network, or read them from the cache."""
        return learn_fold(self.learner, fold_of(train, self.runs, exclude), self.root)


def kernel_methods(fits: KernelFits) -> list[Method]:
    """Return two prediction methods: the teacher, and the network trained on its step times."""
    learns = {"teacher": fits.teacher, "network": fits.network}
    return [Method(name, learn, "kernels") for name, learn in learns.items()]


def peers() -> list[Method]:
    """Return the stored predictions of other estimators (such as AIConfigurator) as methods.

    The predictions are looked up by row id.

    These estimators use their own kernel measurements, which include the held-out models' kernels.
    """
    tables = {peer: released_predictions(peer).set_index("row_id") for peer in PEERS}
    return [Method(peer, partial(_look_up, table)) for peer, table in tables.items()]


def _look_up(table: pd.DataFrame, *_: object) -> Predictor:
    def found(rows: ServingRows) -> Prediction:
        of_rows = table.reindex(list(rows.row_id))
        return of_rows["tpot_s"].to_numpy(np.float64), of_rows["ttft_s"].to_numpy(np.float64)

    return found


def serving_learner(config: ExperimentConfig) -> ServingLearner:
    """Return the learner, as configured, that trains on measured deployments alone."""
    trainer = partial(make_trainer, config.trainer)
    return ServingLearner(config.network, config.fit, trainer, config.seed)


def kernel_fits(config: ExperimentConfig, runs: tuple[MeasuredRun, ...]) -> KernelFits:
    """Return an experiment's training runs on kernels, which are cached in ``folds``."""
    kernels, trainer = config.kernels, partial(make_trainer, config.trainer)
    learner = KernelLearner(
        kernels.settings,
        config.network,
        kernels.distillation,
        config.run_fit,
        config.alpha_head,
        trainer,
        config.seed,
    )
    root = Path(config.folds) if config.folds else Path(config.output_dir) / "folds"
    return KernelFits(learner, runs, root)
